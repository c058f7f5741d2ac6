"""Robust lines time = α + size · β through every run of neighbouring sizes, by relative least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_HUBER = 1.345  # standard deviations; 95 % as efficient as least squares under normal noise
_BAD = 4.0
_OFF = 0.1
_MOST_BAD = 6
_SD_PER_MAD = 1.4826
_LEAST_NOISE = 1e-9  # relative: below, it is rounding
_ROUNDS, _LAST_ROUNDS = 30, 5
_ENDS = 48
_SINGULAR = 1e-14
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Distinct sizes in bytes, ascending, their times in seconds, and the relative noise of a time (one standard deviation)."""

    sizes: Values
    times_s: Values
    noise: float


@dataclass(frozen=True)
class Lines:
    """One line per run [first, last) of points: index arrays, α in seconds, β in seconds per byte; per line and point a weight
    (Huber's, 0 outside the run and for bad points) and the relative residual (time - fit) / time."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    alpha_s: Values
    s_per_byte: Values
    weights: Values
    residuals: Values


def points(sizes: Sequence[float], times_s: Sequence[float]) -> Points:
    """The sound pairs: finite, sizes from 0 on, times positive; the median where a size has several.

    Raises ValueError when there are not as many sizes as times.
    """
    given, times = np.asarray(sizes, np.float64), np.asarray(times_s, np.float64)
    if len(given) != len(times):
        raise ValueError(f"{len(given)} sizes and {len(times)} times are no pairs")
    sound = np.isfinite(given) & np.isfinite(times) & (given >= 0) & (times > 0)
    given, times = given[sound], times[sound]
    distinct = np.unique(given)
    middle = np.array([np.median(times[given == size]) for size in distinct])
    return Points(distinct, middle, _noise(distinct, middle))


def _noise(sizes: Values, times: Values) -> float:
    """From how far each time is off the line through its two neighbours: the lower median, which kinks and bad sizes do not reach."""
    if len(sizes) < 3:
        return _LEAST_NOISE
    share = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    left, right = (1 - share) * times[:-2] / times[1:-1], share * times[2:] / times[1:-1]
    misfits = np.sort(np.abs(left + right - 1) / np.sqrt(1 + left**2 + right**2))
    return max(_SD_PER_MAD * float(misfits[(len(misfits) - 1) // 2]), _LEAST_NOISE)


def through(data: Points, least: int) -> Lines:
    """The lines through all runs of at least `least` neighbouring points; of more than 48 points, runs between 49 of their gaps.

    Huber's weights, iterated; in the last rounds points beyond 4 standard deviations and 10 % are left out.
    """
    count = len(data.sizes)
    ends = sorted({round(end) for end in np.linspace(0, count, min(count, _ENDS) + 1)})
    first, last = np.array([run for run in combinations(ends, 2) if run[1] - run[0] >= least]).T
    place = np.arange(count)
    inside = ((place >= first[:, None]) & (place < last[:, None])).astype(np.float64)
    weights = inside
    for turn in range(_ROUNDS + _LAST_ROUNDS):
        alpha, beta = _solve(data, weights)
        residuals = 1 - (alpha[:, None] + beta[:, None] * data.sizes) / data.times_s
        size = np.maximum(np.abs(residuals), 1e-300)
        weights = inside * np.minimum(1, _HUBER * data.noise / size)
        if turn >= _ROUNDS:
            weights = _without_bad(weights, size > max(_BAD * data.noise, _OFF))
    return Lines(first, last, alpha, beta, weights, residuals)


def _without_bad(weights: Values, bad: NDArray[np.bool_]) -> Values:
    """Weights of 0 for the bad points, at most one in six: more are no bad points but a line that does not fit."""
    kept = weights * ~bad
    left, there = np.count_nonzero(kept, axis=1), np.count_nonzero(weights, axis=1)
    enough = there - left <= np.maximum(1, there // _MOST_BAD)
    return np.where(enough[:, None], kept, weights)


def _solve(data: Points, weights: Values) -> tuple[Values, Values]:
    """Weighted least squares of 1 = α / time + β · size / time, for each row of weights."""
    a, b = 1 / data.times_s, data.sizes / data.times_s
    aa, ab, bb, a1, b1 = (weights @ each for each in (a * a, a * b, b * b, a, b))
    determinant = determined(aa, ab, bb)
    return (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant


def determined(aa: Values, ab: Values, bb: Values) -> Values:
    """aa · bb - ab², the determinant of the normal equations, kept off zero where sizes are too alike for a double to tell."""
    return np.maximum(aa * bb - ab**2, _SINGULAR * aa * bb)
