"""Words among the lines of a drawing: beside what they name, where they cover the least, and never on one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from typing import TYPE_CHECKING

from collbench.report.html.names import cut
from collbench.report.html.overlay import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTER, _HIGH, _SIZE = 5.9, 12.0, 10  # pixels of a letter and of a line of text, and the size of its letters
_STEP = 6.0  # pixels between the points that stand for a line
_COLLIDES = 10_000

Points = Sequence[tuple[float, float]]
_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Wish:
    """A text that names a line (its points, in data coordinates)."""

    text: str
    color: str
    points: Points


def write_words(axes: Axes, wishes: Sequence[Wish], lines: Sequence[Points]) -> list[str]:
    """Writes each text beside its line; returns those for which there was no room. To be called when the axes have their final limits.

    `lines` are all that should stay visible.
    """
    seen = [point for line in (*lines, *(wish.points for wish in wishes)) for point in _along(_pixels(axes, line))]
    taken: list[_Box] = []
    left_over = []
    for wish in wishes:
        box = _best(axes, wish, seen, taken)
        if box is None:
            left_over.append(wish.text)
            continue
        taken.append(box)
        figure = axes.get_figure(root=True)
        assert figure is not None
        write(figure, (box[0], box[1] + 3), _fitting(axes, wish.text), color=wish.color, size=_SIZE)
    return left_over


def _fitting(axes: Axes, text: str) -> str:
    return cut(text, int(axes.bbox.width / _LETTER))


def _best(axes: Axes, wish: Wish, seen: Points, taken: Sequence[_Box]) -> _Box | None:
    """The place that covers the least; None where all collide with other words or leave the axes."""
    costs = [(_cost(axes, box, seen, taken), box) for box in _candidates(axes, wish)]
    cost, box = min(costs, key=lambda each: each[0], default=(_COLLIDES, (0.0, 0.0, 0.0, 0.0)))
    return box if cost < _COLLIDES else None


def _candidates(axes: Axes, wish: Wish) -> Iterator[_Box]:
    """Boxes above and below the line at several places along it, the outer ones first: left, bottom, right, top in pixels."""
    points, wide = _pixels(axes, wish.points), _LETTER * len(_fitting(axes, wish.text))
    left, right = axes.bbox.x0, axes.bbox.x1
    starts = [left + 4, right - wide - 4, *(left + share * (right - left - wide) for share in (0.25, 0.5, 0.75))]
    if len(points) == 1:
        starts = [points[0][0] + 5, points[0][0] - wide - 5]
    for start in starts:
        beside = [y for x, y in _along(points) if start - _STEP <= x <= start + wide + _STEP] or [points[0][1]]
        for bottom in (max(beside) + 2, min(beside) - _HIGH - 2):
            yield start, bottom, start + wide, bottom + _HIGH


def _cost(axes: Axes, box: _Box, seen: Points, taken: Sequence[_Box]) -> int:
    left, bottom, right, top = box
    outside = bool(left < axes.bbox.x0 or right > axes.bbox.x1 + 8 or bottom < axes.bbox.y0 or top > axes.bbox.y1 + 6)
    collides = any(left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken)
    covered = sum(left <= x <= right and bottom <= y <= top for x, y in seen)
    return covered + _COLLIDES * (outside + collides)


def _pixels(axes: Axes, points: Points) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in axes.transData.transform(list(points))] if points else []


def _along(points: Points) -> Iterator[tuple[float, float]]:
    """The line as points that are at most a few pixels apart."""
    yield from points[:1]
    for (x, y), (to_x, to_y) in pairwise(points):
        steps = min(200, max(1, int(hypot(to_x - x, to_y - y) / _STEP)))
        for step in range(1, steps + 1):
            yield x + (to_x - x) * step / steps, y + (to_y - y) * step / steps
