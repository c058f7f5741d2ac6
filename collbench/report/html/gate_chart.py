"""The gate's chart: a line for each group or cell, its time in every allocation of the candidate, and the limit that it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from collbench.gate.verdict import CONFIRMED
from collbench.report.html.chart import Spot
from collbench.report.html.draw import BAD, GRID, INK, LIMIT, PAPER, SOFT, fixed_ticks, panel, spots, svg_of
from collbench.report.html.ratio_axis import ticks_within
from collbench.report.words import slower

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 60
_WIDTH, _LINE, _MARGINS = 900, 19, (330, 150, 14, 44)  # pixels
_LONGEST_NAME = 52
_FURTHEST = 2.0  # what takes longer than this many times, or is that much faster, stands at the edge
_LEAST = 1.03  # so that equal ones look equal
_TICKS = (1, 1.5, 0.75, 1.2, 0.85, 1.1, 0.92, 2, 0.5, 1.05, 0.96, 1.02, 0.98, 1.01, 0.99)


@dataclass(frozen=True)
class Judged:
    """A line: its factors by allocation, the limit of them (None: not judged), its state, and what hovering tells."""

    name: str
    factors: Sequence[float | None]
    limit: float | None
    state: str
    told: str

    @property
    def first(self) -> float | None:
        """In the first allocation, where it is known and there is something to judge it by."""
        return self.factors[0] if self.factors and self.limit is not None else None

    @property
    def over(self) -> bool:
        """Whether it exceeds its limit there."""
        return self.first is not None and self.limit is not None and self.first > self.limit

    @property
    def always_over(self) -> bool:
        """Whether it exceeds its limit in every allocation that measured it."""
        return self.over and all(factor > self.limit for factor in self.factors if factor is not None and self.limit is not None)


def drawn(lines: Sequence[Judged], key: str, title: str) -> tuple[str, list[Spot]]:
    """The drawing of one line or more, each with a first factor, and its spots."""
    figure, axes = panel(_WIDTH, sum(_MARGINS[2:]) + _LINE * len(lines), _MARGINS)
    _axis(axes, lines)
    for place, each in enumerate(lines):
        _draw(axes, place, each)
    levels = [_level(each.first) for each in lines if each.first is not None]
    return svg_of(figure, key, title), spots(axes, levels, [float(place) for place in range(len(lines))], [_told(each) for each in lines])


def _level(factor: float) -> float:
    return max(-log(_FURTHEST), min(log(_FURTHEST), log(factor)))


def _told(each: Judged) -> str:
    return f"{each.name}\n{each.told}"


def _axis(axes: Axes, lines: Sequence[Judged]) -> None:
    levels = [_level(value) for each in lines for value in (*each.factors, each.limit) if value is not None]
    low, high = min(-log(_LEAST), *levels), max(log(_LEAST), *levels)
    spare = 0.06 * (high - low)
    axes.set_xlim(low - spare, high + spare)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    ticks = ticks_within(_TICKS, low - spare, high + spare, (high - low + 2 * spare) / 8, log)
    fixed_ticks(axes.xaxis, [log(tick) for tick in ticks], [slower(tick) if tick != 1 else "as before" for tick in ticks])
    axes.set_yticks([])
    axes.set_xlabel("← faster · time over what the baseline says · slower →")
    axes.axvline(0, color=INK, linewidth=1)


def _draw(axes: Axes, place: int, each: Judged) -> None:
    """The limit as a tick on a rail, the first allocation as a large marker, later ones as small ones; the name to the left."""
    axes.axhline(place, color=GRID, linewidth=0.7)
    color = BAD if each.state == CONFIRMED else INK if each.over else SOFT
    if each.limit is not None:
        axes.plot([_level(each.limit)], [place], marker="|", markersize=13, color=LIMIT, markeredgewidth=2)
    for number, factor in enumerate(each.factors):
        if factor is not None:
            marker = ">" if each.limit is not None and factor > each.limit else "o"
            face = color if number == 0 else PAPER
            axes.plot([_level(factor)], [place], marker=marker, markersize=6.5 if number == 0 else 4.5, color=color, markerfacecolor=face)
    limit = f"{slower(each.first)}, limit {slower(each.limit)}"
    for text, at, align in ((_cut(each.name), -8, "right"), (limit, 8, "left")):
        axes.annotate(
            text, (0 if at < 0 else 1, place), xycoords=axes.get_yaxis_transform(), xytext=(at, 0), textcoords="offset pixels", ha=align,
            va="center", fontsize=10.5, color=INK, annotation_clip=False, parse_math=False,
        )  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
