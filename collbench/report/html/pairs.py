"""The section "Pairs": findings, a table of places, and matrices of bandwidth and latency as pictures."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from collbench.analysis.pairs import PairEffects, PairFinding
from collbench.report.cases import NOTHING
from collbench.report.frame import printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.material import Material
from collbench.report.pairs import CLASSES, ITSELF, UNKNOWN, WRONG, Classes, above_median, classes_of, kinds
from collbench.results.flags import explain
from collbench.results.rounds import PairMatrix
from collbench.units import first_of, format_percent, format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from collbench.results.rounds import StoredPairs


# The order of places in a matrix, and groups of places that share a row of the picture if there are many.

MOST_ROWS = 64  # of a picture: with more rows, cells are too small for a pointer
_LEAST_GROUPS = 8  # with fewer groups, rows of neighbors show more
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass(frozen=True)
class Groups:
    """Groups of places.

    order   places in the order in which they are drawn
    starts  the index in `order` of the first place of each group
    labels  the name of each group
    by      what a group is: "place", "host", "name" (names that differ in their last number only) or "neighbors"
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    labels: tuple[str, ...]
    by: str

    @property
    def rows(self) -> dict[int, int]:
        """The row of the picture by place."""
        ends = (*self.starts[1:], len(self.order))
        spans = enumerate(zip(self.starts, ends, strict=True))
        return {place: row for row, (start, end) in spans for place in self.order[start:end]}

    def slowest(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the highest class of each pair of groups; rows and columns of `classes` are in `order`."""
        found: NDArray[np.int64] = np.maximum.reduceat(np.maximum.reduceat(classes, self.starts, axis=0), self.starts, axis=1)
        return found


def grouped(places: Sequence[str], hosts: Sequence[str] = (), most: int = MOST_ROWS) -> Groups:
    """Return at most `most` groups: single places, those of a host, of hosts with names that differ in the last number, or neighbours."""
    if len(places) <= most:
        return Groups(tuple(range(len(places))), tuple(range(len(places))), tuple(places), "place")
    hosts = hosts or places
    families = [_family(host) for host in hosts]
    for by, names in (("host", hosts), ("name", families)):
        if _LEAST_GROUPS <= len(set(names)) <= most:
            return _by_name(names, by)
    return _neighbours(places, _by_name(families, "name").order, most)


def _family(host: str) -> str:
    """Return the name of a host with a star for its last number, before its domain; of an address the last number of all."""
    head, dot, rest = host.partition(".")
    return _LAST_NUMBER.sub("*", host) if head.isdigit() else f"{_LAST_NUMBER.sub('*', head)}{dot}{rest}"


def _by_name(names: Sequence[str], by: str) -> Groups:
    """Return groups of equal names, in the order of their first places."""
    labels = tuple(dict.fromkeys(names))
    number = {name: at for at, name in enumerate(labels)}
    group = np.array([number[name] for name in names])
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(labels)))
    return Groups(tuple(order.tolist()), tuple(starts.tolist()), labels, by)


def _neighbours(places: Sequence[str], order: Sequence[int], most: int) -> Groups:
    size = -(-len(order) // most)
    starts = tuple(range(0, len(order), size))
    return Groups(tuple(order), starts, tuple(f"{places[order[start]]} …" for start in starts), "neighbours")


# The classes of a pair matrix as a PNG with one pixel per cell, in colors that color-blind people can distinguish.
#
# Five steps of matplotlib's cividis, from the median to far below it, and red for wrong data.
COLORS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838", "#d0104c")
_CLEAR = len(COLORS)  # transparent: not measured, and a place with itself
_PALETTE = b"".join(bytes.fromhex(color[1:]) for color in (*COLORS, "#ffffff"))


def image_of(classes: NDArray[np.int64]) -> str:
    """Return the picture of classes [rows × columns] as a data: URL."""
    assert WRONG == CLASSES == _CLEAR - 1
    pixels = np.where(classes < 0, _CLEAR, classes).astype(np.uint8)
    lines = np.insert(pixels, 0, 0, axis=1)  # each line begins with its filter: none
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", _PALETTE),
        (b"tRNS", b"\xff" * _CLEAR + b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


# Bandwidth and latency of a pair matrix in the same form: values as text, ratios to the median, classes and their names.

Figures = NDArray[np.float64]
_FARTHEST = 25.0  # logarithms of ratios to the median are limited to this


@dataclass(frozen=True)
class Quantity:
    """Bandwidth or latency of a matrix.

    name      "bandwidth" or "latency"
    matrix    its `bandwidth` has speeds, high is fast: the inverse of a latency
    values    bytes per second, or seconds
    bounds    the ends of the intervals, if known
    size      of the messages, as text
    """

    name: str
    unit: str
    matrix: PairMatrix
    values: Figures
    bounds: tuple[Figures, Figures] | None
    size: str

    @property
    def symmetric(self) -> bool:
        """Whether the value of i to j is that of j to i."""
        return self.name == "latency"

    @cached_property
    def classes(self) -> tuple[Classes, float]:
        """The class of each directed pair, and the depth of the first class: see `classes_of`."""
        return classes_of(self.matrix)

    @cached_property
    def median(self) -> str:
        """The name of the reference of a pair."""
        return "the median of such paths" if len(kinds(self.matrix)) > 1 else "the median"

    @cached_property
    def above(self) -> Figures:
        """The logarithm of each pair's speed / the median; NaN: unknown."""
        speeds = above_median(self.matrix)
        return np.where(np.isfinite(speeds), np.clip(speeds, -_FARTHEST, _FARTHEST), np.nan)

    def figure(self, value: float) -> str:
        """Return a value as text, without its unit; "" if it is not finite, or too large to be valid."""
        if not np.isfinite(value * 1e6):
            return ""
        return format_time(value) if self.symmetric else format_rate(value)

    def shares(self) -> NDArray[np.int64]:
        """Return the input of `against_median`: tenths of a percent of the median; for a latency hundredths of it. -1: unknown."""
        ratio = np.exp(-self.above if self.symmetric else self.above)
        tenths = np.where(ratio >= 0.1, 10 * np.rint(100 * ratio), np.rint(1000 * ratio))
        found: Figures = np.nan_to_num(np.rint(100 * ratio) if self.symmetric else tenths, nan=-1)
        return found.astype(np.int64)

    def against_median(self, share: int) -> str:
        """Return a ratio to the median as text: "50 % of the median", "1.80 times the median"."""
        return f"{share / 100:.2f} times {self.median}" if self.symmetric else f"{format_percent(share / 10)} of {self.median}"

    def class_labels(self) -> list[str]:
        """Return the range of each of the five classes."""
        depths = [self.classes[1] * factor for factor in (1, 2, 4, 8)]
        if self.symmetric:
            edges = [f"{exp(depth):.2f}" for depth in depths]
            return [f"up to {edges[0]} times {self.median}", *(f"{a}–{b}" for a, b in pairwise(edges)), f"above {edges[-1]}"]
        edges = [f"{100 * exp(-depth):.0f}" for depth in depths]
        return [f"{edges[0]} % of {self.median} or more", *(f"{b}–{a} %" for a, b in pairwise(edges)), f"below {edges[-1]} %"]


def quantities(matrix: PairMatrix) -> tuple[Quantity, Quantity]:
    """Return the bandwidth and the latency of a matrix."""
    with np.errstate(all="ignore"):
        speeds = replace(matrix, bandwidth=1 / matrix.latency_s)
    sizes = [format_size(size) for size in (matrix.size_bytes, matrix.latency_size_bytes)]
    return (
        Quantity("bandwidth", "GB/s", matrix, matrix.bandwidth, (matrix.low, matrix.high), sizes[0]),
        Quantity("latency", "µs", speeds, matrix.latency_s, None, sizes[1]),
    )


# Labels next to a matrix: a slow place once, at its row or column, and a ring around each pair that its two ends do not explain.

NAME = 20  # characters of a name at most
_WAYS = {"node": "both ways ", "sender": "sends ", "receiver": "receives "}


@dataclass(frozen=True)
class Mark:
    """A finding in the picture.

    text      the label
    at        its row, or its column if only receiving is slow
    below     whether it is a column
    rows      rows with an arrow
    columns   columns with an arrow
    rings     cells (row, column) with a ring
    """

    text: str
    at: int
    below: bool
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    rings: tuple[tuple[int, int], ...] = ()


def marks(quantity: Quantity, found: Sequence[PairFinding], groups: Groups) -> list[Mark]:
    """Return the findings of a quantity as marks, the worst first."""
    row_of = groups.rows
    return [_mark(each, ratio, quantity, row_of) for each, ratio in _of(quantity, found)]


def _of(quantity: Quantity, found: Sequence[PairFinding]) -> Iterator[tuple[PairFinding, float]]:
    """Yield the findings of a quantity, and the ratio of each; a finding of bandwidth may have a latency, too."""
    for each in found:
        if each.quantity == quantity.name:
            yield each, each.ratio
        elif each.latency is not None and quantity.symmetric:
            yield each, each.latency


def _mark(found: PairFinding, ratio: float, quantity: Quantity, row_of: dict[int, int]) -> Mark:
    places = [row_of[place] for place in found.places]
    rows = tuple(dict.fromkeys(places))
    reaches = f"{1 / ratio:.2f} times as long" if quantity.symmetric else f"{_WAYS.get(found.kind, '')}{format_percent(100 * ratio)}"
    text = f"{_name(found, quantity)}: {reaches}"
    if found.kind == "pair":
        ends = (places[0], places[1])
        back = ((ends[1], ends[0]),) if found.both_ways or quantity.symmetric else ()
        return Mark(text, rows[0], below=False, rings=(ends, *back))
    if found.kind == "receiver" and not quantity.symmetric:
        return Mark(text, rows[0], below=True, columns=rows)
    return Mark(text, rows[0], below=False, rows=rows, columns=rows if found.kind == "node" else ())


def _name(found: PairFinding, quantity: Quantity) -> str:
    """Return the name of a finding; each place's name is cut separately, so that both ends of a pair are shown."""
    names = {place: cut(quantity.matrix.places[place]) for place in found.places}
    if len(found.places) == 1 or found.kind == "pair":
        return found.name([names.get(place, "") for place in range(quantity.matrix.n)])
    return cut(found.name(quantity.matrix.places), 2 * NAME)


def cut(name: str, most: int = NAME) -> str:
    """Return a printable name; a long one lacks its middle, since names of nodes differ at the end."""
    text = printable(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}"


_SIDE, _LARGEST = 480, 34  # pixels at most: of the matrix, of a cell
_LETTER, _LINE, _GAP = 6.4, 14, 8
_TOP, _LEAST_WIDTH = 18, 460
_MOST_SIGNS = 200


@dataclass(frozen=True)
class Picture:
    """A drawing and the position of the matrix in it: left, top, side in its own units."""

    svg: str
    box: tuple[float, float, float]


class _Sheet:
    """The layout: names on the left and above, marks on the right and below, the legend last."""

    def __init__(self, key: str, quantity: Quantity, groups: Groups, marks: Sequence[Mark]) -> None:
        self.key, self.classes = key, groups.slowest(quantity.classes[0][np.ix_(groups.order, groups.order)])
        self.class_labels, self.directed = quantity.class_labels(), not quantity.symmetric
        self.labels = [cut(label) for label in groups.labels]
        self.cell = min(_LARGEST, _SIDE / len(self.labels))
        self.side = self.cell * len(self.labels)
        room = max(map(_wide, self.labels)) + _GAP
        self.left, self.top = room + _TOP, room + _TOP
        self.side_marks = _at_most([mark for mark in marks if not mark.below], int(self.side // _LINE))
        self.below = _at_most([mark for mark in marks if mark.below], 8)
        right = max([_wide(mark.text) for mark in self.side_marks], default=0) + 4 * _GAP
        under = max([_wide(mark.text) + self._x(mark.at) for mark in self.below], default=0) + 2 * _GAP
        self.width = max(self.left + self.side + right, under, _LEAST_WIDTH)
        self.bottom = self.top + self.side + _GAP + _LINE * len(self.below) + (_GAP if any(mark.columns for mark in marks) else 0)

    def parts(self, marks: Sequence[Mark]) -> Iterator[str]:
        """Yield everything but the legend, from the lowest layer to the topmost."""
        yield from self._frame()
        yield from self._names()
        yield from self._signs()
        for mark in marks:
            yield from (self._ring(*cell) for cell in mark.rings)
            yield from (self._arrow(self.left + self.side + 2, self._y(row), "l7-4v8z") for row in mark.rows)
            yield from (self._arrow(self._x(column), self.top + self.side + 2, "l-4 7h8z") for column in mark.columns)
        yield from self._side_texts()
        yield from self._below()

    def legend(self) -> tuple[list[str], float]:
        """Return the legend, and the height of the drawing."""
        known = [(f'fill="{color}"', label) for color, label in zip(COLORS, self.class_labels, strict=False)]
        known += [(f'fill="{COLORS[WRONG]}"', "wrong data (!)")] if (self.classes == WRONG).any() else []
        known += [(f'fill="url(#{self.key}-no)" stroke="var(--soft)"', "not measured")] if (self.classes == UNKNOWN).any() else []
        parts, x, y = [], 0.0, self.bottom + _LINE
        for fill, label in known:
            if x > 0 and x + 18 + _wide(label) > self.width:
                x, y = 0.0, y + _LINE + 4
            parts.append(f'<rect x="{x:g}" y="{y:g}" width="12" height="12" {fill}/>{_text(x + 17, y + 10, label, "soft")}')
            x = round(x + 17 + _wide(label) + 2 * _GAP, 1)
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
        """Yield a sign for each cell with wrong data: color alone is not enough."""
        for row, column in np.argwhere(self.classes == WRONG)[:_MOST_SIGNS].tolist():
            size = min(14, self.cell)
            yield (
                f'<text x="{self._x(column):g}" y="{self._y(row) + 0.36 * size:g}" font-size="{size:g}" font-weight="700" '
                'text-anchor="middle" fill="#fff">!</text>'
            )

    def _side_texts(self) -> Iterator[str]:
        """Yield each label at its row, or as near as the others allow."""
        marks = sorted(self.side_marks, key=lambda mark: mark.at)
        heights = _apart([self._y(mark.at) for mark in marks], self.top + _LINE / 2, self.top + self.side - _LINE / 2)
        edge = self.left + self.side + 10
        for mark, height in zip(marks, heights, strict=True):
            yield f'<path d="M{edge:g} {self._y(mark.at):g}L{edge + 12:g} {height:g}" stroke="var(--soft)" fill="none"/>'
            yield _text(edge + 15, height + 4, mark.text, "ink")

    def _below(self) -> Iterator[str]:
        """Yield each label on a line of its own, the last column first, so that no line crosses a text."""
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
    """Return the drawing of the classes of a quantity, with a row and a column per group.

    key makes its identifiers unique in the page; title is its accessible name.
    """
    sheet = _Sheet(key, quantity, groups, marks)
    legend, height = sheet.legend()
    opening = f'<svg viewBox="0 0 {sheet.width:g} {height:g}" role="img" aria-label={quoteattr(title)}>'
    return Picture("".join([opening, *sheet.parts(marks), *legend, "</svg>"]), (sheet.left, sheet.top, sheet.side))


def _at_most(marks: list[Mark], most: int) -> list[Mark]:
    """Return the first marks, and one with the number of the others."""
    if len(marks) <= most:
        return marks
    rest = Mark(f"and {len(marks) - most + 1} more, see the findings above", marks[most - 1].at, marks[0].below)
    return [*marks[: most - 1], rest]


def _apart(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Return the heights (ascending) moved as little as needed to be a line apart and within these bounds."""
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
    """Return the largest width of a text in pixels: East Asian characters are twice as wide."""
    return round(_LETTER * cell_len(text), 1)


# The texts of the cells of a matrix, packed for the page's script (matrix.js): each text once, and per cell the number of its text.

_DETAILED = 64  # with more places, the texts have no intervals, which make nearly every text different
_UNKNOWN = "not measured"
Indices = NDArray[np.int64]
Part = tuple[Sequence[Any], Indices]  # the values that occur, and the number of its value for each cell


class _Cell(NamedTuple):
    """The parts of the text of a cell: value, interval, ratio to the median, wrong elements, whether it was measured again."""

    figure: str
    interval: str
    share: int
    wrong: int
    again: bool


@dataclass(frozen=True)
class Texts:
    """The texts of the cells.

    book   each text once, the slowest first
    codes  [n × n] the index of the text of each cell; of a symmetric quantity above the diagonal only
    """

    book: list[str]
    codes: NDArray[np.uint32]

    def packed(self) -> dict[str, object]:
        """Return them JSON-ready: zlib in base64. The codes have `wide` bytes each: first all lowest bytes, then all next ones."""
        wide = 1 if len(self.book) <= 1 << 8 else 2 if len(self.book) <= 1 << 16 else 4
        planes = self.codes.astype(f"<u{wide}").view(np.uint8).reshape(-1, wide).T
        return {"texts": _packed("\n".join(self.book).encode()), "codes": _packed(planes.tobytes()), "wide": wide}


def texts_of(quantity: Quantity, again: Collection[tuple[int, int]], order: Indices) -> Texts:
    """Return the texts of all cells, with rows and columns in this order."""
    n = len(order)
    cells = np.triu_indices(n, 1) if quantity.symmetric else np.nonzero(~np.eye(n, dtype=bool))
    known, codes = _combined(_parts(quantity, again, order[cells[0]], order[cells[1]]))
    ranked = sorted(range(len(known)), key=lambda each: _slowness(quantity, known[each]))
    place = np.empty(len(ranked), np.uint32)
    place[ranked] = np.arange(len(ranked), dtype=np.uint32)
    matrix = np.zeros((n, n), np.uint32)
    matrix[cells] = place[codes]
    return Texts([_text_values(quantity, known[each]) for each in ranked], matrix)


def _parts(quantity: Quantity, again: Collection[tuple[int, int]], rows: Indices, columns: Indices) -> list[Part]:
    """Return the fields of `_Cell` for these cells."""
    matrix = quantity.matrix
    twice = np.zeros((matrix.n, matrix.n), bool)
    for a, b in again:
        twice[a, b] = twice[b, a] = True
    wrong = np.clip(np.nan_to_num(matrix.wrong[rows, columns], posinf=0), 0, 1e15).astype(np.int64)
    others = (_different(each) for each in (quantity.shares()[rows, columns], wrong, twice[rows, columns]))
    return [_figures(quantity, rows, columns), _intervals(quantity, rows, columns), *others]


def _figures(quantity: Quantity, rows: Indices, columns: Indices) -> Part:
    """Return the texts of the values. Values are sorted, and bisection finds where the next text begins, so that few are formatted."""
    values = quantity.values[rows, columns]
    order = np.argsort(values)  # NaN goes to the end
    ascending, texts, codes = values[order].tolist(), list[str](), np.empty(len(values), np.int64)
    at = 0
    while at < len(ascending):
        texts.append(quantity.figure(ascending[at]))
        end = bisect_left(ascending, True, lo=at, key=lambda value: quantity.figure(value) != texts[-1])
        codes[order[at:end]] = len(texts) - 1
        at = end
    return texts, codes


def _different(values: NDArray[Any]) -> Part:
    found, codes = np.unique(values, return_inverse=True)
    return found.tolist(), codes


def _intervals(quantity: Quantity, rows: Indices, columns: Indices) -> Part:
    if quantity.bounds is None or quantity.matrix.n > _DETAILED:
        return [""], np.zeros(len(rows), np.int64)
    low, high = ([quantity.figure(value) for value in each[rows, columns].tolist()] for each in quantity.bounds)
    return _different(np.array([f" ({first}–{last})" if first and last else "" for first, last in zip(low, high, strict=True)]))


def _combined(parts: Sequence[Part]) -> tuple[list[_Cell], Indices]:
    """Return the combinations that occur, and the index of the combination of each cell."""
    numbers = np.zeros(len(parts[0][1]), np.int64)
    for values, codes in parts:
        _, numbers = np.unique(numbers * len(values) + codes, return_inverse=True)
    _, first = np.unique(numbers, return_index=True)
    return [_Cell(*(values[codes[cell]] for values, codes in parts)) for cell in first], numbers


def _slowness(quantity: Quantity, cell: _Cell) -> tuple[bool, int]:
    """Return a key to sort by, slowest first; unknown cells come last."""
    return cell.figure == "", -cell.share if quantity.symmetric else cell.share


def _text_values(quantity: Quantity, cell: _Cell) -> str:
    compared = f", {quantity.against_median(cell.share)}" if cell.share >= 0 else ""
    texts = [f"{cell.figure}{cell.interval} {quantity.unit}{compared}" if cell.figure else _UNKNOWN]
    texts += [f"wrong data: {plural(cell.wrong, 'element')}"] if cell.wrong else []
    texts += ["measured twice, the faster result counts"] if cell.again and cell.figure else []
    return "; ".join(texts)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


# One chart per quantity of a pair matrix: the picture, its values, and a table.

_WHOLE = 12  # up to this many places, the table is the matrix itself, and half the width of the page is enough
_SLOWEST = 40  # pairs in the table of a larger matrix
_SHOWN = 2  # pixels of a cell in the picture of all cells, before zooming
_EACH = {
    "host": "Each row and column of the first picture is one host",
    "name": "Each row and column of the first picture has the places of hosts with names that differ in their last number only",
    "neighbours": "Each row and column of the first picture has several neighbouring places",
}


@dataclass(frozen=True)
class MatrixInput:
    """A matrix with its findings.

    key      of its charts within the page
    run      prefix of their titles if there are several runs
    places   what is paired: "nodes", "ranks"
    found    the findings
    samples  the largest number of samples of a latency, and of a bandwidth one way
    """

    key: str
    run: str
    places: str
    effects: PairEffects
    found: Sequence[PairFinding]
    samples: tuple[int, int]


def charts(matrix: MatrixInput) -> list[Chart]:
    """Return the charts of bandwidth and latency, as far as they were measured."""
    groups = grouped(matrix.effects.matrix.places, matrix.effects.matrix.hosts)
    return [_chart(matrix, each, groups) for each in quantities(matrix.effects.matrix) if np.isfinite(each.values).any()]


def _chart(matrix: MatrixInput, quantity: Quantity, groups: Groups) -> Chart:
    named = marks(quantity, matrix.found, groups)
    title = f"{matrix.run}{quantity.name.capitalize()} of {quantity.size} messages between {quantity.matrix.n} {matrix.places}"
    shown = picture(f"{matrix.key}-{quantity.name}", title, quantity, groups, named)
    return Chart(
        key=f"{matrix.key}-{quantity.name}", title=title, caption=_caption(quantity, [mark.text for mark in named]),
        method=_method(quantity, groups, matrix.samples[not quantity.symmetric]),
        drawing=shown.svg + ("" if groups.by == "place" else _full(quantity, groups, title)), table=_table(quantity, matrix.found),
        data=_data(quantity, matrix.effects.again, groups, shown.box), wide=quantity.matrix.n > _WHOLE,
    )  # fmt: skip


def _caption(quantity: Quantity, named: Sequence[str]) -> str:
    findings = f"Slow: {first_of(named, 3, '; ')}." if named else "No slow place or pair."
    cell = "A cell is a pair" if quantity.symmetric else "Senders are rows, receivers are columns"
    return f"{findings} {cell}; dark cells are near the median, brighter cells are slower."


def _method(quantity: Quantity, groups: Groups, samples: int) -> str:
    each_way = "the size / the time of one message, for each direction"
    what = "half the round trip of a message" if quantity.symmetric else each_way
    counted = f"up to {samples} samples" if samples else "its samples"
    parts = [
        f"The {quantity.name} of a pair is {what}, by the median of {counted} of {quantity.size}.",
        "Disjoint pairs are measured at the same time. If a pair was measured again, the faster result counts, since a disturbance only "
        "makes it slower.",
        f"The colours are five classes below {quantity.median}: chance alone reaches the end of the first one, and each next one is twice "
        "as deep.",
        "A ring marks a pair that its two ends do not explain; an arrow marks a place that is slow with all others.",
    ]
    parts += [f"{_EACH[groups.by]}, and a cell shows their slowest pair; the second picture has every pair."] if groups.by in _EACH else []
    if quantity.matrix.n > _WHOLE:
        parts.append(
            f"The table has the {_SLOWEST} slowest pairs without those of slow places; `collbench report RUN --csv FILE` writes all pairs."
        )
    return " ".join(parts)


def _full(quantity: Quantity, groups: Groups, title: str) -> str:
    """Return the picture of all cells, which matrix.css and matrix.js make readable."""
    side = _SHOWN * quantity.matrix.n
    image, name = image_of(quantity.classes[0][np.ix_(groups.order, groups.order)]), quoteattr(f"{title}, every pair")
    return f'<div class="matrix"><img src="{image}" width="{side}" height="{side}" alt={name}></div>'


def _data(quantity: Quantity, again: Collection[tuple[int, int]], groups: Groups, box: tuple[float, float, float]) -> dict[str, object]:
    """Return the data of matrix.js. `joint` goes between the names of a pair; places are in the order of drawing, `starts` their groups."""
    places = [printable(quantity.matrix.places[place])[:200] for place in groups.order]
    return {
        "kind": "pairs", "places": places, "starts": groups.starts, "labels": [printable(label)[:200] for label in groups.labels],
        "box": box, "joint": "and" if quantity.symmetric else "to", "symmetric": quantity.symmetric,
        **texts_of(quantity, again, np.array(groups.order)).packed(),
    }  # fmt: skip


def _table(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    return _whole(quantity) if quantity.matrix.n <= _WHOLE else _slowest(quantity, found)


def _whole(quantity: Quantity) -> Table:
    """Return the matrix as a table."""
    names = [printable(place) for place in quantity.matrix.places]
    corner = f"{quantity.unit}, {'between' if quantity.symmetric else 'from ↓ to →'}"
    rows = [
        [name, *(quantity.figure(value) or NOTHING for value in row)] for name, row in zip(names, quantity.values.tolist(), strict=True)
    ]
    return Table([corner, *names], rows, frozenset(range(1, len(names) + 1)))


def _slowest(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    """Return the pairs that are furthest below the median, without those of slow places."""
    above = np.where(np.isnan(quantity.above), np.inf, quantity.above)
    if quantity.symmetric:
        above[np.tril_indices(len(above))] = np.inf
    for each in (each for each in found if each.quantity == quantity.name and each.kind != "pair"):
        if each.kind != "receiver":
            above[list(each.places)] = np.inf
        if each.kind != "sender":
            above[:, list(each.places)] = np.inf
    lowest = np.argpartition(above, _SLOWEST, axis=None)[:_SLOWEST]
    pairs = [divmod(int(cell), len(above)) for cell in lowest[np.argsort(above.ravel()[lowest], kind="stable")]]
    shares, names = quantity.shares(), quantity.matrix.places
    rows = [
        [
            printable(names[a]),
            printable(names[b]),
            quantity.figure(float(quantity.values[a, b])),
            quantity.against_median(int(shares[a, b])),
        ]
        for a, b in pairs
        if np.isfinite(above[a, b])
    ]
    ends = ("place", "place") if quantity.symmetric else ("sender", "receiver")
    return Table([*ends, quantity.unit, "versus the median"], rows, frozenset({2}))


_MOST_REASONS = 5


def section(material: Material) -> Section | None:
    """Return the section, or None if no run has pairs."""
    if not material.pairs:
        return None

    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    shown: list[Chart] = []
    for number, ((run, stored), effects) in enumerate(zip(material.pairs, material.effects, strict=True)):
        name = f"{printable(run.path.resolve().name)}: " if len(material.pairs) > 1 else ""
        found = effects.findings()
        texts += [f"{name}{text}" for text in _texts(stored, effects, found)]
        tables.append(_table_matrix(name, effects, found))
        places = {"node": "nodes", "rank": "ranks"}.get(str(stored.about.get("by")), "places")
        shown += charts(MatrixInput(f"pairs-{number}", name, places, effects, found, _samples(stored)))
    return Section("pairs", "Pairs: slow nodes and links", texts, tables, shown)


def _texts(stored: StoredPairs, effects: PairEffects, found: Sequence[PairFinding]) -> list[str]:
    """Return what was measured, wrong data, findings, doubts, and notes on the rounds."""
    from collbench.report.pairs import measured, sentences, wrong_data

    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    flags = {flag for one in stored.rounds for flag in one.flags}
    texts = [measured(effects.matrix, about), *wrong_data(effects.matrix), *sentences(effects.matrix, found), *effects.doubts()]
    return [printable(text) for text in (*texts, *_unmeasured(stored), *explain(flags), *stored.warnings)]


def _unmeasured(stored: StoredPairs) -> list[str]:
    """Return the number of pairs that were not measured, by reason."""
    reasons = Counter(why for one in stored.rounds for why in one.na if why is not None)
    named = [f"not measured: {plural(number, 'pair')}: {why}" for why, number in reasons.most_common(_MOST_REASONS)]
    return [*named, *([f"and {len(reasons) - len(named)} more reasons"] if len(reasons) > len(named) else [])]


def _table_matrix(name: str, effects: PairEffects, found: Sequence[PairFinding]) -> tuple[str, Table]:
    from collbench.report.pairs import TITLES, left_out, place_rows

    chosen, rows = place_rows(effects.matrix, found)
    slow = {place for each in found for place in each.places if each.kind != "pair"}
    marks = {row: "doubtful" for row, place in enumerate(chosen) if place in slow}
    what = left_out(effects.matrix, chosen) if len(chosen) < effects.matrix.n else "medians over partners"
    return f"{name}each place: {what}", Table(TITLES, rows, frozenset({1, 2, 3}), marks)


def _samples(stored: StoredPairs) -> tuple[int, int]:
    """Return the largest number of samples of a round: of the latency, of the bandwidth one way."""
    latency, forward, backward = (max((one.n[at] for one in stored.rounds), default=0) for at in range(3))
    return latency, max(forward, backward)
