"""Reasons why `predict` refuses."""

from __future__ import annotations

from collbench.plugins.predict.held import PredictionDoubt
from collbench.plugins.predict.prediction import FewNodeCounts, LargePredictionError, NoModelFits, TooManyNodes

MESSAGES = {
    "two node counts": FewNodeCounts((2, 4), 3),
    "no node count": FewNodeCounts((), 3),
    "error too large": LargePredictionError(16, (2, 4, 8), -0.297, 0.15),
    "too many nodes": TooManyNodes(128, 16, 4.0),
    "no model": NoModelFits((2, 4, 8)),
    "held: not measured": PredictionDoubt("missing"),
    "held: flag": PredictionDoubt("flag", "two_modes"),
    "held: no interval": PredictionDoubt("no interval"),
    "held: wide": PredictionDoubt("wide"),
}
