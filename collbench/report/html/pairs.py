"""The picture of a matrix: the image of its classes between the names of rows and columns, with marks, and what the colours mean."""

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

from collbench.analysis.pairs import PairEffects, PairFinding, hosts_of
from collbench.report.cells import NOTHING, explain, printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.material import Material
from collbench.report.pairs import CLASSES, ITSELF, UNKNOWN, WRONG, Classes, above_median, classes_of, kinds
from collbench.results.rounds import PairMatrix
from collbench.units import format_percent, format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.results.rounds import StoredPairs


# In which order the places of a matrix are drawn, and which of them share a row of the picture where there are many.

MOST_ROWS = 64  # of a picture in which a cell can still be seen, and pointed at
_LEAST_GROUPS = 8  # fewer show less than rows of neighbours do
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass(frozen=True)
class Groups:
    """order   places in the order in which they are drawn
    starts  where in `order` each group begins
    labels  what each group is called
    by      what a group is: "place", "host", "name" (names that differ in their last number only) or "neighbours"
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
        """The highest class of each pair of groups, of classes whose rows and columns are in `order`."""
        found: NDArray[np.int64] = np.maximum.reduceat(np.maximum.reduceat(classes, self.starts, axis=0), self.starts, axis=1)
        return found


def grouped(places: Sequence[str], most: int = MOST_ROWS) -> Groups:
    """At most `most` groups: each place alone, or those of one host, or of hosts whose names differ in the last number, or neighbours."""
    if len(places) <= most:
        return Groups(tuple(range(len(places))), tuple(range(len(places))), tuple(places), "place")
    hosts = hosts_of(places)
    alike = [_alike(host) for host in hosts]
    for by, names in (("host", hosts), ("name", alike)):
        if _LEAST_GROUPS <= len(set(names)) <= most:
            return _by_name(names, by)
    return _neighbours(places, _by_name(alike, "name").order, most)


def _alike(host: str) -> str:
    """The host's name with a star for its last number; of a name with a domain the first part counts, of an address all of it."""
    head, dot, rest = host.partition(".")
    return _LAST_NUMBER.sub("*", host) if head.isdigit() else f"{_LAST_NUMBER.sub('*', head)}{dot}{rest}"


def _by_name(names: Sequence[str], by: str) -> Groups:
    """Groups in the order in which their first places come."""
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


# The classes of a pair matrix as a PNG of one pixel per cell, in colours that the colour-blind tell apart.

# matplotlib's cividis at its fifths, from the median on to far below it, and a red for wrong data
COLORS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838", "#d0104c")
_CLEAR = len(COLORS)  # what is not measured, and a place with itself: the page shows through
_PALETTE = b"".join(bytes.fromhex(color[1:]) for color in (*COLORS, "#ffffff"))


def image_of(classes: NDArray[np.int64]) -> str:
    """The picture of classes [rows × columns] as a data: address."""
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


# Bandwidth and latency of a pair matrix, told alike: figures as text, how they stand to the median, classes and their names.

Figures = NDArray[np.float64]
_FARTHEST = 25.0  # logarithm: what is further from the median is told as if it were so far


