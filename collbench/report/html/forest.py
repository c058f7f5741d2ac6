"""The forest plot: a line per case with ratios of times, an interval or a limit, and 1 marked. Comparisons and gates use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

from collbench.report.headlines import short
from collbench.report.html.drawing import AxisScale, Picture, ratio_ticks

_WIDTH, _LINE, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 19, 290, 276, 14, 44  # pixels
_LONGEST_NAME, _LONGEST_WORDS = 46, 44
_MOST = 5.0  # powers of two to either side; larger ratios are drawn at the edge
SLOWER, FASTER, SAME, UNKNOWN = (
    "M-3.5-4.5 4.5 0-3.5 4.5z",
    "M3.5-4.5-4.5 0 3.5 4.5z",
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M0-4.4 4.4 0 0 4.4-4.4 0z",
)  # markers, around their middle


@dataclass(frozen=True)
class ForestMark:
    """A ratio with its marker: one of SLOWER, FASTER, SAME and UNKNOWN, and the classes of its color."""

    ratio: float
    shape: str
    classes: str


@dataclass(frozen=True)
class ForestLine:
    """A line of the plot.

    marks     its ratios, the most important one first
    interval  the ends of the first ratio's interval; None: it has none
    limit     a ratio that is marked, such as a gate's limit; None: none
    words     the text at the right; `tooltip` is that of the first mark
    """

    name: str
    marks: Sequence[ForestMark]
    words: str
    tooltip: str
    interval: tuple[float, float] | None = None
    limit: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Return all ratios that the axis must include."""
        return [*(mark.ratio for mark in self.marks), *(self.interval or ()), *([self.limit] if self.limit is not None else [])]


def forest(lines: Sequence[ForestLine], axis: str, least: float) -> Picture:
    """Return the picture of one line or more, with a tooltip for each. The axis reaches at least the ratio `least` to both sides of 1."""
    picture = Picture(_WIDTH, _TOP + _BOTTOM + _LINE * len(lines))
    levels = [max(-_MOST, min(_MOST, log2(ratio))) for each in lines for ratio in each.ratios if 0 < ratio < inf]
    low, high = min([-log2(least), *levels]), max([log2(least), *levels])
    spare = 0.06 * (high - low)
    ends = (2 ** (low - spare), 2 ** (high + spare))
    x, bottom = AxisScale(*ends, _LEFT, _WIDTH - _RIGHT, ratio_ticks(*ends), log2), picture.height - _BOTTOM
    for value, text in x.ticks:
        picture.line([(x.at(value), _TOP), (x.at(value), bottom)], "grid")
        picture.text(x.at(value), bottom + 16, text, "middle")
    picture.line([(x.at(1), _TOP), (x.at(1), bottom)], "axis")
    picture.text((x.start + x.end) / 2, bottom + 34, axis, "middle")
    for place, each in enumerate(lines):
        y = _TOP + _LINE * (place + 0.5)
        first = each.marks[0]
        if each.interval is not None:
            picture.line([(x.at(end), y) for end in each.interval], f"{first.classes.removesuffix(' open')} wide")
        if each.limit is not None:
            picture.line([(x.at(each.limit), y - 6.5), (x.at(each.limit), y + 6.5)], "limit wide")
        for mark in reversed(each.marks):
            picture.add("path", mark.classes, d=mark.shape, transform=f"translate({x.at(mark.ratio):.1f} {y:.1f})")
        picture.text(_LEFT - 8, y + 4, short(each.name, _LONGEST_NAME), "end", "ink")
        picture.text(_WIDTH - _RIGHT + 8, y + 4, short(each.words, _LONGEST_WORDS), classes="ink")
        picture.tip(x.at(first.ratio), y, each.tooltip)
    return picture
