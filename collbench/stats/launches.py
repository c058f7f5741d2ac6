"""Medians and ratios over several launches of one test case: the launch, not the iteration, is the unit of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, exp, hypot, log, sqrt
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.columns import column
from collbench.stats.median import Median, middle, t_quantile

_FEWEST_OF_A_SCATTER = 3
_ROUNDING = 1e-12  # relative
_RANKED = 6  # with fewer values no pair of order statistics covers the median with 95 %


class Spread(msgspec.Struct, frozen=True):
    """The median of n values with its 95 % interval, in their unit; low and high are None with one value."""

    value: Annotated[float, column("{}")]
    low: Annotated[float | None, column("{} The lower end of its 95 % confidence interval.")]
    high: Annotated[float | None, column("{} The upper end of its 95 % confidence interval.")]
    n: Annotated[int, column("{} The number of values.")]


def over_launches(medians: Sequence[float]) -> Spread:
    """Return the median of launch medians, one value per launch, with its 95 % interval over launches.

    From 6 on the interval is the narrowest pair of order statistics that covers with 95 % (exact, for any noise). For 2 to 5
    there is no such pair: Student's t on ln of the medians, since effects on time multiply. It is wide, because so few launches
    give little information.
    Simulated coverage with launch effects of 3 % × t₄/√2 (MEASUREMENT.md's noise model), 8000 cases each: 96 % for
    2, 3, 4 and 5 launches; 97, 98 and 96 % for 6, 10 and 20.

    Raises ValueError without a value, or for one that is not finite and positive.
    """
    return spread(checked(medians))


def checked(medians: Sequence[float]) -> NDArray[np.float64]:
    """Return the values as an array. Raises ValueError without one, or for one that is not finite and positive."""
    values = np.asarray(medians, np.float64)
    bad = values[~(np.isfinite(values) & (values > 0))]
    if len(bad):
        raise ValueError(f"the median of a launch is {bad[0]}: it must be finite and positive")
    if not len(values):
        raise ValueError("no median of any launch")
    return values


def spread(values: NDArray[np.float64]) -> Spread:
    """Return the median of positive values with its interval, as `over_launches` does."""
    n = len(values)
    centre_value = middle(np.sort(values))
    if n == 1:
        return Spread(centre_value, None, None, 1)
    if n < _RANKED:
        logs = np.log(values)
        centre, half = float(logs.mean()), t_quantile(0.975, n - 1) * float(logs.std(ddof=1)) / sqrt(n)
        # rounding moves the centre of equal values off the value
        low = min(centre_value, float(np.exp(centre - half)))
        high = max(centre_value, float(np.exp(centre + half)))
        return Spread(centre_value, low, high, n)
    rank, below = 0, 2.0 ** (1 - n)  # outside the outermost pair, both tails
    while below + (more := comb(n, rank + 1) / 2 ** (n - 1)) <= 0.05:
        rank, below = rank + 1, below + more
    ordered = np.sort(values)
    return Spread(centre_value, float(ordered[rank]), float(ordered[n - 1 - rank]), n)


# Ratios of two measurements, after / before, with their 95 % intervals. A ratio of times above 1 means slower.
#
# Two intervals on the ln scale are combined as recovered variances (Zou and Donner, Statistics in Medicine 27, 2008): in quadrature, each
# side separately, the distances from each value to the ends of its own interval.


class Ratio(Spread, frozen=True):
    """after / before with its 95 % interval, None if it is unknown.

    n  number of launches (or pairs), on the side with fewer; number of samples for `ratio_of_medians`
    """


def ratio_of_launches(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Return the ratio of the medians of launch medians.

    Six launches or more on both sides: the rank intervals of both, combined. Fewer: Welch's t on ln of the launch medians, widened
    to contain the value. One launch on a side: no interval. Simulated coverage with launch effects of 3 % × t₄/√2, 4000 cases each:
    98, 97, 97 % for 2, 3, 5 launches a side, 99 % for 6 and 10, 95 % for 5 against 20, but 92 % for 2 against 10.

    Raises ValueError for medians that are not finite and positive, or none.
    """
    a, b = checked(before), checked(after)
    n = min(len(a), len(b))
    if n >= _RANKED:
        return _combined(spread(a), spread(b), n)
    value = middle(np.sort(b)) / middle(np.sort(a))
    low, high = _welch(np.log(a), np.log(b), value) if n > 1 else (None, None)
    return Ratio(value, low, high, n)


def ratio_of_medians(before: Median, after: Median) -> Ratio:
    """Return the ratio of two medians. Its interval is from those *within* one launch each: another launch may differ by more.

    No interval where one is missing, or reaches zero. Raises ValueError when a median is not finite and positive.
    """
    checked([before.value, after.value])
    a, b = (Spread(each.value, each.ci_low, each.ci_high, each.n) for each in (before, after))
    return _combined(a, b, min(a.n, b.n))


def ratio_by_scatter(within: Ratio, medians: Sequence[float], numbers: tuple[int, int]) -> Ratio:
    """Return the ratio of two sides, of which one has one launch, with an interval by the scatter of launch medians.

    within   the ratio with the interval from within the launches, which is added in quadrature
    medians  of launches of the same case: those of one side, or other ones; numbers: of launches of both sides

    Student's t on ln of the medians: the difference of two new launches has their variance twice. Fewer than 3 medians, or a scatter
    of 0, which is one of rounded figures: `within` unchanged. Simulated with launch effects of 3 % × t₄/√2, 4000 unchanged cases each:
    at most 5 % are outside for 3, 5 and 20 medians.
    """
    if len(medians) < _FEWEST_OF_A_SCATTER:
        return within
    values = checked(medians)
    if not _scatters(values):
        return within
    deviation = float(np.log(values).std(ddof=1))
    half = t_quantile(0.975, len(medians) - 1) * deviation * sqrt(1 / numbers[0] + 1 / numbers[1])
    down, up = (abs(log(end / within.value)) if end else 0.0 for end in (within.low, within.high))
    return Ratio(within.value, within.value * exp(-hypot(half, down)), within.value * exp(hypot(half, up)), len(medians))


def ratio_of_pairs(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Return the median of the ratios of interleaved pairs (before[i], after[i]), with its interval over pairs as for launches.

    Effects on both values of a pair (the state of the machine, neighbors) cancel. Raises ValueError for different lengths, and for
    values that are not finite and positive, or none.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} figures before and {len(after)} after: must be equally many")
    known = spread(checked(after) / checked(before))
    return Ratio(known.value, known.low, known.high, known.n)


def _scatters(values: NDArray[np.float64]) -> bool:
    """Return whether the values differ by more than a double is rounded, which gives logarithms of equal values a deviation of 1e-15."""
    return bool(values.max() > values.min() * (1 + _ROUNDING))


def _combined(a: Spread, b: Spread, n: int) -> Ratio:
    value = b.value / a.value
    if a.low is None or a.high is None or b.low is None or b.high is None or min(a.low, b.low) <= 0:
        return Ratio(value, None, None, n)
    down = hypot(log(b.value / b.low), log(a.high / a.value))
    up = hypot(log(b.high / b.value), log(a.value / a.low))
    return Ratio(value, value * exp(-down), value * exp(up), n)


def _welch(a: NDArray[np.float64], b: NDArray[np.float64], value: float) -> tuple[float, float]:
    """Return the interval of exp(mean of b - mean of a), extended to contain `value`, the ratio of medians."""
    of_a, of_b = (float(each.var(ddof=1)) / len(each) for each in (a, b))
    error = of_a + of_b
    if error == 0:
        return value, value
    degrees = error**2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    centre, half = float(b.mean() - a.mean()), t_quantile(0.975, max(1.0, degrees)) * sqrt(error)
    return min(value, exp(centre - half)), max(value, exp(centre + half))


def inverse(ratio: Ratio) -> Ratio:
    """Return 1 / ratio, with its interval."""
    return Ratio(1 / ratio.value, ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low, ratio.n)