@dataclass(frozen=True)
class Quantity:
    """word   "bandwidth" or "latency"
    matrix    its `bandwidth` holds speeds, high is fast: of the latency the inverse
    values    what is printed: bytes per second, or seconds
    bounds    the interval's ends, where they are known
    size      of the messages, as text
    """

    word: str
    unit: str
    matrix: PairMatrix
    values: Figures
    bounds: tuple[Figures, Figures] | None
    size: str

    @property
    def symmetric(self) -> bool:
        """Whether i to j is j to i."""
        return self.word == "latency"

    @cached_property
    def classes(self) -> tuple[Classes, float]:
        """The class of each directed pair, and the first class's depth: see `classes_of`."""
        return classes_of(self.matrix)

    @cached_property
    def median(self) -> str:
        """What a pair is compared with."""
        return "the median of such paths" if len(kinds(self.matrix)) > 1 else "the median"

    @cached_property
    def above(self) -> Figures:
        """How much faster than the median each pair is, as a logarithm; NaN: unknown."""
        speeds = above_median(self.matrix)
        return np.where(np.isfinite(speeds), np.clip(speeds, -_FARTHEST, _FARTHEST), np.nan)

    def figure(self, value: float) -> str:
        """A value as text, without its unit; "" for what is no number, or too large to be one."""
        if not np.isfinite(value * 1e6):
            return ""
        return format_time(value) if self.symmetric else format_rate(value)

    def shares(self) -> NDArray[np.int64]:
        """What `against_median` makes a text of: tenths of a percent of the median; of a latency hundredths of it. -1: unknown."""
        ratio = np.exp(-self.above if self.symmetric else self.above)
        tenths = np.where(ratio >= 0.1, 10 * np.rint(100 * ratio), np.rint(1000 * ratio))
        found: Figures = np.nan_to_num(np.rint(100 * ratio) if self.symmetric else tenths, nan=-1)
        return found.astype(np.int64)

    def against_median(self, share: int) -> str:
        """How a pair stands to the others: "50 % of the median", "1.80 times the median"."""
        return f"{share / 100:.2f} times {self.median}" if self.symmetric else f"{format_percent(share / 10)} of {self.median}"

    def class_words(self) -> list[str]:
        """What each of the five classes means."""
        depths = [self.classes[1] * factor for factor in (1, 2, 4, 8)]
        if self.symmetric:
            edges = [f"{exp(depth):.2f}" for depth in depths]
            return [f"up to {edges[0]} times {self.median}", *(f"{a}–{b}" for a, b in pairwise(edges)), f"above {edges[-1]}"]
        edges = [f"{100 * exp(-depth):.0f}" for depth in depths]
        return [f"from {edges[0]} % of {self.median} on", *(f"{b}–{a} %" for a, b in pairwise(edges)), f"below {edges[-1]} %"]


def quantities(matrix: PairMatrix) -> tuple[Quantity, Quantity]:
    """Its bandwidth and its latency."""
    with np.errstate(all="ignore"):
        speeds = replace(matrix, bandwidth=1 / matrix.latency_s)
    sizes = [format_size(size) for size in (matrix.size_bytes, matrix.latency_size_bytes)]
    return (
        Quantity("bandwidth", "GB/s", matrix, matrix.bandwidth, (matrix.low, matrix.high), sizes[0]),
        Quantity("latency", "µs", speeds, matrix.latency_s, None, sizes[1]),
    )


# Who is named beside a matrix: a place at its row or its column, once, and a ring around each pair that its two ends do not explain.

NAME = 20  # letters of a name at most
_WAYS = {"node": "both ways ", "sender": "sends ", "receiver": "receives "}


@dataclass(frozen=True)
class Mark:
    """text   what stands beside the matrix
    at        the row it stands at, or the column where only what is received is slow
    below     whether it is a column
    rows      rows of the picture with an arrow; columns likewise; rings: cells (row, column) with a ring
    """

    text: str
    at: int
    below: bool
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    rings: tuple[tuple[int, int], ...] = ()


def marks(quantity: Quantity, found: Sequence[PairFinding], groups: Groups) -> list[Mark]:
    """The findings of this quantity as marks, the worst first."""
    row_of = groups.rows
    return [_mark(each, ratio, quantity, row_of) for each, ratio in _of(quantity, found)]


def _of(quantity: Quantity, found: Sequence[PairFinding]) -> Iterator[tuple[PairFinding, float]]:
    """The findings of a quantity, and what each reaches in it: a slow latency may be a part of a slow bandwidth."""
    for each in found:
        if each.quantity == quantity.word:
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
    """Each place's name is cut on its own, so that neither of two is lost."""
    names = {place: cut(quantity.matrix.places[place]) for place in found.places}
    if len(found.places) == 1 or found.kind == "pair":
        return found.name([names.get(place, "") for place in range(quantity.matrix.n)])
    return cut(found.name(quantity.matrix.places), 2 * NAME)


