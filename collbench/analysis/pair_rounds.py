"""What all pairs of a round have in common: a round as a whole runs some per cent faster or slower than the next one.

Fitted beside the places' effects by medians: of what a two-way fit leaves of each cell the median of its round, taken away, and again.
The slow places are in the fit by then, so that a round full of them is not taken for a slow one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.two_way import Figures, two_way

LEAST_CELLS = 6  # of fewer the median takes away more than the round put in
_TIMES = 2


def levelled(values: Figures, turns: NDArray[np.int64], symmetric: bool = False) -> Figures:
    """The logarithms [n × n] as if every round had been a usual one; NaN stays.

    turns: by cell what was measured at the same time, from 0; -1: nothing. Rounds of fewer than LEAST_CELLS known cells stay as they are.
    """
    level = np.zeros(int(turns.max(initial=-1)) + 1)
    if not len(level):
        return values
    known = np.isfinite(values)
    for _ in range(_TIMES):
        rest = two_way(values - _spread(level, turns), symmetric).rest
        level += _middles(rest, np.where(known, turns, -1), len(level))
    return values - _spread(level, turns)


def _spread(level: Figures, turns: NDArray[np.int64]) -> Figures:
    return np.where(turns >= 0, level[turns], 0.0)


def _middles(rest: Figures, turns: NDArray[np.int64], number: int) -> Figures:
    """By round the median of its cells; around the middle of all rounds, so that speeds stay speeds."""
    cells = [rest[turns == turn] for turn in range(number)]
    told = np.array([len(each) >= LEAST_CELLS for each in cells])
    middles = np.array([np.median(each) if enough else 0.0 for each, enough in zip(cells, told, strict=True)])
    return np.where(told, middles - np.median(middles[told]), 0.0) if told.any() else middles
