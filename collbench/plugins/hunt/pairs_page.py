"""The section "Pairs": matrices of bandwidth and latency as pictures, their numbers, and a line per place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from math import exp, isfinite
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

import msgspec
import numpy as np
from msgspec.structs import replace
from rich.cells import cell_len

from collbench.plugins.hunt import pairs_text as texts_of
from collbench.plugins.hunt.pairs import PairEffects, PairFinding
from collbench.plugins.hunt.pairs_text import ITSELF, UNKNOWN, WRONG, Classes
from collbench.plugins.hunt.records import Figures, PairMatrix
from collbench.report.cases import NOTHING
from collbench.report.frame import printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import apart
from collbench.report.material import Material
from collbench.results.flags import explain
from collbench.units import first_of, format_percent, format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from collbench.plugins.hunt.records import StoredPairs


MOST_ROWS = 64  # of a picture: with more rows, cells are too small for a pointer
_LEAST_GROUPS = 8  # with fewer groups, rows of neighbors show more
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


class Groups(msgspec.Struct, frozen=True, dict=True):
    """Groups of places that share a row of the picture if there are many places.

    order   places in the order in which they are drawn
    starts  the index in `order` of the first place of each group
    labels  the name of each group
    by      what a group is: "place", "host", "name" (names that differ in their last number only) or "neighbours"
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    labels: tuple[str, ...]
    by: str

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of the picture by place."""
        groups = np.split(np.array(self.order), self.starts[1:])
        return {int(place): row for row, group in enumerate(groups) for place in group}

    def slowest(self, classes: Classes) -> Classes:
        """Return the highest class of each pair of groups; rows and columns of `classes` are in `order`."""
        return texts_of.highest(classes, self.starts)


def grouped(places: Sequence[str], hosts: Sequence[str] = (), most: int = MOST_ROWS) -> Groups:
    """Return at most `most` groups: single places, those of a host, of hosts with names that differ in the last number, or neighbours."""
    if len(places) <= most:
        numbers = tuple(range(len(places)))
        return Groups(numbers, numbers, tuple(places), "place")
    families = []
    for host in hosts or places:  # the name with a star for its last number, before its domain; of an address the last number of all
        name, dot, domain = host.partition(".")
        families.append(_LAST_NUMBER.sub("*", host) if name.isdigit() else f"{_LAST_NUMBER.sub('*', name)}{dot}{domain}")
    for by, names in (("host", hosts or places), ("name", families)):
        if _LEAST_GROUPS <= len(set(names)) <= most:
            return _by_name(names, by)
    order = _by_name(families, "name").order
    starts = tuple(range(0, len(order), -(-len(order) // most)))
    return Groups(order, starts, tuple(f"{places[order[start]]} …" for start in starts), "neighbours")


def _by_name(names: Sequence[str], by: str) -> Groups:
    """Return groups of equal names, in the order of their first places."""
    members: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        members.setdefault(name, []).append(place)
    starts = np.cumsum([0, *map(len, members.values())])[:-1]
    return Groups(tuple(chain.from_iterable(members.values())), tuple(starts.tolist()), tuple(members), by)


# Five steps of the color map cividis, from the median to far below it, and red for wrong data: color-blind people can distinguish them.
COLORS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838", "#d0104c")


_FARTHEST = 25.0  # logarithms of ratios to the median are limited to this


class Quantity(msgspec.Struct, frozen=True, dict=True):
    """Bandwidth or latency of a matrix in the same form: values as text, ratios to the median, classes and their names.

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
        return texts_of.classes_of(self.matrix)

    @cached_property
    def median(self) -> str:
        """The name of the reference of a pair."""
        return "the median of such paths" if len(texts_of.kinds(self.matrix)) > 1 else "the median"

    @cached_property
    def above(self) -> Figures:
        """The logarithm of each pair's speed / the median; NaN: unknown."""
        speeds = texts_of.above_median(self.matrix)
        return np.where(np.isfinite(speeds), np.clip(speeds, -_FARTHEST, _FARTHEST), np.nan)

    @cached_property
    def medians(self) -> list[float | None]:
        """The median between hosts and that inside hosts, in `unit`; None: no such pair was measured."""
        measured = np.isfinite(self.above)
        inside = self.matrix.inside
        with np.errstate(divide="ignore"):  # the smallest numbers are 0 in `unit`
            logarithms = [np.log(self.in_unit(self.values[kind & measured])) for kind in (~inside, inside)]
        return [rounded(exp(np.median(values)), _DIGITS) if len(values) else None for values in logarithms]

    def in_unit(self, values: Figures) -> Figures:
        """Return values in `unit`; NaN if `figure` has no text for them."""
        with np.errstate(all="ignore"):
            micro = values * 1e6
            return np.where(np.isfinite(micro), micro if self.symmetric else values / 1e9, np.nan)

    def figure(self, value: float) -> str:
        """Return a value as text, without its unit; "" if it is not finite, or too large to be valid."""
        if not np.isfinite(value * 1e6):
            return ""
        return format_time(value) if self.symmetric else format_rate(value)

    def against_median(self, sender: int, receiver: int) -> str:
        """Return the ratio of a known pair to the median as text: "50 % of the median", "1.80 times the median"."""
        above = float(self.above[sender, receiver])
        if self.symmetric:
            return f"{round(100 * exp(-above)) / 100:.2f} times {self.median}"
        percent = round(100 * exp(above)) if exp(above) >= 0.1 else round(1000 * exp(above)) / 10
        return f"{format_percent(percent)} of {self.median}"

    def class_labels(self) -> list[str]:
        """Return the range of each of the five classes."""
        depths = [self.classes[1] * factor for factor in texts_of.DEPTHS]
        if self.symmetric:
            edges = [f"{exp(depth):.2f}" for depth in depths]
            between = [f"{low}–{high}" for low, high in pairwise(edges)]
            return [f"up to {edges[0]} times {self.median}", *between, f"above {edges[-1]}"]
        edges = [f"{100 * exp(-depth):.0f}" for depth in depths]
        between = [f"{low}–{high} %" for high, low in pairwise(edges)]
        return [f"{edges[0]} % of {self.median} or more", *between, f"below {edges[-1]} %"]


