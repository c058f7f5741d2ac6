"""The median and how well it is known. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

_Z95 = 1.959963984540054
_FEWEST = 6  # below, no pair of order statistics covers the median with 95 %


@dataclass(frozen=True)
class Median:
    """A median with its rank-based 95 % interval.

    n_eff      how many independent samples the series is worth; None when the series is too short or constant
    ci_low/high  None when there are too few effective samples for any 95 % interval
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


def median(samples: NDArray[np.float64]) -> Median:
    """The median of a series in the order it was measured, its interval widened for autocorrelation of sign(x - median)."""
    n = len(samples)
    middle = float(np.median(samples))
    n_eff = effective_n(samples)
    low, high = _interval(np.sort(samples), n_eff if n_eff is not None else float(n))
    return Median(middle, low, high, n, n_eff)


def effective_n(samples: NDArray[np.float64]) -> float | None:
    """Independent samples that the series is worth for its median; None for fewer than 6 samples or a constant series.

    n / (1 + 2 Σ ρ_k (1 - k/n)) over the lags up to the first that is not positive: Geyer's initial positive sequence on the
    signs around the median.
    """
    n = len(samples)
    signs = np.sign(samples - np.median(samples))
    variance = float(np.dot(signs, signs)) / n if n else 0.0
    if n < _FEWEST or variance == 0:
        return None
    inflation = 1.0
    for lag in range(1, n // 2):
        rho = float(np.dot(signs[:-lag], signs[lag:])) / ((n - lag) * variance)
        if rho <= 0:
            break
        inflation += 2 * rho * (1 - lag / n)
    return n / inflation


def _interval(ordered: NDArray[np.float64], n_eff: float) -> tuple[float | None, float | None]:
    """Order statistics that cover the median with 95 % (normal approximation of the binomial from 6 on: min–max)."""
    n = len(ordered)
    if n_eff < _FEWEST:
        return None, None
    reach = _Z95 * sqrt(n_eff) / 2 * (n / n_eff)
    low, high = floor(n / 2 - reach), ceil(n / 2 + reach)
    return float(ordered[max(0, low)]), float(ordered[min(n - 1, high)])


def quantiles(samples: NDArray[np.float64]) -> dict[str, float]:
    """min, p95, p99 and max in the samples' unit."""
    values = np.quantile(samples, [0, 0.95, 0.99, 1])
    return dict(zip(("min", "p95", "p99", "max"), map(float, values), strict=True))