def cut(name: str, most: int = NAME) -> str:
    """A name without control characters; of a long one the middle is left out, since names of nodes differ at the end."""
    text = printable(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}"


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


# What is said of each cell of a matrix, packed for the page's script (matrix.js): each text once, and per cell the number of its text.

_DETAILED = 64  # places up to which each cell tells its interval, too: those make nearly every text another one
_UNKNOWN = "not measured"
Indices = NDArray[np.int64]
Part = tuple[Sequence[Any], Indices]  # the values that occur, and the number of its value for each cell


class _Cell(NamedTuple):
    """What makes a cell's text: its figure, its interval, how it stands to the median, and what happened to it."""

    figure: str
    interval: str
    share: int
    wrong: int
    again: bool


@dataclass(frozen=True)
class Texts:
    """book   each text once, the slowest first
    codes  [n × n] which of them a cell has; where the quantity has no direction above the diagonal only
    """

    book: list[str]
    codes: NDArray[np.uint32]

    def packed(self) -> dict[str, object]:
        """JSON-ready: zlib in base64. Of the codes all lowest bytes come first, then all next ones: `wide` bytes each."""
        wide = 1 if len(self.book) <= 1 << 8 else 2 if len(self.book) <= 1 << 16 else 4
        planes = self.codes.astype(f"<u{wide}").view(np.uint8).reshape(-1, wide).T
        return {"texts": _packed("\n".join(self.book).encode()), "codes": _packed(planes.tobytes()), "wide": wide}


def texts_of(quantity: Quantity, again: Collection[tuple[int, int]], order: Indices) -> Texts:
    """The texts of all cells, rows and columns in this order."""
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
    """The fields of `_Cell`, of these cells."""
    matrix = quantity.matrix
    twice = np.zeros((matrix.n, matrix.n), bool)
    for a, b in again:
        twice[a, b] = twice[b, a] = True
    wrong = np.clip(np.nan_to_num(matrix.wrong[rows, columns], posinf=0), 0, 1e15).astype(np.int64)
    others = (_different(each) for each in (quantity.shares()[rows, columns], wrong, twice[rows, columns]))
    return [_figures(quantity, rows, columns), _intervals(quantity, rows, columns), *others]


def _figures(quantity: Quantity, rows: Indices, columns: Indices) -> Part:
    """Ascending values have ascending texts: where the next text begins is found by halving, so that few are written."""
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
    """The combinations that occur, and which of them each cell has."""
    numbers = np.zeros(len(parts[0][1]), np.int64)
    for values, codes in parts:
        _, numbers = np.unique(numbers * len(values) + codes, return_inverse=True)
    _, first = np.unique(numbers, return_index=True)
    return [_Cell(*(values[codes[cell]] for values, codes in parts)) for cell in first], numbers


def _slowness(quantity: Quantity, cell: _Cell) -> tuple[bool, int]:
    """What is unknown comes last."""
    return cell.figure == "", -cell.share if quantity.symmetric else cell.share


def _text_values(quantity: Quantity, cell: _Cell) -> str:
    compared = f", {quantity.against_median(cell.share)}" if cell.share >= 0 else ""
    said = [f"{cell.figure}{cell.interval} {quantity.unit}{compared}" if cell.figure else _UNKNOWN]
    said += [f"wrong data: {cell.wrong} elements are not what was sent"] if cell.wrong else []
    said += ["measured twice, the faster one counts"] if cell.again and cell.figure else []
    return "; ".join(said)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


# One chart per quantity of a pair matrix: the picture, the values behind it, and the figures as a table.