def rounded(value: float, digits: int) -> float | None:
    """Return a value rounded to significant digits; None if it is not finite."""
    return float(f"{value:.{digits}g}") if isfinite(value) else None


def quantities(matrix: PairMatrix) -> tuple[Quantity, Quantity]:
    """Return the bandwidth and the latency of a matrix."""
    with np.errstate(all="ignore"):
        speeds = replace(matrix, bandwidth=1 / matrix.latency_s)
    return (
        Quantity("bandwidth", "GB/s", matrix, matrix.bandwidth, (matrix.low, matrix.high), format_size(matrix.size_bytes)),
        Quantity("latency", "µs", speeds, matrix.latency_s, None, format_size(matrix.latency_size_bytes)),
    )


NAME = 20  # characters of a name at most
_WAYS = {"node": "both ways ", "sender": "sends ", "receiver": "receives "}


class Mark(msgspec.Struct, frozen=True):
    """A finding in the picture: a slow place once, at its row or column, and a ring around each pair that its two ends do not explain.

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


def marks(quantity: Quantity, findings: Sequence[PairFinding], groups: Groups) -> list[Mark]:
    """Return the findings of a quantity as marks, the worst first; a finding of bandwidth may have a latency, too."""
    marked = []
    for finding in findings:
        ratio: float | None = finding.ratio
        if finding.quantity != quantity.name:
            ratio = finding.latency_ratio if quantity.symmetric else None
        if ratio is None:
            continue
        reaches = f"{1 / ratio:.2f} times as long" if quantity.symmetric else f"{_WAYS.get(finding.kind, '')}{format_percent(100 * ratio)}"
        text = f"{_name(finding, quantity)}: {reaches}"
        rows = tuple(dict.fromkeys(groups.rows[place] for place in finding.places))
        if finding.kind == "pair":
            a, b = (groups.rows[place] for place in finding.places)
            both_ways = finding.both_ways or quantity.symmetric
            marked.append(Mark(text, a, below=False, rings=((a, b), (b, a)) if both_ways else ((a, b),)))
        elif finding.kind == "receiver" and not quantity.symmetric:
            marked.append(Mark(text, rows[0], below=True, columns=rows))
        else:
            marked.append(Mark(text, rows[0], below=False, rows=rows, columns=rows if finding.kind == "node" else ()))
    return marked


def _name(finding: PairFinding, quantity: Quantity) -> str:
    """Return the name of a finding; each place's name is cut separately, so that both ends of a pair are shown."""
    places = quantity.matrix.places
    if len(finding.places) > 1 and finding.kind != "pair":
        return cut(finding.name(places), 2 * NAME)
    return finding.name([cut(name) if place in finding.places else "" for place, name in enumerate(places)])


