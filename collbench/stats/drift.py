"""Drift: whether the last third of a series differs from its first.

Simulated, log-normal AR(1). Alarms in stationary series (σ 2 and 20 %, ρ up to 0.7): at most 3 % from n = 45 on, at n = 30 under 1 %
for ρ up to 0.5 and 5 % at 0.7. Found of a rise by 10 % over the series, or a step of 10 % in its middle (ρ = 0 … 0.5): σ = 1 %: all
from n = 30 on; σ = 5 %: 70-98 % and 98-100 % at n = 200; σ = 10 %: 97 % and all at n = 1000. What noise hides, the interval tells.
"""

from __future__ import annotations

from math import hypot

import numpy as np
from numpy.typing import NDArray

from collbench.stats.median import median, sound

_FEWEST = 30  # samples: ten per third
_HALF_WIDTHS, _LEAST = 3, 0.02
_OF_DIFFERENCE = 1.25  # 3 half-widths of a whole are 3 / √(3 + 3) of those of a difference of its thirds


def drift(samples: NDArray[np.float64], half_width: float | None) -> float | None:
    """The relative change of the median from the first third of the series to the last, when it is too large for one number.

    None when it is at most max(3 half-widths, 2 %), with fewer than 30 samples or without a half-width (`Median.half_width`).
    Positive: the series became slower.
    """
    series = sound(samples)
    third = len(series) // 3
    if len(series) < _FEWEST or half_width is None:
        return None
    first, last = median(series[:third]), median(series[-third:])
    if first.value <= 0 or first.half_width is None or last.half_width is None:
        return None
    # an honest interval of a drifting series is so wide that it holds the drift: the thirds know the noise without it
    noise = min(_HALF_WIDTHS * half_width, _OF_DIFFERENCE * hypot(first.half_width, last.half_width))
    change = last.value / first.value - 1
    return change if abs(change) > max(noise, _LEAST) else None