_WHOLE = 12  # places up to which the table is the matrix itself, and half the width of the page is enough
_SLOWEST = 40  # pairs in the table of a larger one
_SHOWN = 2  # pixels of a cell in the picture of all cells, before anybody zooms
_EACH = {
    "host": "Each row and column of the first picture stands for one host",
    "name": "Each row and column of the first picture stands for the places of hosts whose names differ in their last number only",
    "neighbours": "Each row and column of the first picture stands for several neighbouring places",
}


@dataclass(frozen=True)
class Told:
    """A matrix with what there is to say of it.

    key      of its charts within the page; run: before their titles, where there are several
    found    who is named
    samples  of the latency, and of a bandwidth one way, at most
    places   what is paired: "nodes", "ranks"
    """

    key: str
    run: str
    places: str
    effects: PairEffects
    found: Sequence[PairFinding]
    samples: tuple[int, int]


def charts(told: Told) -> list[Chart]:
    """Bandwidth, then latency; what nobody measured has no chart."""
    groups = grouped(told.effects.matrix.places)
    return [_chart(told, each, groups) for each in quantities(told.effects.matrix) if np.isfinite(each.values).any()]


def _chart(told: Told, quantity: Quantity, groups: Groups) -> Chart:
    named = marks(quantity, told.found, groups)
    title = f"{told.run}{quantity.word.capitalize()} of {quantity.size} messages between {quantity.matrix.n} {told.places}"
    shown = picture(f"{told.key}-{quantity.word}", title, quantity, groups, named)
    return Chart(
        key=f"{told.key}-{quantity.word}", title=title, says=_says(quantity, [mark.text for mark in named]),
        made=_made(quantity, groups, told.samples[not quantity.symmetric]),
        drawing=shown.svg + ("" if groups.by == "place" else _full(quantity, groups, title)), table=_table(quantity, told.found),
        data=_data(quantity, told.effects.again, groups, shown.box), wide=quantity.matrix.n > _WHOLE,
    )  # fmt: skip


def _says(quantity: Quantity, named: Sequence[str]) -> str:
    who = f"Named: {'; '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}." if named else "Nobody is named."
    how = "a cell is a pair" if quantity.symmetric else "who sends is a row, who receives a column"
    return f"{who} {how.capitalize()}; dark cells are near the median, the brighter a cell the slower it is."


def _made(quantity: Quantity, groups: Groups, samples: int) -> str:
    each_way = "the size over the time of one message, each way for itself"
    what = "half the time of a message there and back" if quantity.symmetric else each_way
    counted = f"up to {samples} samples" if samples else "its samples"
    parts = [
        f"The {quantity.word} of a pair is {what}, by the median of {counted} of {quantity.size}.",
        "Disjoint pairs are measured at the same time; of a pair that was measured again the faster figure counts, since a disturbance "
        "only makes it slower.",
        f"Colours are five classes below {quantity.median}: the first one is as deep as chance alone reaches, each next one twice as deep.",
        "A ring marks a pair that its two ends do not explain, an arrow a place that is slow with all.",
    ]
    parts += [f"{_EACH[groups.by]}, a cell for their slowest pair; the second picture has every pair."] if groups.by in _EACH else []
    if quantity.matrix.n > _WHOLE:
        named = "beside those of places that are named"
        parts.append(f"The table has the {_SLOWEST} slowest pairs {named}; `collbench report RUN --csv FILE` writes every one.")
    return " ".join(parts)


def _full(quantity: Quantity, groups: Groups, title: str) -> str:
    """All cells, to be scrolled; matrix.css and matrix.js let them be read."""
    side = _SHOWN * quantity.matrix.n
    image, name = image_of(quantity.classes[0][np.ix_(groups.order, groups.order)]), quoteattr(f"{title}, every pair")
    return f'<div class="matrix"><img src="{image}" width="{side}" height="{side}" alt={name}></div>'


