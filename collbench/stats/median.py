"""The median and how well it is known. Pure numpy.

The interval is rank-based, and widened for the correlation between samples. The variance of the sum of sign(x - median) comes from its
first B cosine coefficients. Each is an independent estimate for the slow part of the series. The quantile is Student's with B degrees
of freedom: Lazarus, Lewis, Stock and Watson, "HAR Inference: Recommendations for Practice", JBES 2018. They recommend
B = 0.4 n^(2/3). Here it is 0.25 n^(2/3), at least 6, since recorded series are correlated over 20 to 100 samples. The interval is never
narrower than for independent samples.

Simulated coverage of the 95 % interval in % (Gaussian AR(1), ranks make every monotone marginal the same; 600-4000 series each):

    ρ      n = 6    8     10    15    20    60    200   600   3000
    0        97    99    100    99    98    97    97    97    96
    0.3      92    97     99    98    97    97    96    96    95
    0.5      84    93     97    95    95    96    96    95    94
    0.7      71    82     89    91    91    95    95    96    95

If the series ends as soon as the interval is narrow enough, as the protocol does, the coverage is 92-96 %. For series drawn in blocks
from recorded runs it is 92, 94, 93 % at n = 60, 200, 600 with blocks of 20, 40, 40 samples. A correlation over more than a third of the
series cannot be detected here: 89 % with blocks of 30 at n = 60; `drift` may detect it.

The correlation of 6 to 10 samples cannot be detected. To reject series that seem correlated does not help: the coverage of the others is
67 instead of 71 % at n = 6 and ρ = 0.7. So the interval is min-max, the widest that the samples allow, and is valid for independent
samples only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import ceil, exp, floor, hypot, lgamma, log1p, log2, pi, sqrt, tan

import msgspec
import numpy as np
from numpy.typing import NDArray

# Quantiles of Student's t, for any real number of degrees of freedom from 1 on.

_HALVINGS = 54
_POINTS = 64
_NEWTON_STEPS = 5


@cache
def _gauss_legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 64 nodes and weights of Gauss-Legendre quadrature.

    The nodes are the roots of the Legendre polynomial, found by Newton's method (Numerical Recipes, 4.6). To import numpy's takes each
    rank 2 MiB and 8 ms.
    """
    nodes = np.cos(pi * (np.arange(_POINTS) + 0.75) / (_POINTS + 0.5))
    for _ in range(_NEWTON_STEPS):
        before = np.zeros(_POINTS)
        polynomial = np.ones(_POINTS)
        for degree in range(1, _POINTS + 1):
            after = ((2 * degree - 1) * nodes * polynomial - (degree - 1) * before) / degree
            before = polynomial
            polynomial = after
        slope = _POINTS * (nodes * polynomial - before) / (nodes**2 - 1)
        nodes -= polynomial / slope
    return nodes, 2 / ((1 - nodes**2) * slope**2)


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the value that a Student variable with `degrees` of freedom stays below with `probability`.

    With t = √degrees · tan θ the density becomes Γ((ν+1)/2) / (√π Γ(ν/2)) · cos^(ν-1) θ (ν: the degrees). 64 Gauss-Legendre
    points integrate it to more than ten digits; θ is found by bisection. Raises ValueError outside 0 < p < 1 and ν ≥ 1.
    """
    if not 0 < probability < 1 or not degrees >= 1:
        raise ValueError(f"no quantile of Student's t for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _mass(middle, degrees) > probability - 0.5 else (middle, high)
    return sqrt(degrees) * tan((low + high) / 2)


def _mass(angle: float, degrees: float) -> float:
    """Return the probability of an angle between 0 and `angle`."""
    scale = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(pi)
    near = min(angle, 40 / sqrt(degrees))  # the rest is less than the precision of a double
    nodes, weights = _gauss_legendre()
    return scale * near / 2 * float(weights @ np.cos(near / 2 * (nodes + 1)) ** (degrees - 1))


_Z95 = 1.959963984540054
_NORMAL = 1e6  # degrees of freedom from which Student's t is normal to six digits
_CONFIDENCE = 0.95  # which fewer than 6 samples cannot reach with any pair of order statistics
_LEAST_FOR_MEMORY = 10  # up to here the correlation of samples cannot be detected


class Median(msgspec.Struct, frozen=True):
    """A median with its rank-based 95 % interval, all in the samples' unit.

    value      0 without valid samples (n = 0)
    ci_low/high  None with fewer than 6 samples. Both equal the median when all samples are equal: the series cannot show the clock's
    step
    n          number of valid samples: finite and not negative
    n_eff      effective number of independent samples; None for a short (up to 10) or constant series
    """

    value: float
    ci_low: float | None
    ci_high: float | None
    n: int
    n_eff: float | None

    @property
    def half_width(self) -> float | None:
        """Half the interval relative to the median, or None without an interval."""
        if self.ci_low is None or self.ci_high is None or self.value <= 0:
            return None
        return (self.ci_high - self.ci_low) / 2 / self.value


def median(samples: NDArray[np.float64], confidence: float = _CONFIDENCE) -> Median:
    """Return the median of the valid samples of a series in measurement order; autocorrelation of sign(x - median) widens its interval.

    confidence: of the interval, at least 0.95.
    """
    series = sound(samples)
    n = len(series)
    if n == 0:
        return Median(0.0, None, None, 0, None)
    ordered = np.sort(series)
    memory, cosines = _memory(series, middle(ordered))
    low, high = _interval(ordered, memory, cosines, confidence)
    return Median(middle(ordered), low, high, n, None if memory is None else n / max(memory, 1.0))


def sound(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the valid samples in their order: finite and not negative."""
    series = np.asarray(samples, np.float64)
    return series[np.isfinite(series) & (series >= 0)]


