"""An axis of ratios to a median, drawn at their log2: half and double are equally far from 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from typing import TYPE_CHECKING

from collbench.report.html.draw import SOFT, fixed_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOWEST, _HIGHEST = 0.05, 20.0  # what is further away stands at the edge
_LEAST = 1.1  # to either side, so that noise does not look like news
# In the order in which they are given a label, while there is room.
_TICKS = (1, 2, 0.5, 10, 0.1, 5, 0.2, 20, 0.05, 1.5, 0.7, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95)


def level(ratio: float) -> float:
    """Where a ratio stands on the axis."""
    return log2(min(_HIGHEST, max(_LOWEST, ratio)))


def ratio_axis(axes: Axes, levels: Sequence[float], upright: bool) -> None:
    """Makes y (or, not upright, x) an axis that holds all `levels`, with 1 marked."""
    low, high = min(-log2(_LEAST), *levels), max(log2(_LEAST), *levels)
    room = 0.05 * (high - low)
    low, high = low - room, high + room
    box = axes.bbox
    ticks = ticks_within(_TICKS, low, high, 16 * (high - low) / box.height if upright else 40 * (high - low) / box.width)
    places, texts = [log2(tick) for tick in ticks], [f"×{tick:g}" for tick in ticks]
    if upright:
        fixed_ticks(axes.yaxis, places, texts)
        axes.set_ylim(low, high)
        axes.set_ylabel("sample / median")
        axes.axhline(0, color=SOFT, linewidth=0.8)
    else:
        fixed_ticks(axes.xaxis, places, texts)
        axes.set_xlim(low, high)
        axes.set_xlabel("sample / median")
        axes.axvline(0, color=SOFT, linewidth=0.8)


def ticks_within(ticks: Sequence[float], low: float, high: float, apart: float, level: Callable[[float], float] = log2) -> list[float]:
    """Those of `ticks` between two levels, in ascending order; of two nearer to one another than `apart` the one named first."""
    chosen: list[float] = []
    for tick in ticks:
        if low <= level(tick) <= high and all(abs(level(tick) - level(other)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)
