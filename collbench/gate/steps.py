"""Where a series over allocations steps from one level to another, and stays there for three allocations at least.

The levels are those that explain the series best at a price for each (optimal partitioning: Jackson et al. 2005). Of neighbours the
medians have to differ by more than five of their standard errors, and by more than the rule's floor; else they are one. Five and not
three as for a single allocation, since every place of every series is looked at.

Simulated with the noise of `gate.noise`, 336 cells, allocations of three launches, 300 histories (tests/gate/test_steps.py). Of 20
allocations in which nothing changed, 0.7 % of the histories have a cell with a step, none a group or the whole with one; a step in the
middle is found of one large cell by 5 % in 89 %, by 10 % in 99 %, of a large group by 2 % in 89 %, by 5 % in all. Of 8 allocations:
0.3 % and none; 53, 93, 24 and 99 %. A slow drift is told as several steps; the last two allocations make no level of their own: of
them the gate is to be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from collbench.gate.scheme import Figures, Numbers, known_median

LEAST = 3  # allocations of a level: fewer may be chance
_ERRORS = 5.0
_AT_ONCE = 2000  # series: more would leave the processor's cache
_PRICE = 10.0  # of another level, in variances: what chance explains costs less
_LEAST_VARIANCE = 1e-8  # a hundredth of a percent: no clock is better, and roundings are no steps
_OF_MEDIAN = pi / 2  # the variance of a median over that of a mean, for a normal distribution
_LARGEST = 0.285  # the square of NormalDist().inv_cdf(1 - _LARGEST / m) is what the largest of m squares of normal numbers usually is


class Step(NamedTuple):
    """A change of level, in ln of time.

    before, at  the numbers of the last allocation on the old level and of the first on the new one
    change      the difference of the levels' medians; positive: slower
    error       its standard error
    limit       what it exceeds, to either side
    """

    before: int
    at: int
    change: float
    error: float
    limit: float


def scatter(values: Figures) -> Figures:
    """[allocations × series] -> [series] the variance from one allocation to the next; NaN of fewer than three.

    From successive differences, without the largest, so that a step does not count as chance.
    """
    return typical(_successive(values)) / 2


def typical(squares: Figures) -> Figures:
    """[… × series] -> [series] the mean of squares of normal numbers, whose largest is left out: it may be no chance. NaN: fewer than 2."""
    known = np.isfinite(squares)
    counts = known.sum(axis=0)
    kept = np.where(known, squares, 0.0)
    usual = np.array([NormalDist().inv_cdf(1 - _LARGEST / max(count, 2)) ** 2 for count in range(len(squares) + 1)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 1, (kept.sum(axis=0) - kept.max(axis=0, initial=0.0)) / (counts - usual[counts]), np.nan)


def steps(values: Figures, variance: Figures, floors: Figures) -> list[list[Step]]:
    """Of each series in [allocations × series], NaN where not measured, its steps in time; [series] variances between allocations."""
    price = _PRICE * np.maximum(np.nan_to_num(variance), _LEAST_VARIANCE)
    parts = [slice(first, first + _AT_ONCE) for first in range(0, values.shape[1], _AT_ONCE)]
    starts = [each for part in parts for each in _levels(values[:, part], price[part])]
    found: list[list[Step]] = [[] for _ in starts]
    for number, each in enumerate(starts):
        if len(each) > 1:
            found[number] = _sure(values[:, number], each, float(variance[number]), float(floors[number]))
    return found


def level_starts(found: Sequence[Step]) -> list[int]:
    """The first allocations of all levels."""
    return [0, *(step.at for step in found)]


def _successive(values: Figures) -> Figures:
    """Squares of the differences of each known value to the known one before it."""
    last = np.full(values.shape[1], np.nan)
    found = np.full(values.shape, np.nan)
    for number, each in enumerate(values):
        found[number] = (each - last) ** 2
        last = np.where(np.isfinite(each), each, last)
    return found


def _levels(values: Figures, price: Figures) -> list[list[int]]:
    """Of each series the first allocations of its levels: least squares, and a price for each level."""
    count, series = values.shape
    known, sums, squares = _running(values)
    costs = np.full((count + 1, series), np.inf)
    costs[0] = 0.0
    came = np.zeros((count + 1, series), dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        for end in range(LEAST, count + 1):
            for start in (0, *range(LEAST, end - LEAST + 1)):
                number = known[end] - known[start]
                within = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / number
                cost = np.where(number >= LEAST, costs[start] + within + price, np.inf)
                better = cost < costs[end]
                costs[end], came[end] = np.where(better, cost, costs[end]), np.where(better, start, came[end])
    return [_back(came[:, number]) for number in range(series)]


def _running(values: Figures) -> tuple[Figures, Figures, Figures]:
    """[1 + allocations × series] how many are known up to each, their sum, and that of their squares, around the series' median."""
    known = np.isfinite(values)
    around = np.where(known, values - known_median(values.T), 0.0)
    nothing = np.zeros((1, values.shape[1]))
    known_before, sums, squares = (np.vstack([nothing, each.cumsum(axis=0)]) for each in (known.astype(float), around, around**2))
    return known_before, sums, squares


def _back(came: Numbers) -> list[int]:
    starts = [int(came[-1])]
    while starts[-1] > 0:
        starts.append(int(came[starts[-1]]))
    return starts[::-1]


def _sure(values: Figures, starts: list[int], variance: float, floor: float) -> list[Step]:
    """The steps between levels, of which the least sure one goes until all are."""
    ends = [*starts[1:], len(values)]
    levels = [np.flatnonzero(np.isfinite(values[start:end])) + start for start, end in zip(starts, ends, strict=True)]
    while True:
        found = [_step(values, old, new, variance, floor) for old, new in pairwise(levels)]
        weakest = min(range(len(found)), key=lambda each: abs(found[each].change) / found[each].limit, default=None)
        if weakest is None or abs(found[weakest].change) > found[weakest].limit:
            return found
        levels[weakest : weakest + 2] = [np.concatenate(levels[weakest : weakest + 2])]


def _step(values: Figures, old: Numbers, new: Numbers, variance: float, floor: float) -> Step:
    """No change where one of the levels has fewer allocations than a level takes that are nearer to it than to the other."""
    before, after = float(np.median(values[old])), float(np.median(values[new]))
    is_new = [np.abs(values[each] - after) < np.abs(values[each] - before) for each in (old, new)]
    firm = min(int((~is_new[0]).sum()), int(is_new[1].sum())) >= LEAST
    error = sqrt(variance * _OF_MEDIAN * (1 / len(old) + 1 / len(new)))
    return Step(int(old[-1]), int(new[0]), after - before if firm else 0.0, error, max(floor, _ERRORS * error))
