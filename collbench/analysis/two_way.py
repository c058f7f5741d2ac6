"""A table of rows and columns split by medians into a middle, an effect of each row, one of each column, and what is left of each cell.

Tukey's median polish, with two differences: cells may be missing (NaN), and of an even number of values the upper of the two in the
middle is taken. Values are speeds, and a pair is as slow as the slower of its two ends: with k slow places among n, a place that is
well has n - 1 - k fast partners and k slow ones, and the upper middle is still a fast one for every k < n / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]

LEAST_CELLS = 3  # fewer give no effect of their own: two slow cells of two may be the place or both partners
_SWEEPS = 10
_SETTLED = 1e-6


@dataclass(frozen=True)
class TwoWay:
    """value[i, j] = middle + rows[i] + columns[j] + rest[i, j]; an effect is 0 where too few cells tell it.

    told_rows, told_columns: whether there are LEAST_CELLS for it. Of a symmetric table rows and columns are the same.
    """

    middle: float
    rows: Figures
    columns: Figures
    rest: Figures
    told_rows: NDArray[np.bool_]
    told_columns: NDArray[np.bool_]


def two_way(values: Figures, symmetric: bool = False) -> TwoWay:
    """The effects of a square table [n × n] with NaN where nothing is known."""
    there = np.isfinite(values)
    told_rows, told_columns = (there.sum(axis=axis) >= LEAST_CELLS for axis in (1, 0))
    rest, middle = values.copy(), 0.0
    rows, columns = np.zeros(len(values)), np.zeros(len(values))
    for _ in range(_SWEEPS):
        shift = _upper_middle(rest[there])
        rest, middle = rest - shift, middle + shift
        by_row = _centred(upper_medians(rest), told_rows)
        by_column = by_row if symmetric else _centred(upper_medians((rest - by_row[:, None]).T), told_columns)
        rest -= by_row[:, None] + by_column[None, :]
        rows, columns = rows + by_row, columns + by_column
        if max(np.abs(by_row).max(), np.abs(by_column).max(), abs(shift)) < _SETTLED:
            break
    return TwoWay(middle, rows, columns, rest, told_rows, told_columns)


def upper_medians(values: Figures) -> Figures:
    """Of each row the middle of the values that are no NaN, of an even number the upper one; 0 where there is none."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    count = np.isfinite(values).sum(axis=1)
    found = ordered[np.arange(len(values)), count // 2 * (count > 0)]
    return np.where(count > 0, found, 0.0)


def _centred(effects: Figures, told: NDArray[np.bool_]) -> Figures:
    """The effects that are told, around their middle; with fewer than three there is none."""
    known = effects[told]
    around = _upper_middle(known) if len(known) >= LEAST_CELLS else 0.0
    return np.where(told, effects - around, 0.0)


def _upper_middle(values: Figures) -> float:
    return float(np.sort(values)[len(values) // 2]) if len(values) else 0.0