def quantiles(samples: NDArray[np.float64]) -> dict[str, float]:
    """Return min, p95, p99 and max of the valid samples, in their unit; all 0 without any."""
    series = np.sort(sound(samples))
    ordered = series if len(series) else np.zeros(1)
    return {name: quantile(ordered, share) for name, share in (("min", 0.0), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))}


def middle(ordered: NDArray[np.float64] | Sequence[float]) -> float:
    """Return the median of values in ascending order (at least one), as numpy's, which sorts again and imports numpy.ma."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (float(ordered[half - 1]) + float(ordered[half])) / 2


def quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile (0 to 1) of values in ascending order (at least one), interpolated as numpy's."""
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (place - below)


def _memory(samples: NDArray[np.float64], centre: float) -> tuple[float | None, int]:
    """Return (relative variance of the sum of signs about the median, number of cosines in its estimate).

    The variance is relative to that of independent signs. (None, 0) if it cannot be estimated.
    """
    n = len(samples)
    if n <= _LEAST_FOR_MEMORY:
        return None, 0
    signs = np.sign(samples - centre)
    signs -= signs.mean()  # with values equal to the median, as a clock's ticks cause them, the signs do not balance
    variance = float(signs @ signs) / n
    if variance == 0:
        return None, 0
    cosines = max(int(0.25 * n ** (2 / 3)), min(n // 3, 6))
    return float(np.mean(_cosine_coefficients(signs, cosines) ** 2)) / variance, cosines


def _cosine_coefficients(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return √(2/n) Σ values[i] cos(π k (i + ½) / n) for k = 1 … count, by one FFT: Makhoul, IEEE Trans. ASSP 28 (1980)."""
    n = len(values)
    folded = np.concatenate([values[::2], values[1::2][::-1]])
    k = np.arange(1, count + 1)
    turned: NDArray[np.float64] = (np.fft.fft(folded)[1 : count + 1] * np.exp(-0.5j * np.pi * k / n)).real * sqrt(2 / n)
    return turned


def fewest_for(confidence: float) -> int:
    """Return the number of samples from which their minimum and maximum cover the median with this probability: 6 for 0.95."""
    return ceil(1 - log2(1 - confidence))


def _interval(ordered: NDArray[np.float64], memory: float | None, cosines: int, confidence: float) -> tuple[float | None, float | None]:
    """Return the order statistics that many ranks below and above the middle (normal approximation of the binomial)."""
    n = len(ordered)
    if n < fewest_for(confidence):
        return None, None
    reach = n / 2
    if n > _LEAST_FOR_MEMORY:
        upper = (1 + confidence) / 2
        z = _Z95 if confidence == _CONFIDENCE else t_quantile(upper, _NORMAL)
        widest = z if memory is None else max(z, t_quantile(upper, cosines) * sqrt(memory))
        reach = widest * sqrt(n) / 2
    rank = max(0, floor(n / 2 - reach))
    low, high = float(ordered[rank]), float(ordered[n - 1 - rank])
    if low < high:
        return low, high
    # so many samples are equal that the interval would be a point: it is as wide as the clock's tick
    steps = np.diff(ordered)
    half = float(np.min(steps[steps > 0], initial=np.inf)) / 2
    return (max(0.0, low - half), low + half) if half < np.inf else (low, low)


# Drift: whether the last third of a series differs from its first.
#
# Simulated, log-normal AR(1):
# - alarms in stationary series (σ 2 and 20 %, ρ up to 0.7): at most 3 % from n = 45 on; at n = 30 under 1 % for ρ up to 0.5, 5 % at 0.7;
# - detected rise by 10 % over the series, or step of 10 % in its middle (ρ = 0 … 0.5): with σ = 1 % all from n = 30 on; with σ = 5 %
#   70-98 % and 98-100 % at n = 200; with σ = 10 % 97 % and all at n = 1000.

_DRIFT_FEWEST = 30  # samples: ten per third
_HALF_WIDTHS, _LEAST = 3, 0.02
_OF_DIFFERENCE = 1.25  # 3 half-widths of the whole are 3 / √(3 + 3) of those of a difference of its thirds


def drift(samples: NDArray[np.float64], half_width: float | None) -> float | None:
    """Return the relative change of the median from the first third of the series to the last, when it is significant; else None.

    None when it is at most max(3 half-widths, 2 %), with fewer than 30 samples or without a half-width (`Median.half_width`).
    Positive: the series became slower.
    """
    series = sound(samples)
    third = len(series) // 3
    if len(series) < _DRIFT_FEWEST or half_width is None:
        return None
    first, last = median(series[:third]), median(series[-third:])
    if first.value <= 0 or first.half_width is None or last.half_width is None:
        return None
    # a valid interval of a drifting series is so wide that it contains the drift; the thirds show the noise without it
    noise = min(_HALF_WIDTHS * half_width, _OF_DIFFERENCE * hypot(first.half_width, last.half_width))
    change = last.value / first.value - 1
    return change if abs(change) > max(noise, _LEAST) else None


# Two modes: a series around two values is not described by one number.
#
# Simulated (n = 20 … 3000, 200-1500 series each):
# - false alarms: at most 0.2 % for log-normal, heavy-tailed, spiky and AR(1) series (ρ = 0.7). None if a 10 ns clock rounds values of
#   0.2-1 µs, except 0.5 % at n = 30. 0.9 % for a uniform series, the hardest, and for ρ = 0.9;
# - detected: "2.3 µs 82 % / 10.7 µs 18 %" with 5 % of noise in 24, 93, 99.7, 100 % at n = 30, 60, 200, 1000; two equal modes 10 % apart
#   with 1 % of noise in 98 % at n = 30, and in all from 60 on.

_MODES_FEWEST = 20
_SHARE, _APART, _ROBUST_SDS = 0.1, 0.05, 3.0
_SD_PER_MAD = 1.4826
_TAILS = (0.02, 0.98)
_VALLEY, _SIGMAS = 0.5, 2.6
_WINDOWS = 33  # tried across the valley
_ROUNDING = 1e-6  # relative; smaller steps are rounding of a double
_TICKS = 1e9  # smaller ticks have no effect, and a double cannot hold their multiples as integers
Values = NDArray[np.float64]


class Mode(msgspec.Struct, frozen=True):
    """One mode of a series: the median of its samples, and their share of all (0 to 1)."""

    value: float
    share: float


def modes(samples: Values) -> tuple[Mode, Mode] | None:
    """Return the two modes of a series, the fast one first; None if one number describes it.

    Each has at least 10 % of the samples. The centers are at least 5 % and 3 robust standard deviations (1.4826 MAD) apart.
    Between them is a valley: a window, a third of their distance wide, with less than half of the samples of the lesser mode's
    window, and too few by 2.6 standard deviations of a count. A density with one mode has no such valley, even if it is skewed.
    Samples that share a tick of the clock are spread over it, so that adjacent ticks are one mode.
    """
    series = np.sort(sound(samples))
    series = _spread_ticks(series[series > 0])
    n = len(series)
    if n < _MODES_FEWEST:
        return None
    logs = np.log(series)
    cut, _ = _valley(logs, _best_split(logs))
    cut, deep = _valley(logs, cut)
    if not deep or min(cut, n - cut) < _SHARE * n or not _apart(logs[:cut], logs[cut:]):
        return None
    return Mode(middle(series[:cut]), cut / n), Mode(middle(series[cut:]), (n - cut) / n)


def _spread_ticks(ordered: Values) -> Values:
    """Return the values with equal ones spread evenly over the clock's tick: the smallest step, if it divides all values."""
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
    """Return the size of the lower of the two classes of ordered values with the largest difference of means (Otsu); tails are clipped."""
    n = len(logs)
    clipped = np.clip(logs, quantile(logs, _TAILS[0]), quantile(logs, _TAILS[1]))
    at = np.arange(ceil(_SHARE * n), n - ceil(_SHARE * n) + 1)
    sums = np.cumsum(clipped)
    lower, upper = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (n - at)
    return int(at[np.argmax(at * (n - at) * (upper - lower) ** 2)])


def _valley(logs: Values, cut: int) -> tuple[int, bool]:
    """Return (the cut in the middle of the emptiest window between the centers of the two sides, whether it is a valley)."""
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
    distance = middle(np.sort(slow)) - middle(np.sort(fast))
    spread = max(_SD_PER_MAD * middle(np.sort(np.abs(side - middle(np.sort(side))))) for side in (fast, slow))
    return distance >= max(log1p(_APART), _ROBUST_SDS * spread)
