"""Several launches of one cell: the launch, not the iteration, is the unit of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from collbench.stats.student import t_quantile

_RANKED = 6  # below, no pair of order statistics covers the median with 95 %


@dataclass(frozen=True)
class Spread:
    """The median of n figures with its 95 % interval, in their unit; low and high are None with one figure."""

    value: float
    low: float | None
    high: float | None
    n: int


def over_launches(medians: Sequence[float]) -> Spread:
    """The median of launch medians, one figure per launch, with its 95 % interval over launches.

    From 6 on the interval is the narrowest pair of order statistics that covers with 95 % (exact, whatever the noise). For 2 to 5
    there is no such pair: Student's t on ln of the medians, since effects on time multiply; wide, as so few launches say little.
    Simulated coverage with launch effects of 3 % × t₄/√2 (MEASUREMENT.md's noise model), 8000 cells each: 96 % for
    2, 3, 4 and 5 launches; 97, 98 and 96 % for 6, 10 and 20.

    Raises ValueError without a figure, or for one that is not finite and positive.
    """
    return spread(checked(medians))


def checked(medians: Sequence[float]) -> NDArray[np.float64]:
    """The figures as an array. Raises ValueError without one, or for one that is not finite and positive."""
    values = np.asarray(medians, np.float64)
    bad = values[~(np.isfinite(values) & (values > 0))]
    if len(bad):
        raise ValueError(f"the median of a launch is {bad[0]}: it must be finite and positive")
    if not len(values):
        raise ValueError("no median of any launch")
    return values


def spread(values: NDArray[np.float64]) -> Spread:
    """The median of positive figures with its interval, as `over_launches`."""
    n, middle = len(values), float(np.median(values))
    if n == 1:
        return Spread(middle, None, None, 1)
    low, high = _ranked(np.sort(values)) if n >= _RANKED else _student(np.log(values))
    return Spread(middle, low, high, n)


def _ranked(ordered: NDArray[np.float64]) -> tuple[float, float]:
    n = len(ordered)
    rank, below = 0, 2.0 ** (1 - n)  # both tails beyond the outermost pair
    while below + (more := comb(n, rank + 1) / 2 ** (n - 1)) <= 0.05:
        rank, below = rank + 1, below + more
    return float(ordered[rank]), float(ordered[n - 1 - rank])


def _student(logs: NDArray[np.float64]) -> tuple[float, float]:
    n, centre = len(logs), float(logs.mean())
    half = t_quantile(0.975, n - 1) * float(logs.std(ddof=1)) / sqrt(n)
    return float(np.exp(centre - half)), float(np.exp(centre + half))
