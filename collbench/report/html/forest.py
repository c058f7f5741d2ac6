"""A forest plot: a line per cell with its ratio and its interval, 1 marked, the worst on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from collbench.analysis.outcome import Outcome
from collbench.report.html.chart import Spot
from collbench.report.html.draw import BAD, INK, PAPER, SOFT, panel, series_color, spots, svg_of
from collbench.report.html.ratio_axis import ticks_within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 40
_WIDTH, _LINE = 900, 19  # pixels
_MARGINS = (290, 276, 14, 44)
_LONGEST_NAME, _LONGEST_WORDS = 46, 50
_MOST = 5.0  # powers of two to either side; what is further away is drawn at the edge
_LEAST = 0.06  # powers of two, 4 %: so that equal runs look equal
_TICKS = (1, 2, 0.5, 1.5, 0.7, 4, 0.25, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 8, 0.125, 16, 0.0625, 32, 0.03125)


@dataclass(frozen=True)
class Interval:
    """A line of the plot.

    value, low, high  the ratio with its interval; None: it has none
    words             the text at its right; `told` is the text of its tooltip
    outcome           which marker and colour
    doubtful          drawn hollow
    """

    name: str
    value: float
    low: float | None
    high: float | None
    words: str
    told: str
    outcome: Outcome
    doubtful: bool


def forest(lines: Sequence[Interval], key: str, title: str) -> tuple[str, list[Spot]]:
    """The drawing of one line or more, and its spots."""
    figure, axes = panel(_WIDTH, sum(_MARGINS[2:]) + _LINE * len(lines), _MARGINS)
    _axis(axes, lines)
    for place, each in enumerate(lines):
        _draw(axes, place, each)
    return svg_of(figure, key, title), spots(
        axes, [_level(each.value) for each in lines], list(map(float, range(len(lines)))), [each.told for each in lines]
    )


def _level(ratio: float) -> float:
    """Return the position of a ratio: half and double are equally far from 1."""
    return max(-_MOST, min(_MOST, log2(ratio)))


def _axis(axes: Axes, lines: Sequence[Interval]) -> None:
    levels = [_level(end) for each in lines for end in (each.value, each.low, each.high) if end]
    low, high = min(-_LEAST, *levels), max(_LEAST, *levels)
    spare = 0.06 * (high - low)
    axes.set_xlim(low - spare, high + spare)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    ticks = ticks_within(_TICKS, low - spare, high + spare, (high - low + 2 * spare) / 8)
    axes.set_xticks([log2(tick) for tick in ticks], [f"×{tick:g}" for tick in ticks])
    axes.set_yticks([])
    axes.set_xlabel("← faster · time of the candidate / time of the baseline · slower →")
    axes.axvline(0, color=INK, linewidth=1)


def _draw(axes: Axes, place: int, each: Interval) -> None:
    """An interval as a bar, its value as a marker that points to the side on which it lies; hollow where it is doubtful."""
    color = {Outcome.SLOWER: BAD, Outcome.FASTER: series_color(0)}.get(each.outcome, SOFT)
    marker = {Outcome.SLOWER: ">", Outcome.FASTER: "<", Outcome.NO_CHANGE: "o"}.get(each.outcome, "D")
    if each.low is not None and each.high is not None:
        axes.plot([_level(each.low), _level(each.high)], [place, place], color=color, linewidth=2, solid_capstyle="butt")
    hollow = each.doubtful or each.low is None
    axes.plot([_level(each.value)], [place], marker=marker, markersize=6, color=color, markerfacecolor=PAPER if hollow else color)
    for text, at, align, room in ((each.name, -8, "right", _LONGEST_NAME), (each.words, 8, "left", _LONGEST_WORDS)):
        corner = (0 if at < 0 else 1, place)
        axes.annotate(
            text if len(text) <= room else f"{text[: room - 1]}…", corner, xycoords=axes.get_yaxis_transform(), xytext=(at, 0),
            textcoords="offset pixels", ha=align, va="center", fontsize=10.5, color=INK, annotation_clip=False, parse_math=False,
        )  # fmt: skip
