"""The picture of a matrix: the image of its classes between the names of rows and columns, with marks, and what the colours mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from rich.cells import cell_len

from collbench.report.html.groups import Groups
from collbench.report.html.image import COLORS, image_of
from collbench.report.html.marks import Mark, cut
from collbench.report.html.quantity import Quantity
from collbench.report.pairs_map import ITSELF, UNKNOWN, WRONG

_SIDE, _LARGEST = 480, 34  # pixels: of the matrix at most, of a cell at most
_LETTER, _LINE, _GAP = 6.4, 14, 8
_TOP, _LEAST_WIDTH = 18, 460
_MOST_SIGNS = 200


@dataclass(frozen=True)
class Picture:
    """svg  the drawing
    box     where the matrix lies in it: left, top, side in its own units
    """

    svg: str
    box: tuple[float, float, float]


class _Sheet:
    """Where everything goes: names on the left and above, marks on the right and below, the meaning of the colours last."""

    def __init__(self, key: str, quantity: Quantity, groups: Groups, marks: Sequence[Mark]) -> None:
        self.key, self.classes = key, groups.slowest(quantity.classes[0][np.ix_(groups.order, groups.order)])
        self.words, self.directed = quantity.class_words(), not quantity.symmetric
        self.labels = [cut(label) for label in groups.labels]
        self.cell = min(_LARGEST, _SIDE / len(self.labels))
        self.side = self.cell * len(self.labels)
        room = max(map(_wide, self.labels)) + _GAP
        self.left, self.top = room + _TOP, room + _TOP
        self.beside = _at_most([mark for mark in marks if not mark.below], int(self.side // _LINE))
        self.below = _at_most([mark for mark in marks if mark.below], 8)
        right = max([_wide(mark.text) for mark in self.beside], default=0) + 4 * _GAP
        under = max([_wide(mark.text) + self._x(mark.at) for mark in self.below], default=0) + 2 * _GAP
        self.width = max(self.left + self.side + right, under, _LEAST_WIDTH)
        self.bottom = self.top + self.side + _GAP + _LINE * len(self.below) + (_GAP if any(mark.columns for mark in marks) else 0)

    def parts(self, marks: Sequence[Mark]) -> Iterator[str]:
        """Everything but the legend, from the lowest layer to the topmost."""
        yield from self._frame()
        yield from self._names()
        yield from self._signs()
        for mark in marks:
            yield from (self._ring(*cell) for cell in mark.rings)
            yield from (self._arrow(self.left + self.side + 2, self._y(row), "l7-4v8z") for row in mark.rows)
            yield from (self._arrow(self._x(column), self.top + self.side + 2, "l-4 7h8z") for column in mark.columns)
        yield from self._beside()
        yield from self._below()

    def legend(self) -> tuple[list[str], float]:
        """The meaning of the colours, and where the drawing ends."""
        known = [(f'fill="{color}"', word) for color, word in zip(COLORS, self.words, strict=False)]
        known += [(f'fill="{COLORS[WRONG]}"', "wrong data (!)")] if (self.classes == WRONG).any() else []
        known += [(f'fill="url(#{self.key}-no)" stroke="var(--soft)"', "not measured")] if (self.classes == UNKNOWN).any() else []
        parts, x, y = [], 0.0, self.bottom + _LINE
        for fill, word in known:
            if x > 0 and x + 18 + _wide(word) > self.width:
                x, y = 0.0, y + _LINE + 4
            parts.append(f'<rect x="{x:g}" y="{y:g}" width="12" height="12" {fill}/>{_text(x + 17, y + 10, word, "soft")}')
            x = round(x + 17 + _wide(word) + 2 * _GAP, 1)
        return parts, y + _LINE + 4

    def _frame(self) -> Iterator[str]:
        place = f'x="{self.left:g}" y="{self.top:g}" width="{self.side:g}" height="{self.side:g}"'
        hatch = '<path d="M0 6 6 0" stroke="var(--soft)"/>'
        yield f'<defs><pattern id="{self.key}-no" width="6" height="6" patternUnits="userSpaceOnUse">{hatch}</pattern></defs>'
        if (self.classes == UNKNOWN).any():
            yield f'<rect {place} fill="url(#{self.key}-no)"/>'
            squares = "".join(f"M{at} {at}h1v1h-1z" for at in np.flatnonzero(np.diag(self.classes) == ITSELF))
            yield f'<path d="{squares}" transform="translate({self.left:g} {self.top:g}) scale({self.cell:g})" fill="var(--paper)"/>'
        yield f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" href="{image_of(self.classes)}"/>'
        yield f'<rect {place} fill="none" stroke="var(--soft)"/>'

    def _names(self) -> Iterator[str]:
        if self.directed:
            yield _text(self.left, 11, "receiver →", "soft") + _text(0, self.top - 6, "sender ↓", "soft")
        step = int(-(-(_LINE - 1) // self.cell))
        for at in range(0, len(self.labels), step):
            yield _text(self.left - 5, self._y(at) + 4, self.labels[at], "ink", "end")
            yield _turned(self._x(at) + 4, self.top - 5, self.labels[at])

    def _signs(self) -> Iterator[str]:
        """Wrong data is told by a sign, too."""
        for row, column in np.argwhere(self.classes == WRONG)[:_MOST_SIGNS].tolist():
            size = min(14, self.cell)
            yield (
                f'<text x="{self._x(column):g}" y="{self._y(row) + 0.36 * size:g}" font-size="{size:g}" font-weight="700" '
                'text-anchor="middle" fill="#fff">!</text>'
            )

    def _beside(self) -> Iterator[str]:
        """Each at its row, or as near to it as the others leave room."""
        marks = sorted(self.beside, key=lambda mark: mark.at)
        heights = _apart([self._y(mark.at) for mark in marks], self.top + _LINE / 2, self.top + self.side - _LINE / 2)
        edge = self.left + self.side + 10
        for mark, height in zip(marks, heights, strict=True):
            yield f'<path d="M{edge:g} {self._y(mark.at):g}L{edge + 12:g} {height:g}" stroke="var(--soft)" fill="none"/>'
            yield _text(edge + 15, height + 4, mark.text, "ink")

    def _below(self) -> Iterator[str]:
        """Each on a line of its own, the last column first, so that no line crosses a text."""
        marks = sorted(self.below, key=lambda mark: -mark.at)
        for number, mark in enumerate(marks):
            y, x = self.top + self.side + _GAP + _LINE * (number + 1), self._x(mark.at)
            yield f'<path d="M{x:g} {self.top + self.side + 9:g}V{y - 4:g}h5" stroke="var(--soft)" fill="none"/>'
            yield _text(x + 8, y, mark.text, "ink")

    def _ring(self, row: int, column: int) -> str:
        size, x, y = self.cell + 4, self._x(column) - self.cell / 2 - 2, self._y(row) - self.cell / 2 - 2
        ring = f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}" rx="3" fill="none"'
        return f'{ring} stroke="var(--paper)" stroke-width="4"/>{ring} stroke="var(--bad)" stroke-width="2"/>'

    def _arrow(self, x: float, y: float, shape: str) -> str:
        return f'<path d="M{x:g} {y:g}{shape}" fill="var(--bad)"/>'

    def _x(self, column: int) -> float:
        return round(self.left + (column + 0.5) * self.cell, 2)

    def _y(self, row: int) -> float:
        return round(self.top + (row + 0.5) * self.cell, 2)


def picture(key: str, title: str, quantity: Quantity, groups: Groups, marks: Sequence[Mark]) -> Picture:
    """The drawing of a quantity's classes, a row and a column per group.

    key makes its identifiers unique in the page; title is what a screen reader says.
    """
    sheet = _Sheet(key, quantity, groups, marks)
    legend, height = sheet.legend()
    opening = f'<svg viewBox="0 0 {sheet.width:g} {height:g}" role="img" aria-label={quoteattr(title)}>'
    return Picture("".join([opening, *sheet.parts(marks), *legend, "</svg>"]), (sheet.left, sheet.top, sheet.side))


def _at_most(marks: list[Mark], most: int) -> list[Mark]:
    """The first ones, and how many more there are."""
    if len(marks) <= most:
        return marks
    rest = Mark(f"and {len(marks) - most + 1} more, see the findings above", marks[most - 1].at, marks[0].below)
    return [*marks[: most - 1], rest]


def _apart(heights: Sequence[float], low: float, high: float) -> list[float]:
    """The heights, ascending, a line apart and within these bounds, as near to where they were as that allows."""
    found = list(heights)
    for at, height in enumerate(found):
        found[at] = max(height, low if at == 0 else found[at - 1] + _LINE)
    for at in reversed(range(len(found))):
        found[at] = min(found[at], high if at == len(found) - 1 else found[at + 1] - _LINE)
    return found


def _text(x: float, y: float, text: str, color: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="11" text-anchor="{anchor}" fill="var(--{color})">{escape(text)}</text>'


def _turned(x: float, y: float, text: str) -> str:
    return f'<text transform="translate({x:g} {y:g}) rotate(-90)" font-size="11" fill="var(--ink)">{escape(text)}</text>'


def _wide(text: str) -> float:
    """Pixels that a text takes at most: letters of the East are twice as wide."""
    return round(_LETTER * cell_len(text), 1)