def _data(quantity: Quantity, again: Collection[tuple[int, int]], groups: Groups, box: tuple[float, float, float]) -> dict[str, object]:
    """For matrix.js. `joint` stands between the names of a pair; places are in the order of drawing, `starts` are their groups."""
    places = [printable(quantity.matrix.places[place])[:200] for place in groups.order]
    return {
        "kind": "pairs", "places": places, "starts": groups.starts, "labels": [printable(label)[:200] for label in groups.labels],
        "box": box, "joint": "and" if quantity.symmetric else "to", "symmetric": quantity.symmetric,
        **texts_of(quantity, again, np.array(groups.order)).packed(),
    }  # fmt: skip


def _table(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    return _whole(quantity) if quantity.matrix.n <= _WHOLE else _slowest(quantity, found)


def _whole(quantity: Quantity) -> Table:
    """The matrix itself."""
    names = [printable(place) for place in quantity.matrix.places]
    corner = f"{quantity.unit}, {'between' if quantity.symmetric else 'from ↓ to →'}"
    rows = [
        [name, *(quantity.figure(value) or NOTHING for value in row)] for name, row in zip(names, quantity.values.tolist(), strict=True)
    ]
    return Table([corner, *names], rows, frozenset(range(1, len(names) + 1)))


def _slowest(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    """The pairs that are furthest below the median and that no place that is named explains."""
    above = np.where(np.isnan(quantity.above), np.inf, quantity.above)
    if quantity.symmetric:
        above[np.tril_indices(len(above))] = np.inf
    for each in (each for each in found if each.quantity == quantity.word and each.kind != "pair"):
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
    return Table([*ends, quantity.unit, "it is"], rows, frozenset({2}))


# A matrix of pairs as an image, with the places and pairs that stand out by name.

_MOST_REASONS = 5


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
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
        shown += charts(Told(f"pairs-{number}", name, places, effects, found, _samples(stored)))
    return Section("pairs", "Pairs: who is slow", texts, tables, shown)


def _texts(stored: StoredPairs, effects: PairEffects, found: Sequence[PairFinding]) -> list[str]:
    """What was measured, wrong data, findings, doubts, and what should be known of the rounds."""
    from collbench.report.pairs import measured, sentences, wrong_data

    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    flags = {flag for one in stored.rounds for flag in one.flags}
    said = [measured(effects.matrix, about), *wrong_data(effects.matrix), *sentences(effects.matrix, found), *effects.doubts()]
    return [printable(text) for text in (*said, *_unmeasured(stored), *explain(flags), *stored.warnings)]


def _unmeasured(stored: StoredPairs) -> list[str]:
    """How many pairs there was a reason not to measure, by reason."""
    reasons = Counter(why for one in stored.rounds for why in one.na if why is not None)
    named = [f"not measured: {number} {'pair' if number == 1 else 'pairs'}: {why}" for why, number in reasons.most_common(_MOST_REASONS)]
    return [*named, *([f"and {len(reasons) - len(named)} more reasons"] if len(reasons) > len(named) else [])]


def _table_matrix(name: str, effects: PairEffects, found: Sequence[PairFinding]) -> tuple[str, Table]:
    from collbench.report.pairs import TITLES, left_out, place_rows

    chosen, rows = place_rows(effects.matrix, found)
    slow = {place for each in found for place in each.places if each.kind != "pair"}
    marks = {row: "doubtful" for row, place in enumerate(chosen) if place in slow}
    what = left_out(effects.matrix, chosen) if len(chosen) < effects.matrix.n else "medians over partners"
    return f"{name}each place: {what}", Table(TITLES, rows, frozenset({1, 2, 3}), marks)


def _samples(stored: StoredPairs) -> tuple[int, int]:
    """The most samples that a round has: of the latency, of the bandwidth one way."""
    latency, forward, backward = (max((one.n[at] for one in stored.rounds), default=0) for at in range(3))
    return latency, max(forward, backward)