def cut(name: str, most: int = NAME) -> str:
    """Return a printable name; a long one lacks its middle, since names of nodes differ at the end."""
    text = printable(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}"


_SIDE, _LARGEST = 480.0, 34.0  # pixels at most: of the matrix, of a cell
_LETTER, _LINE, _GAP = 6.4, 14, 8
_TOP, _LEAST_WIDTH = 18, 460.0
_MOST_SIGNS, _MOST_BELOW = 200, 8


class _CellPicture(msgspec.Struct):
    """An SVG picture of cells and texts, in pixels; its colors are classes of drawing.css."""

    width: float
    height: float = 0.0
    elements: list[str] = msgspec.field(default_factory=list)

    def add(self, name: str, classes: str = "", text: str | None = None, **attributes: float | str) -> None:
        """Add an element. Underscores in names of attributes become hyphens; a text is escaped."""
        shown = f" class={quoteattr(classes)}" if classes else ""
        shown += "".join(f" {key.replace('_', '-')}={quoteattr(_pixels(value))}" for key, value in attributes.items())
        end = "/>" if text is None else f">{escape(printable(text))}</{name}>"
        self.elements.append(f"<{name}{shown}{end}")

    def text(self, x: float, y: float, text: str, anchor: str = "start", classes: str = "soft") -> None:
        """Add a text; `anchor` is the part of it at `x`: start, middle or end."""
        attributes = {} if anchor == "start" else {"text_anchor": anchor}
        self.add("text", classes, text, x=x, y=y, **attributes)

    def line(self, points: Sequence[tuple[float, float]], classes: str) -> None:
        """Add a line through the points."""
        self.add("path", f"line {classes}", d="M" + "L".join(f"{_pixels(x)} {_pixels(y)}" for x, y in points))

    def svg(self, title: str) -> str:
        """Return the picture as an SVG element; `title` is its accessible name."""
        head = f'<svg viewBox="0 0 {_pixels(self.width)} {_pixels(self.height)}" role="img" aria-label={quoteattr(printable(title))}>'
        return f"{head}{''.join(self.elements)}</svg>"


