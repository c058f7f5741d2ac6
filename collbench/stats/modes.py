"""Two modes: a series that gathers around two values has no single number.

Simulated (n = 20 … 3000, 200-1500 series each). False alarms: at most 0.2 % for log-normal, heavy-tailed, spiky and AR(1) series
(ρ = 0.7) and none where a 10 ns clock rounds values of 0.2-1 µs, save 0.5 % at n = 30; 0.9 % for a uniform series, the hardest, and
for ρ = 0.9. Found of "2.3 µs 82 % / 10.7 µs 18 %" with 5 % of noise: 24, 93, 99.7, 100 % at n = 30, 60, 200, 1000; of two equal modes
10 % apart with 1 % of noise: 98 % at n = 30, all from 60 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from collbench.stats.median import middle, quantile, sound

_FEWEST = 20
_SHARE, _APART, _ROBUST_SDS = 0.1, 0.05, 3.0
_SD_PER_MAD = 1.4826
_TAILS = (0.02, 0.98)
_VALLEY, _SIGMAS = 0.5, 2.6
_WINDOWS = 33  # tried across the valley
_ROUNDING = 1e-6  # relative; steps below are a double's
_TICKS = 1e9  # finer ticks change nothing, and their multiples are no whole numbers in a double
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Mode:
    """One of the values that a series gathers around: the median of those samples, and their share of all (0 to 1)."""

    value: float
    share: float


def modes(samples: Values) -> tuple[Mode, Mode] | None:
    """The two modes of a series, the fast one first, or None where one number will do.

    Each has at least 10 % of the samples; the centres are at least 5 % and 3 robust standard deviations (1.4826 MAD) apart; and
    between them lies a valley: a window, a third of their distance wide, with less than half of the samples of the lesser mode's
    window, too few by 2.6 standard deviations of a count. A unimodal density has no such valley, however skewed. Samples that
    share a tick of the clock are spread over it, so that neighbouring ticks are one mode.
    """
    series = np.sort(sound(samples))
    series = _spread_ticks(series[series > 0])
    n = len(series)
    if n < _FEWEST:
        return None
    logs = np.log(series)
    cut, _ = _valley(logs, _best_split(logs))
    cut, deep = _valley(logs, cut)
    if not deep or min(cut, n - cut) < _SHARE * n or not _apart(logs[:cut], logs[cut:]):
        return None
    return Mode(middle(series[:cut]), cut / n), Mode(middle(series[cut:]), (n - cut) / n)


def _spread_ticks(ordered: Values) -> Values:
    """Equal values spread evenly over the clock's tick, if there is one: the smallest step, when it divides all values."""
    steps = np.diff(ordered)
    tick = float(np.min(steps[steps > _ROUNDING * ordered[1:]], initial=np.inf))
    if not np.isfinite(tick) or tick * _TICKS < ordered[-1]:
        return ordered
    multiples = ordered / tick
    if np.max(np.abs(multiples - np.round(multiples))) > 1e-3:
        return ordered
    _, first, count = np.unique(np.round(multiples), return_index=True, return_counts=True)
    place = np.arange(len(ordered)) - np.repeat(first, count)
    return ordered + tick * ((place + 0.5) / np.repeat(count, count) - 0.5)


def _best_split(logs: Values) -> int:
    """How many of the ordered values are in the lower of the two classes whose means differ most (Otsu); tails count as their ends."""
    n = len(logs)
    clipped = np.clip(logs, quantile(logs, _TAILS[0]), quantile(logs, _TAILS[1]))
    at = np.arange(ceil(_SHARE * n), n - ceil(_SHARE * n) + 1)
    sums = np.cumsum(clipped)
    lower, upper = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (n - at)
    return int(at[np.argmax(at * (n - at) * (upper - lower) ** 2)])


def _valley(logs: Values, cut: int) -> tuple[int, bool]:
    """(the cut in the middle of the emptiest window between the centres of the two sides, whether that is a valley)."""
    low, high = middle(logs[:cut]), middle(logs[cut:])
    width = (high - low) / 3
    starts = np.linspace(low, high - width, _WINDOWS)
    counts = _count(logs, starts, width)
    emptiest = np.flatnonzero(counts == counts.min())
    start = float(starts[emptiest[len(emptiest) // 2]])
    lesser, left = float(np.min(_count(logs, np.array([low, high]) - width / 2, width))), float(counts.min())
    deep = left < _VALLEY * lesser and lesser - left > _SIGMAS * sqrt(lesser + left)
    moved = int(np.searchsorted(logs, start + width / 2))
    return min(max(moved, 1), len(logs) - 1), deep


def _count(ordered: Values, starts: Values, width: float) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.searchsorted(ordered, starts + width) - np.searchsorted(ordered, starts)
    return counts


def _apart(fast: Values, slow: Values) -> bool:
    distance = float(np.median(slow) - np.median(fast))
    spread = max(_SD_PER_MAD * float(np.median(np.abs(side - np.median(side)))) for side in (fast, slow))
    return distance >= max(log1p(_APART), _ROBUST_SDS * spread)
