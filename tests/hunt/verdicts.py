"""Verdicts for the tests of what is done about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.analysis.hunt.protocol import CONFIRMED, HuntVerdict, Suspect
from collbench.deploy.drain import HuntSummary, recommendation
from collbench.reason import Text

NAMES = tuple(f"node{number:02}" for number in range(16))


def suspect(kind: str = "node", *places: int, **changes: Any) -> Suspect:
    """node07 at 51 % of the others, but for `changes`."""
    told: dict[str, Any] = {
        "state": CONFIRMED, "ratio": 0.51, "low": 0.49, "high": 0.53, "partners": (2, 5),
        "evidence": (Text("with node02 59.8 MB/s, with node05 60.1 MB/s"),),
    }  # fmt: skip
    return Suspect(kind, places or (7,), **{**told, **changes})


def verdict(*suspects: Suspect, **changes: Any) -> HuntVerdict:
    """Of 16 nodes; of node07 where nobody else is given."""
    told: dict[str, Any] = {"names": NAMES, "suspects": suspects, "rounds": {"sweep": 8, "cross-check": 2}, "promised": 18}
    return HuntVerdict(**{**told, **changes})


def about(**changes: Any) -> HuntSummary:
    """A hunt in a job of Slurm's."""
    return HuntSummary(**{"run": Path("runs/20261122T031500Z-hunt-a1b2c3"), "allocation": "cluster-42", "manager": "slurm", **changes})


def recommended(*suspects: Suspect, **changes: Any) -> dict[str, Any]:
    """What is recommended about them; `changes` are of the hunt."""
    return recommendation(verdict(*suspects or (suspect(),)), about(**changes))
