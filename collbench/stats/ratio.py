"""Ratios of two measurements, after / before, with their 95 % intervals; above 1: slower, when times are compared.

Two intervals on ln scale are combined as recovered variances (Zou and Donner, Statistics in Medicine 27, 2008): the distances from
each value to the ends of its own interval, in quadrature, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt

import numpy as np
from numpy.typing import NDArray

from collbench.stats.launches import Spread, checked, spread
from collbench.stats.median import Median
from collbench.stats.student import t_quantile

_RANKED = 6


@dataclass(frozen=True)
class Ratio:
    """after / before with its 95 % interval, None where there is none.

    n  launches (or pairs) behind it, on the side that has fewer; samples for `ratio_of_medians`
    """

    value: float
    low: float | None
    high: float | None
    n: int


def ratio_of_launches(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """The ratio of the medians of launch medians.

    Six launches or more on both sides: the rank intervals of both, combined. Fewer: Welch's t on ln of the launch medians, stretched
    to hold the value. One launch on a side: no interval. Simulated coverage with launch effects of 3 % × t₄/√2, 4000 cells each:
    98, 97, 97 % for 2, 3, 5 launches a side, 99 % for 6 and 10, 95 % for 5 against 20, but 92 % for 2 against 10.

    Raises ValueError for medians that are not finite and positive, or none.
    """
    a, b = checked(before), checked(after)
    n = min(len(a), len(b))
    if n >= _RANKED:
        return _combined(spread(a), spread(b), n)
    value = float(np.median(b) / np.median(a))
    low, high = _welch(np.log(a), np.log(b), value) if n > 1 else (None, None)
    return Ratio(value, low, high, n)


def ratio_of_medians(before: Median, after: Median) -> Ratio:
    """The ratio of two medians, its interval from those *within* one launch each: another launch may differ by more.

    No interval where one is missing, or reaches zero. Raises ValueError when a median is not finite and positive.
    """
    checked([before.value, after.value])
    a, b = (Spread(each.value, each.ci_low, each.ci_high, each.n) for each in (before, after))
    return _combined(a, b, min(a.n, b.n))


def ratio_of_pairs(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """The median of the ratios of interleaved pairs (before[i], after[i]), with its interval over pairs as for launches.

    What both of a pair share (the state of the machine, neighbours) cancels. Raises ValueError for sides of unequal length, and for
    figures that are not finite and positive, or none.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} figures before and {len(after)} after are no pairs")
    known = spread(checked(after) / checked(before))
    return Ratio(known.value, known.low, known.high, known.n)


def _combined(a: Spread, b: Spread, n: int) -> Ratio:
    value = b.value / a.value
    if a.low is None or a.high is None or b.low is None or b.high is None or min(a.low, b.low) <= 0:
        return Ratio(value, None, None, n)
    down = hypot(log(b.value / b.low), log(a.high / a.value))
    up = hypot(log(b.high / b.value), log(a.value / a.low))
    return Ratio(value, value * exp(-down), value * exp(up), n)


def _welch(a: NDArray[np.float64], b: NDArray[np.float64], value: float) -> tuple[float, float]:
    """The interval of exp(mean of b - mean of a); it holds `value`, the ratio of medians, too."""
    of_a, of_b = (float(each.var(ddof=1)) / len(each) for each in (a, b))
    error = of_a + of_b
    if error == 0:
        return value, value
    degrees = error**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    centre, half = float(b.mean() - a.mean()), t_quantile(0.975, max(1.0, degrees)) * sqrt(error)
    return min(value, exp(centre - half)), max(value, exp(centre + half))
