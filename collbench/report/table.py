"""Frames: tables as values, and their forms: text for a terminal of any width, Markdown, CSV and JSON lines.

Every table of the program is a `Frame`: columns, records, and the texts above and below. A column has the text for people and the value
for programs. One layout fits a frame into a width: columns leave in the order of `drop`, then long texts are cut with "…". No line of a
table is ever wrapped; sentences are wrapped between words.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from collbench.results.store import plain

R = TypeVar("R")
GAP = "  "
_FIELD_LETTERS = 32_767  # the most that a spreadsheet holds in a field
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_SHORTEST = 8  # characters that stay of a text that is cut


def printable(text: str) -> str:
    """Return `text` with "?" for each character that could move a cursor or reverse a line."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def defused(text: str) -> str:
    """Return printable text that a spreadsheet does not run as a formula (in some countries those begin with full-width signs).

    It is cut at the length of a spreadsheet's case, since some CSV readers reject longer ones.
    """
    text = printable(text if len(text) < _FIELD_LETTERS else f"{text[: _FIELD_LETTERS - 2]}…")
    return f"'{text}" if text.startswith(_FORMULA) else text


class Line(NamedTuple):
    """A line of output; `style` is "", "head", "foot", "na", "doubtful" or "wrong"."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a frame.

    key     its name for programs: in CSV and JSON, with the unit ("time_p50_s"); "": people only
    title   its heading for people, with the unit ("time µs")
    text    a record's text for people
    value   a record's value for programs; None: the text
    right   aligned to the right, as figures are
    drop    0: always shown; a terminal without room drops the columns with the highest number first
    cut     may be cut with "…" where the line is still too long
    least   width in characters, for tables that are printed before all records are known
    """

    key: str
    title: str
    text: Callable[[R], str]
    value: Callable[[R], Any] | None = None
    right: bool = False
    drop: int = 0
    cut: bool = False
    least: int = 0

    def pad(self, text: str, width: int) -> str:
        """Return the text in exactly `width` characters: padded, or cut with "…"."""
        shown = text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
        return shown.rjust(width) if self.right else shown.ljust(width)


@dataclass(frozen=True)
class Frame(Generic[R]):
    """A table.

    columns  from left to right
    records  from top to bottom
    title    one line above the headings: what is the same in all records; ""
    head     sentences above the title
    foot     sentences below the table
    style    a record's style: "", "na", "doubtful" or "wrong"
    instead  a record's text in place of all columns with `drop` or `right` (an n/a reason); None: its columns
    """

    columns: Sequence[Column[R]]
    records: Sequence[R]
    title: str = ""
    head: Sequence[str] = ()
    foot: Sequence[str] = ()
    style: Callable[[R], str] = field(default=lambda record: "")
    instead: Callable[[R], str | None] = field(default=lambda record: None)


class TextLayout(Generic[R]):
    """The columns of a frame that fit into a width, and their widths in characters."""

    def __init__(self, frame: Frame[R], width: int | None) -> None:
        self.frame, self.width = frame, width
        whole = [record for record in frame.records if frame.instead(record) is None]
        self.columns = list(frame.columns)
        self.widths = [max([len(c.title), c.least, *(len(printable(c.text(record))) for record in whole)]) for c in self.columns]
        self.dropped: list[Column[R]] = []
        if width is not None:
            self._drop(width)
            self._cut(width)

    @property
    def line_width(self) -> int:
        """Return the length of a full line."""
        return sum(self.widths) + len(GAP) * max(len(self.widths) - 1, 0)

    def heading(self) -> str:
        """Return the line of titles."""
        titles = (column.pad(column.title, width) for column, width in zip(self.columns, self.widths, strict=True))
        return self._fitted(GAP.join(titles).rstrip())

    def line(self, record: R) -> Line:
        """Return the line of a record."""
        instead = self.frame.instead(record)
        pairs = list(zip(self.columns, self.widths, strict=True))
        if instead is None:
            texts = [column.pad(printable(column.text(record)), width) for column, width in pairs]
        else:
            texts = [column.pad(printable(column.text(record)), width) for column, width in pairs if not (column.drop or column.right)]
            texts.append(printable(instead))
        return Line(self._fitted(GAP.join(texts).rstrip()), self.frame.style(record))

    def _fitted(self, text: str) -> str:
        return text if self.width is None or len(text) <= self.width else f"{text[: self.width - 1]}…"

    def _drop(self, width: int) -> None:
        spare = sorted((column for column in self.columns if column.drop), key=lambda column: column.drop)
        while spare and self.line_width > width:
            place = self.columns.index(spare.pop())
            self.dropped.insert(0, self.columns.pop(place))
            del self.widths[place]

    def _cut(self, width: int) -> None:
        """Shorten the widest texts that may be cut, one character at a time, so that several long ones stay readable."""
        places = [place for place, column in enumerate(self.columns) if column.cut]
        while places and self.line_width > width:
            widest = max(places, key=lambda place: self.widths[place])
            if self.widths[widest] <= max(_SHORTEST, len(self.columns[widest].title)):
                return
            self.widths[widest] -= 1


def wrapped_text(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a sentence as lines of at most `width` characters, broken between words; later lines begin with `indent`."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=True)


def table_lines(frame: Frame[Any], width: int | None = None) -> Iterator[Line]:
    """Yield the frame as text: head, title, headings, records, foot. `width`: columns of the terminal; None: a file, with all columns."""
    layout = TextLayout(frame, width)
    for sentence in frame.head:
        yield from (Line(text) for text in wrapped_text(printable(sentence), width))
    if frame.title:
        yield from (Line(text, "head") for text in wrapped_text(printable(frame.title), width, "  "))
    if frame.records:
        yield Line(layout.heading(), "head")
        yield from map(layout.line, frame.records)
    for sentence in frame.foot:
        yield from (Line(text, "foot") for text in wrapped_text(printable(sentence), width, "  "))


def csv_lines(frame: Frame[Any]) -> Iterator[Line]:
    """Yield the frame as CSV (RFC 4180): a header of keys and a record per line. Unknown values are empty."""
    columns = [column for column in frame.columns if column.key]
    yield csv_record(column.key for column in columns)
    for each in frame.records:
        yield csv_record(csv_text(column.value(each) if column.value else column.text(each)) for column in columns)


def csv_record(values: Iterable[str]) -> Line:
    """Return one record of CSV."""
    text = io.StringIO()
    csv.writer(text).writerow(list(values))
    return Line(text.getvalue().removesuffix("\n"))  # keep the carriage return: records of RFC 4180 end with both


def csv_text(value: Any) -> str:
    """Return a value as the text of a CSV field: "" if unknown, JSON for objects, and text that no spreadsheet runs as a formula."""
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict | list):
        value = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return defused(" ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def json_lines(frame: Frame[Any]) -> Iterator[Line]:
    """Yield an object per record, with the columns' keys."""
    for each in frame.records:
        values = {column.key: column.value(each) if column.value else column.text(each) for column in frame.columns if column.key}
        yield Line(json.dumps(plain(values), allow_nan=False, ensure_ascii=False))
