"""α-β: time = α + size · β, in up to three regimes (protocols), each by relative least squares.

The residual of a point is (time - fit) / time, so that 8 bytes count as much as 1 GiB. The breakpoints are searched exhaustively, and
BIC selects the number of regimes. A single bad size neither changes the fit nor makes a regime. For that, residuals have Huber's weights
(k = 1.345), and later those beyond 4 standard deviations and 10 % are left out. The noise for this comparison is the median misfit of
each size to the line through its two neighbors.

Simulated with 2 % of noise, 8 B-1 GiB:
- one regime of 8 µs and 48 GB/s, 10, 14 and 28 sizes: a second one is found in 7, 8 and 4 %; the 95 % intervals contain α in 90, 92 and
  92 %, β in 92, 94 and 95 %;
- three regimes (2, 5 and 8 µs, 6, 20 and 48 GB/s, 28 sizes): separated in 99.8 %; the intervals contain α and β in 93 and 94 %;
- one size with 1.5 times the right time is the only one off in 98 %; with 0.6 times in 92 % (at a switch it counts as a part of it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import log, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.stats.median import t_quantile

# Robust lines time = α + size · β through every run of neighboring sizes, by relative least squares.

_HUBER = 1.345  # standard deviations; 95 % as efficient as least squares under normal noise
_BAD = 4.0
_OFF = 0.1
_MOST_BAD = 6
_SD_PER_MAD = 1.4826
_LEAST_NOISE = 1e-9  # relative; less is rounding
_ROUNDS, _LAST_ROUNDS = 30, 5
_ENDS = 48
_SINGULAR = 1e-14
Values = NDArray[np.float64]


class Points(msgspec.Struct, frozen=True):
    """Distinct sizes in bytes (ascending), their times in seconds, and the relative noise of a time (one standard deviation)."""

    sizes: Values
    times_s: Values
    noise: float


class Lines(msgspec.Struct, frozen=True):
    """One line per run [first, last) of points: index arrays, α in seconds, β in seconds per byte.

    Per line and point a weight (Huber's, 0 outside the run and for bad points) and the relative residual (time - fit) / time.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    alpha_s: Values
    s_per_byte: Values
    weights: Values
    residuals: Values


def points(sizes: Sequence[float], times_s: Sequence[float]) -> Points:
    """Return the valid pairs: finite, sizes from 0 on, positive times; the median where a size has several.

    Raises ValueError when the numbers of sizes and times differ.
    """
    sizes_, times = np.asarray(sizes, np.float64), np.asarray(times_s, np.float64)
    if len(sizes_) != len(times):
        raise ValueError(f"{len(sizes_)} sizes and {len(times)} times: must be equally many")
    sound = np.isfinite(sizes_) & np.isfinite(times) & (sizes_ >= 0) & (times > 0)
    sizes_, times = sizes_[sound], times[sound]
    distinct = np.unique(sizes_)
    middle = np.array([np.median(times[sizes_ == size]) for size in distinct])
    return Points(distinct, middle, _noise(distinct, middle))


def _noise(sizes: Values, times: Values) -> float:
    """Return the relative noise from each time's distance to the line through its neighbors: a lower median, robust to kinks and bad
    sizes.
    """
    if len(sizes) < 3:
        return _LEAST_NOISE
    share = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    left, right = (1 - share) * times[:-2] / times[1:-1], share * times[2:] / times[1:-1]
    misfits = np.sort(np.abs(left + right - 1) / np.sqrt(1 + left**2 + right**2))
    return max(_SD_PER_MAD * float(misfits[(len(misfits) - 1) // 2]), _LEAST_NOISE)


def through(data: Points, least: int) -> Lines:
    """Return the lines through all runs of at least `least` adjacent points; with more than 48 points, runs between 49 of their gaps.

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
    """Return weights of 0 for the bad points, at most one in six: with more bad points the line does not fit."""
    kept = weights * ~bad
    left, there = np.count_nonzero(kept, axis=1), np.count_nonzero(weights, axis=1)
    enough = there - left <= np.maximum(1, there // _MOST_BAD)
    return np.where(enough[:, None], kept, weights)


def _solve(data: Points, weights: Values) -> tuple[Values, Values]:
    """Return α and β by weighted least squares of 1 = α / time + β · size / time, for each row of weights."""
    a, b = 1 / data.times_s, data.sizes / data.times_s
    aa, ab, bb, a1, b1 = (weights @ each for each in (a * a, a * b, b * b, a, b))
    determinant = determined(aa, ab, bb)
    return (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant


def determined(aa: Values, ab: Values, bb: Values) -> Values:
    """Return aa · bb - ab², the determinant of the normal equations, kept above zero where a double cannot distinguish the sizes."""
    return np.maximum(aa * bb - ab**2, _SINGULAR * aa * bb)


_LEAST = 4  # points per regime
_MOST = 3  # regimes
_CLIPPED = 4.0  # standard deviations that one bad point can count at most
_LEAST_VARIANCE = 1e-20  # relative; less is rounding


class Bounds(msgspec.Struct, frozen=True):
    """A fitted value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class FitSegment(msgspec.Struct, frozen=True):
    """A range of sizes (bytes, both ends included) in which time = alpha_s + size · s_per_byte."""

    first: float
    last: float
    alpha_s: Bounds
    s_per_byte: Bounds

    def time_s(self, size: float) -> float:
        """Return the segment's time in seconds at `size` bytes."""
        return self.alpha_s.value + size * self.s_per_byte.value


class Fit(msgspec.Struct, frozen=True):
    """A segmented fit: the regimes, by size ascending.

    off  (size in bytes, time / fit - 1) where the difference exceeds 10 % (positive: slower than the fit), by size ascending
    """

    regimes: tuple[FitSegment, ...]
    off: tuple[tuple[float, float], ...]

    def time_s(self, size: float) -> float:
        """Return the fitted time in seconds at `size` bytes, from the last regime that begins there or before, else from the first one."""
        return next((each for each in reversed(self.regimes) if each.first <= size), self.regimes[0]).time_s(size)


def fit(sizes: Sequence[float], times_s: Sequence[float]) -> Fit | None:
    """Return the segmented fit of times (seconds) over sizes (bytes); None with fewer than four distinct sizes.

    Pairs with NaN, negative sizes and non-positive times are dropped; several times at one size are replaced by their
    median. The intervals (Student's t, the misfit of all regimes together) hold for independent errors, given the breakpoints.
    Raises ValueError when the numbers of sizes and times differ.
    """
    data = points(sizes, times_s)
    if len(data.sizes) < _LEAST:
        return None
    lines = through(data, _LEAST)
    chosen = _choose(data, lines)
    reach = _reach(data, lines, chosen)
    found = Fit(tuple(_regime(data, lines, line, reach) for line in chosen), ())
    fitted = np.array([found.time_s(size) for size in data.sizes])
    relative = data.times_s / np.where(fitted > 0, fitted, np.nan) - 1
    off = np.flatnonzero(~(np.abs(relative) <= _OFF))
    return Fit(found.regimes, tuple((float(data.sizes[i]), float(np.nan_to_num(relative[i], nan=np.inf))) for i in off))


def _choose(data: Points, lines: Lines) -> list[int]:
    """Return the lines, one per regime, with the lowest BIC: α, β and a breakpoint are three parameters each."""
    count = len(data.sizes)
    clipped = np.minimum(lines.residuals**2, (_CLIPPED * data.noise) ** 2)
    place = np.arange(count)
    costs = np.sum(clipped, axis=1, where=(place >= lines.first[:, None]) & (place < lines.last[:, None]))
    index = {run: i for i, run in enumerate(zip(lines.first.tolist(), lines.last.tolist(), strict=True))}

    def score(chain: list[int]) -> float:
        parameters = 3 * len(chain) - 1
        variance = float(costs[chain].sum()) / (count - parameters)
        return count * log(max(variance, _LEAST_VARIANCE)) + parameters * log(count)

    return min(_chains(index, count), key=score)


def _chains(index: dict[tuple[int, int], int], count: int) -> Iterator[list[int]]:
    """Yield every way to cover the points by up to three of the runs."""
    gaps = sorted({first for first, _ in index} - {0})
    for breaks in range(_MOST):
        for cut in combinations(gaps, breaks):
            runs = list(pairwise((0, *cut, count)))
            if all(run in index for run in runs):
                yield [index[run] for run in runs]


def _reach(data: Points, lines: Lines, chosen: list[int]) -> float:
    """Return Student's quantile times the relative standard deviation of all regimes: Huber, Robust Statistics (1981), 7.6."""
    weights, residuals = lines.weights[chosen], lines.residuals[chosen]
    kept = weights > 0
    spare = max(1, int(kept.sum()) - 2 * len(chosen))
    linear = max(0.1, float(np.mean(weights[kept] == 1)))
    deviation = sqrt(float(np.sum((weights * residuals) ** 2)) / spare) / linear
    return t_quantile(0.975, spare) * deviation


def _regime(data: Points, lines: Lines, line: int, reach: float) -> FitSegment:
    kept = lines.weights[line] > 0
    a, b = 1 / data.times_s[kept], data.sizes[kept] / data.times_s[kept]
    aa, ab, bb = a @ a, a @ b, b @ b
    determinant = float(determined(aa, ab, bb))
    alpha, beta = float(lines.alpha_s[line]), float(lines.s_per_byte[line])
    first, last = float(data.sizes[lines.first[line]]), float(data.sizes[lines.last[line] - 1])
    return FitSegment(
        first, last, _bounds(alpha, reach * sqrt(float(bb) / determinant)), _bounds(beta, reach * sqrt(float(aa) / determinant))
    )


def _bounds(value: float, reach: float) -> Bounds:
    return Bounds(value, value - reach, value + reach)