def _pixels(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


class _Drawing:
    """A picture of classes: names on the left and above, labels of findings on the right and below, the legend last.

    The square of cells begins at `start` and has the length `side`, to the right and downwards, in pixels.
    """

    def __init__(self, key: str, quantity: Quantity, groups: Groups, marks: Sequence[Mark]) -> None:
        self.classes = groups.slowest(quantity.classes[0][np.ix_(groups.order, groups.order)])
        self.labels = [cut(label) for label in groups.labels]
        self.cell = min(_LARGEST, _SIDE / len(self.labels))
        self.side = self.cell * len(self.labels)
        self.start = max(map(_wide, self.labels)) + _GAP + _TOP
        self.end = self.start + self.side
        right = _at_most([mark for mark in marks if not mark.below], int(self.side // _LINE))
        below = _at_most([mark for mark in marks if mark.below], _MOST_BELOW)
        ends = [(self.end + 2 * _GAP, mark) for mark in right] + [(self.at(mark.at), mark) for mark in below]
        widths = [x + _wide(mark.text) + 2 * _GAP for x, mark in ends]
        self.picture = _CellPicture(max(self.end + 4 * _GAP, _LEAST_WIDTH, *widths))
        self.unknown = f"url(#{key}-no)"
        self._cells(key)
        self._names(directed=not quantity.symmetric)
        for mark in marks:
            self._signs(mark)
        self._labels(sorted(right, key=lambda mark: mark.at), sorted(below, key=lambda mark: -mark.at))
        arrows = _GAP if any(mark.columns for mark in marks) else 0
        self._legend(quantity.class_labels(), self.end + _GAP + _LINE * len(below) + arrows + _LINE)

    def at(self, place: float) -> float:
        """Return the middle of a row or column in pixels."""
        return self.start + (place + 0.5) * self.cell

    def _cells(self, key: str) -> None:
        add = partial(self.picture.add, x=self.start, y=self.start, width=self.side, height=self.side)
        if (self.classes == UNKNOWN).any():
            pattern = f'<pattern id="{key}-no" width="6" height="6" patternUnits="userSpaceOnUse">'
            self.picture.elements.append(f'<defs>{pattern}<path class="hatch" d="M0 6 6 0"/></pattern></defs>')
            add("rect", fill=self.unknown)
            for row in np.flatnonzero(np.diag(self.classes) == ITSELF).tolist():
                self.picture.add("rect", "paper", x=self.at(row - 0.5), y=self.at(row - 0.5), width=self.cell, height=self.cell)
        place = f"translate({self.start:.1f} {self.start:.1f}) scale({self.cell:.4f})"
        for number, color in enumerate(COLORS):
            # a rectangle for each run of cells of the class in a row
            edges = np.diff(np.pad(self.classes == number, ((0, 0), (1, 1))).astype(np.int8), axis=1)
            begins = np.argwhere(edges > 0).tolist()
            ends = np.argwhere(edges < 0)[:, 1].tolist()
            if begins:
                runs = (f"M{begin} {row}h{end - begin}v1h{begin - end}z" for (row, begin), end in zip(begins, ends, strict=True))
                self.picture.add("path", "cells", fill=color, transform=place, d="".join(runs))
        add("rect", "frame")
        for row, column in np.argwhere(self.classes == WRONG)[:_MOST_SIGNS].tolist():  # color alone is not enough
            self.picture.text(self.at(column), self.at(row) + 4, "!", "middle", "sign")

    def _names(self, directed: bool) -> None:
        if directed:
            self.picture.text(self.start, 11, "receiver →")
            self.picture.text(0, self.start - 6, "sender ↓")
        for row in range(0, len(self.labels), int(-(-(_LINE - 1) // self.cell))):
            self.picture.text(self.start - 5, self.at(row) + 4, self.labels[row], "end", "ink")
            turned = f"translate({self.at(row) + 4:.1f} {self.start - 5:.1f}) rotate(-90)"
            self.picture.add("text", "ink", self.labels[row], transform=turned)

    def _signs(self, mark: Mark) -> None:
        """Draw rings around cells, and arrows at the ends of rows and columns."""
        far = 0.5 * self.cell + 2
        for row, column in mark.rings:
            for layer in ("ring light", "ring"):
                self.picture.add("rect", layer, x=self.at(column) - far, y=self.at(row) - far, width=2 * far, height=2 * far, rx=3)
        arrows = [f"M{self.end + 2:.1f} {self.at(row):.1f}l7-4v8z" for row in mark.rows]
        arrows += [f"M{self.at(column):.1f} {self.end + 2:.1f}l-4 7h8z" for column in mark.columns]
        for arrow in arrows:
            self.picture.add("path", "bad", d=arrow)

    def _labels(self, right: Sequence[Mark], below: Sequence[Mark]) -> None:
        """Draw each label at its row, or as near as the others allow; those below on a line of their own, the last column first."""
        edge = self.end + 10
        heights = apart([self.at(mark.at) for mark in right], _LINE, self.start + _LINE / 2, self.end - _LINE / 2)
        for mark, height in zip(right, heights, strict=True):
            self.picture.line([(edge, self.at(mark.at)), (edge + 12, height)], "frame")
            self.picture.text(edge + 15, height + 4, mark.text, classes="ink")
        for number, mark in enumerate(below, 1):  # no line crosses a text
            x = self.at(mark.at)
            y = self.end + _GAP + _LINE * number
            self.picture.line([(x, self.end + 9), (x, y - 4), (x + 5, y - 4)], "frame")
            self.picture.text(x + 8, y, mark.text, classes="ink")

    def _legend(self, class_labels: Sequence[str], y: float) -> None:
        entries = list(zip(COLORS, class_labels, strict=False))
        for number, fill, label in ((WRONG, COLORS[WRONG], "wrong data (!)"), (UNKNOWN, self.unknown, "not measured")):
            if (self.classes == number).any():
                entries.append((fill, label))
        x = 0.0
        for fill, label in entries:
            if x > 0 and x + 18 + _wide(label) > self.picture.width:
                x = 0.0
                y += _LINE + 4
            self.picture.add("rect", fill=fill, x=x, y=y, width=12, height=12)
            self.picture.text(x + 17, y + 10, label)
            x += 17 + _wide(label) + 2 * _GAP
        self.picture.height = y + _LINE + 4


def _at_most(marks: list[Mark], most: int) -> list[Mark]:
    """Return the first marks, and one with the number of the others."""
    if len(marks) <= most:
        return marks
    return [*marks[: most - 1], Mark(f"and {len(marks) - most + 1} more", marks[most - 1].at, marks[0].below)]


def _wide(text: str) -> float:
    """Return the largest width of a text in pixels: East Asian characters are twice as wide."""
    return _LETTER * cell_len(text)


_WHOLE = 12  # up to this many places, the table is the matrix itself, and half the width of the page is enough
_SLOWEST = 40  # pairs in the table of a larger matrix
_DETAILED = 64  # with more places, the numbers have no intervals and only the digits that are shown, since they are most of the page
_DIGITS, _FEW_DIGITS = 6, {"bandwidth": 3, "latency": 4}  # significant ones
_SHARED = {"host": "of a host", "name": "of hosts with names that differ in the last number only", "neighbours": "next to each other"}


def charts(effects: PairEffects, key: str, run: str, places: str, samples: tuple[int, int]) -> list[Chart]:
    """Return the charts of bandwidth and latency, as far as they were measured: the picture, its values, and a table.

    key      of the charts within the page
    run      prefix of their titles if there are several runs
    places   what is paired: "nodes", "ranks"
    samples  the largest number of samples of a latency, and of a bandwidth one way
    """
    matrix = effects.matrix
    findings = effects.findings()
    groups = grouped(matrix.places, matrix.hosts)
    drawn_charts = []
    for quantity in quantities(matrix):
        if not np.isfinite(quantity.values).any():
            continue
        named = marks(quantity, findings, groups)
        chart_key = f"{key}-{quantity.name}"
        title = f"{run}{quantity.name.capitalize()} of {quantity.size} messages between {matrix.n} {places}"
        drawn = _Drawing(chart_key, quantity, groups, named)
        slow = f"Slow: {first_of([mark.text for mark in named], 3, '; ')}." if named else "No slow place or pair."
        cell = "A cell is a pair" if quantity.symmetric else "Senders are rows, receivers are columns"
        caption = f"{slow} {cell}; dark cells are near the median, brighter cells are slower."
        method = _method(quantity, groups, samples[not quantity.symmetric])
        table = _whole(quantity) if matrix.n <= _WHOLE else _slowest(quantity, findings)
        data = _data(quantity, effects.again, groups, (drawn.start, drawn.start, drawn.side))
        drawn_charts.append(Chart(chart_key, title, caption, method, table, drawn.picture.svg(title), data=data, wide=matrix.n > _WHOLE))
    return drawn_charts


def _method(quantity: Quantity, groups: Groups, samples: int) -> str:
    definition = "half the round trip of a message" if quantity.symmetric else "the size / the time of one message, for each direction"
    counted = f"up to {samples} samples" if samples else "its samples"
    text = (
        f"The {quantity.name} of a pair is {definition}, by the median of {counted} of {quantity.size}. Disjoint pairs are measured at the "
        "same time. If a pair was measured again, the faster result counts, since a disturbance only makes it slower. "
        f"The colours are five classes below {quantity.median}: chance alone reaches the end of the first one, and each next one is twice "
        "as deep. A ring marks a pair that its two ends do not explain; an arrow marks a place that is slow with all others."
    )
    if groups.by in _SHARED:
        text += f" A row of the first picture has the places {_SHARED[groups.by]}, and a cell shows the slowest pair of its places."
    if quantity.matrix.n > _WHOLE:
        text += f" The table has the {_SLOWEST} slowest pairs without those of slow places; `collbench report RUN --csv FILE` writes all."
    return text


def _data(quantity: Quantity, again: Collection[tuple[int, int]], groups: Groups, box: tuple[float, float, float]) -> dict[str, object]:
    """Return the data of pairs.js. Places, rows and columns are in the order of drawing.

    starts   the first place of each group
    joint    the word between the names of a pair
    hosts    a number for the host of each place
    medians  see `Quantity.medians`; `median` is their name
    step     the depth of the first class below the median, as a logarithm
    values   rows of numbers in `unit`; of a symmetric quantity those right of the diagonal
    bounds   the ends of the intervals, like `values`; only of a small matrix
    wrong    (row, column, number of wrong elements)
    again    (row, column) of the pairs that were measured twice
    """
    matrix = quantity.matrix
    order = np.array(groups.order)
    drawn_at = np.argsort(order)
    detailed = matrix.n <= _DETAILED
    digits = _DIGITS if detailed else _FEW_DIGITS[quantity.name]

    def numbers(figures: Figures) -> list[list[float | None]]:
        rows = quantity.in_unit(figures)[np.ix_(order, order)].tolist()
        return [[rounded(value, digits) for value in row[number + 1 if quantity.symmetric else 0 :]] for number, row in enumerate(rows)]

    wrong = np.nan_to_num(matrix.wrong)[np.ix_(order, order)]
    return {
        "kind": "pairs",
        "places": [printable(matrix.places[place])[:200] for place in groups.order],
        "starts": groups.starts,
        "labels": [printable(label)[:200] for label in groups.labels],
        "box": box,
        "joint": "and" if quantity.symmetric else "to",
        "symmetric": quantity.symmetric,
        "unit": quantity.unit,
        "median": quantity.median,
        "medians": quantity.medians,
        "hosts": np.unique(np.array(matrix.hosts), return_inverse=True)[1][order].tolist(),
        "step": rounded(quantity.classes[1], _DIGITS),
        "colors": COLORS,
        "values": numbers(quantity.values),
        "bounds": [numbers(figures) for figures in quantity.bounds or ()] if detailed else [],
        "wrong": [[row, column, int(min(wrong[row, column], 1e15))] for row, column in np.argwhere(wrong > 0).tolist()],
        "again": [[int(drawn_at[a]), int(drawn_at[b])] for a, b in again],
    }


def _whole(quantity: Quantity) -> Table:
    """Return the matrix as a table."""
    names = [printable(place) for place in quantity.matrix.places]
    corner = f"{quantity.unit}, {'between' if quantity.symmetric else 'from ↓ to →'}"
    rows = [
        [name, *(quantity.figure(value) or NOTHING for value in row)] for name, row in zip(names, quantity.values.tolist(), strict=True)
    ]
    return Table([corner, *names], rows, frozenset(range(1, len(names) + 1)))


def _slowest(quantity: Quantity, findings: Sequence[PairFinding]) -> Table:
    """Return the pairs that are furthest below the median, without those of slow places."""
    above = np.where(np.isnan(quantity.above), np.inf, quantity.above)
    if quantity.symmetric:
        above[np.tril_indices(len(above))] = np.inf
    for finding in findings:
        if finding.quantity != quantity.name or finding.kind == "pair":
            continue
        if finding.kind != "receiver":
            above[list(finding.places)] = np.inf
        if finding.kind != "sender":
            above[:, list(finding.places)] = np.inf
    lowest = np.argpartition(above, _SLOWEST, axis=None)[:_SLOWEST]
    pairs = [divmod(int(cell), len(above)) for cell in lowest[np.argsort(above.ravel()[lowest], kind="stable")]]
    names = quantity.matrix.places
    rows = [
        [printable(names[a]), printable(names[b]), quantity.figure(float(quantity.values[a, b])), quantity.against_median(a, b)]
        for a, b in pairs
        if np.isfinite(above[a, b])
    ]
    ends = ("place", "place") if quantity.symmetric else ("sender", "receiver")
    return Table([*ends, quantity.unit, "versus the median"], rows, frozenset({2}))


_MOST_REASONS = 5


def section(material: Material) -> Section | None:
    """Return the section, or None if no run has pairs."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    shown: list[Chart] = []
    runs = material.of_kind("pairs")
    for number, (run, stored) in enumerate(runs):
        effects = stored.effects
        name = f"{printable(run.path.resolve().name)}: " if len(runs) > 1 else ""
        texts += [printable(f"{name}{text}") for text in _texts(stored, summary=number > 0)]
        frame = texts_of.place_frame(effects.matrix, effects.findings())
        tables.append((f"{name}each place: {''.join(frame.foot) or 'medians over partners'}", Table.of(frame)))
        places = {"node": "nodes", "rank": "ranks"}.get(str(stored.about.get("by")), "places")
        latency_n = max((pair_round.n[0] for pair_round in stored.rounds), default=0)
        bandwidth_n = max((max(pair_round.n[1:]) for pair_round in stored.rounds), default=0)
        shown += charts(effects, f"pairs-{number}", name, places, (latency_n, bandwidth_n))
    return Section("pairs", "Pairs: slow nodes and links", texts, tables, shown) if runs else None


def _texts(stored: StoredPairs, summary: bool) -> Iterator[str]:
    """Yield wrong data, doubts, and notes on the rounds; with `summary` what the first screen has of the first run, too."""
    effects = stored.effects
    findings = effects.findings()
    if summary:
        yield texts_of.measured(effects.matrix, stored.shown_about)
    if summary or len(findings) > 1:
        yield from texts_of.sentences(effects.matrix, findings)
    yield from texts_of.wrong_data(effects.matrix)
    yield from effects.doubts()
    reasons = Counter(why for pair_round in stored.rounds for why in pair_round.na if why is not None)
    yield from (f"not measured: {plural(number, 'pair')}: {why}" for why, number in reasons.most_common(_MOST_REASONS))
    if len(reasons) > _MOST_REASONS:
        yield f"and {len(reasons) - _MOST_REASONS} more reasons"
    yield from explain({flag for pair_round in stored.rounds for flag in pair_round.flags})
    yield from stored.warnings
