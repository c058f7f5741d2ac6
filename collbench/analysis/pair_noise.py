"""How far a cell or a place of a pair matrix may be off by chance.

What is left of the cells is taken for Student's t with 4 degrees of freedom, the tails that launches showed. Lighter ones are not
believed even where the cells show them: what a million cells tell of one case in a thousand says nothing of one in a billion. Hence of
many places hardly a single pair is named that was measured but once. The scale is the larger of two: that of the slower half of the
cells, and that of the slowest tenth without the worst. Up to a tenth of the cells may be slow without any harm to it; where more are,
they are no exceptions but how the network is built: the scale grows, and nobody is named.
"""

from __future__ import annotations

import numpy as np

from collbench.analysis.two_way import Figures
from collbench.stats.median import t_quantile

TAILS = 4.0  # degrees of freedom
_MOST_SLOW = 0.1
_LEAST_SLOW = 2
_EXACT = 1e-9  # medians fit some cells exactly: those say nothing of the noise
_MEDIAN_ERROR = 1.34  # of n values of Student's t with 4 degrees, times scale / √n
_SMALLEST_CHANCE = 1e-11


def of_medians(scale: float, cells: Figures) -> Figures:
    """The scale of medians over so many cells each."""
    return _MEDIAN_ERROR * scale / np.sqrt(np.maximum(cells, 1))


def quantile(chance: float, degrees: float) -> float:
    """How many scales Student's t exceeds with this probability (not less than 1e-11, which is as far as it can be computed)."""
    return t_quantile(1 - max(chance, _SMALLEST_CHANCE), degrees)


def noise_scale(rest: Figures) -> float:
    """The scale of a cell that what is left of the cells shows; 0 where medians fit nearly all of them exactly."""
    known = rest[np.isfinite(rest)]
    depths = np.sort(-known[known < -_EXACT])[::-1]
    return max(_near(depths), _far(depths, len(known))) if len(depths) > _LEAST_SLOW else 0.0


def scale_of(effects: Figures) -> float:
    """The scale of the places' effects around their middle, from their median distance."""
    distances = np.sort(np.abs(effects))
    return float(distances[len(distances) // 2]) / quantile(0.25, TAILS) if len(distances) else 0.0


def _near(depths: Figures) -> float:
    return float(np.median(depths)) / quantile(0.25, TAILS)


def _far(depths: Figures, cells: int) -> float:
    worst = min(max(_LEAST_SLOW, int(_MOST_SLOW * cells)), len(depths) - 1)
    return float(depths[worst]) / quantile((worst + 1) / cells, TAILS) if 2 * (worst + 1) < cells else 0.0
