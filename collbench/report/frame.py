"""Frames: tables as values, and their forms: text for a terminal of any width, Markdown, HTML, CSV and JSON
lines.

Every table of the program is a `Frame`: columns, records, and the texts above and below. A column has the text for people and the value
for programs. One layout fits a frame into a width: columns leave in the order of `drop`, then long texts are cut with "…". No line of a
table is wrapped by the terminal; sentences, and the text of a last column with `wrap`, are wrapped between words.
"""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import msgspec

from collbench.results.store import plain

if TYPE_CHECKING:
    from collbench.columns import ValueColumn

R = TypeVar("R")
GAP = "  "
_EMPTY = ("", "–")  # texts of a value without meaning, and of an unknown one
_FIELD_LETTERS = 32_767  # the most that a spreadsheet holds in a field
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_SHORTEST = 8  # characters that stay of a text that is cut
_WRAPPED = 24  # the narrowest column of wrapped text; with less room, the text begins on a line of its own
_BELOW = " " * 4


def printable(text: str) -> str:
    """Return `text` with "?" for each character that could move a cursor or reverse a line."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def defused(text: str) -> str:
    """Return printable text that a spreadsheet does not run as a formula (in some countries those begin with full-width signs).

    It is cut at the length of a spreadsheet's case, since some CSV readers reject longer ones.
    """
    text = printable(text if len(text) < _FIELD_LETTERS else f"{text[: _FIELD_LETTERS - 2]}…")
    return f"'{text}" if text.startswith(_FORMULA) else text


def without_empty(columns: Iterable[Column[R]], records: Sequence[R]) -> list[Column[R]]:
    """Return the columns that are not blank or a dash in all records."""
    return [column for column in columns if any(column.text(record) not in _EMPTY for record in records)]


class Line(NamedTuple):
    """A line of output; `style` is "", "head", "foot", "na", "doubtful" or "wrong"; `whole`: whether it is never broken."""

    text: str
    style: str = ""
    whole: bool = False


class Display(NamedTuple):
    """Where lines for people go.

    width   columns of the terminal; None: a file, where lines stay whole
    color   whether to use colors
    blocks  whether its encoding has block characters
    """

    width: int | None = None
    color: bool = False
    blocks: bool = True


class Column(msgspec.Struct, Generic[R], frozen=True):
    """A column of a frame.

    key     its name for programs: in CSV and JSON, with the unit ("time_p50_s"); "": people only
    title   its heading for people, with the unit ("time µs")
    text    a record's text for people
    value   a record's value for programs; None: the text
    right   aligned to the right, as figures are
    drop    0: always shown; a terminal without room drops the columns with the highest number first
    cut     may be cut with "…" where the line is still too long
    wrap    the last column only: a long text continues on further lines, below its beginning
    least   width in characters, for tables that are printed before all records are known
    """

    key: str
    title: str
    text: Callable[[R], str]
    value: Callable[[R], Any] | None = None
    right: bool = False
    drop: int = 0
    cut: bool = False
    wrap: bool = False
    least: int = 0

    @classmethod
    def of(cls, declared: ValueColumn, text: Callable[[R], str] | None = None, **others: Any) -> Self:
        """Return the column of a declared field; without `text`, with its value in its unit. others: further fields of the column."""
        return cls(title=declared.title, text=text or declared.text, right=declared.right, drop=declared.drop, **{"key": "", **others})

    def value_of(self, record: R) -> Any:
        """Return a record's value for programs."""
        return self.value(record) if self.value else self.text(record)

    def pad(self, text: str, width: int) -> str:
        """Return the text padded to `width` characters; a longer one is cut with "…" if the column may be cut."""
        shown = f"{text[: max(width - 1, 0)]}…" if self.cut and len(text) > width else text
        return shown.rjust(width) if self.right else shown.ljust(width)


class Frame(msgspec.Struct, Generic[R], frozen=True):
    """A table.

    columns  from left to right
    records  from top to bottom
    title    one line above the headings: what is the same in all records; ""
    head     sentences above the title
    foot     sentences below the table
    style    a record's style: "", "na", "doubtful" or "wrong"
    instead  a record's text in place of all columns with `drop` or `right` (an n/a reason); None: its columns
    names_hidden  whether a line names the columns that a terminal has no room for
    """

    columns: Sequence[Column[R]]
    records: Sequence[R]
    title: str = ""
    head: Sequence[str] = ()
    foot: Sequence[str] = ()
    style: Callable[[R], str] = msgspec.field(default=lambda record: "")
    instead: Callable[[R], str | None] = msgspec.field(default=lambda record: None)
    names_hidden: bool = False


class TextLayout(Generic[R]):
    """The columns of a frame that fit into a width, and their widths in characters."""

    def __init__(self, frame: Frame[R], width: int | None) -> None:
        self.frame = frame
        self.width = width
        self.columns = list(frame.columns)
        self.widths: list[int] = []
        with_figures = [record for record in frame.records if frame.instead(record) is None]
        for column in self.columns:
            records = with_figures if column.drop or column.right else frame.records
            longest = max([len(column.title), column.least, *(len(printable(column.text(record))) for record in records)])
            self.widths.append(min(longest, _WRAPPED) if column.wrap and width is not None else longest)
        if width is not None:
            self._drop(width)
            self._cut(width)

    @property
    def line_width(self) -> int:
        """Return the length of a full line."""
        return sum(self.widths) + len(GAP) * max(len(self.widths) - 1, 0)

    @property
    def dropped(self) -> list[Column[R]]:
        """Return the columns that the terminal has no room for."""
        return [column for column in self.frame.columns if column not in self.columns]

    def hidden(self) -> list[str]:
        """Return a sentence with the titles of the dropped columns; nothing if no column was dropped."""
        titles = ", ".join(column.title for column in self.dropped)
        return [f"not shown on a terminal this narrow: {titles}"] if titles else []

    def heading(self) -> str:
        """Return the line of titles."""
        return self._fitted(column.pad(column.title, width) for column, width in zip(self.columns, self.widths, strict=True))

    def line(self, record: R) -> Line:
        """Return the first line of a record; there are others only with wrapped text."""
        return next(self.lines(record))

    def lines(self, record: R) -> Iterator[Line]:
        """Yield the line of a record, and the further lines of its wrapped text."""
        instead = self.frame.instead(record)
        style = self.frame.style(record)
        widths = zip(self.columns, self.widths, strict=True)
        kept = [(column, width) for column, width in widths if instead is None or not (column.drop or column.right)]
        texts = [column.pad(printable(column.text(record)), width) for column, width in kept]
        if instead is None and self.width is not None and self.columns[-1].wrap:
            yield from (Line(text, style) for text in self._wrapped(GAP.join(texts[:-1]), texts[-1].rstrip(), self.width))
        else:
            yield Line(self._fitted(texts if instead is None else [*texts, printable(instead)]), style)

    def _wrapped(self, before: str, text: str, width: int) -> list[str]:
        start = f"{before}{GAP}" if before else ""
        if len(text) <= width - len(start):
            return [f"{start}{text}".rstrip()]
        if width - len(start) >= _WRAPPED:
            first, *rest = textwrap.wrap(text, width - len(start), break_on_hyphens=False)
            return [f"{start}{first}", *(f"{'':{len(start)}}{part}" for part in rest)]
        start = " " * (self.widths[0] + len(GAP))
        below = start if len(start) <= width - _WRAPPED else _BELOW
        return [
            self._fitted([before]),
            *textwrap.wrap(text, width, initial_indent=below, subsequent_indent=below, break_on_hyphens=False),
        ]

    def _fitted(self, texts: Iterable[str]) -> str:
        text = GAP.join(texts).rstrip()
        return text if self.width is None or len(text) <= self.width else f"{text[: self.width - 1]}…"

    def _drop(self, width: int) -> None:
        spare = sorted((column for column in self.columns if column.drop), key=lambda column: column.drop)
        while spare and self.line_width > width:
            place = self.columns.index(spare.pop())
            del self.columns[place], self.widths[place]

    def _cut(self, width: int) -> None:
        """Shorten the widest texts that may be cut, one character at a time, so that several long ones stay readable."""
        least = {place: max(_SHORTEST, len(column.title)) for place, column in enumerate(self.columns) if column.cut}
        while self.line_width > width:
            spare = [place for place, shortest in least.items() if self.widths[place] > shortest]
            if not spare:
                return
            self.widths[max(spare, key=lambda place: self.widths[place])] -= 1


def text_columns(titles: Sequence[str], right: Sequence[str] = (), drop: Sequence[str] = (), cut: Sequence[str] = ()) -> list[Column[Any]]:
    """Return columns of records that are sequences of texts, in the order of `titles`; `drop`: those that a narrow terminal drops first."""
    order = {title: len(drop) - place for place, title in enumerate(drop)}
    return [
        Column("", title, itemgetter(place), right=title in right, drop=order.get(title, 0), cut=title in cut)
        for place, title in enumerate(titles)
    ]


def text_lines(text: str, width: int | None, style: str = "", indent: str = GAP) -> Iterator[Line]:
    """Yield a printable sentence as lines of at most `width` characters, broken between words; later lines begin with `indent`."""
    shown = printable(text)
    if width is None or len(shown) <= width:
        yield Line(shown, style)
        return
    for part in textwrap.wrap(shown, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=True):
        yield Line(part, style)


def table_lines(frame: Frame[Any], width: int | None = None) -> Iterator[Line]:
    """Yield the frame as text: head, title, headings, records, foot. `width`: columns of the terminal; None: a file, with all columns."""
    layout = TextLayout(frame, width)
    for sentence in frame.head:
        yield from text_lines(sentence, width, indent="")
    if frame.title:
        yield from text_lines(frame.title, width, "head")
    if frame.records:
        heading = layout.heading()
        if heading:
            yield Line(heading, "head")
        yield from (line for record in frame.records for line in layout.lines(record))
    for sentence in (*(layout.hidden() if frame.names_hidden else ()), *frame.foot):
        yield from text_lines(sentence, width, "foot")


def csv_lines(frame: Frame[Any], headed: bool = False) -> Iterator[Line]:
    """Yield the frame as CSV: a header of keys, unless there is one already, and a record per line. Unknown values are empty."""
    columns = [column for column in frame.columns if column.key]
    records = ([column.value_of(record) for column in columns] for record in frame.records)
    return csv_table([column.key for column in columns], records, headed)


def csv_table(keys: Iterable[str], records: Iterable[Iterable[Any]], headed: bool = False) -> Iterator[Line]:
    """Yield CSV (RFC 4180): a header of `keys`, unless there is one already, and a line for each record."""
    if not headed:
        yield csv_record(keys)
    for record in records:
        yield csv_record(map(csv_text, record))


def csv_of(records: Sequence[Mapping[str, Any]], headed: bool = False) -> Iterator[Line]:
    """Yield objects with the same keys as CSV; nothing without objects."""
    return csv_table(records[0], (record.values() for record in records), headed) if records else iter(())


def csv_record(values: Iterable[str]) -> Line:
    """Return one record of CSV."""
    import csv

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
    for record in frame.records:
        values = {column.key: column.value_of(record) for column in frame.columns if column.key}
        yield Line(json.dumps(plain(values), allow_nan=False, ensure_ascii=False))


# Markdown of GitHub: text is escaped, so that untrusted text cannot become markup, a link or a mention.

# In the order of replacement: later ones insert "&" and "\\".
_LETTERS = (
    ("&", "&amp;"), ("<", "&lt;"), ("\\", "\\\\"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*"), ("_", "\\_"), ("[", "\\["), ("~", "\\~"),
    ("$", "&#36;"), ("://", ":&#47;&#47;"), ("www.", "www&#46;"), ("@", "@<!-- -->"),
)  # fmt: skip
_OPENS_A_BLOCK = re.compile(r"^(?:([-+#=>])|(\d+)(?=[.)](?:\s|$)))")


def escaped(text: str) -> str:
    """Return `text` escaped for a line or a table field of Markdown."""
    text = printable(text)
    for letters, replacement in _LETTERS:
        text = text.replace(letters, replacement)
    return text


def escaped_line(text: str) -> str:
    """Return `text` escaped as a separate line or list item, where a number or a sign at the start would open a block."""
    return _OPENS_A_BLOCK.sub(lambda start: f"\\{start[1]}" if start[1] else f"{start[2]}\\", escaped(text.strip()))


def _markdown_record(texts: Iterable[str]) -> str:
    return f"| {' | '.join(map(escaped, texts))} |"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[bool]) -> list[str]:
    """Return the lines of a Markdown table; `right` has True for each right-aligned column."""
    return [_markdown_record(head), f"|{'|'.join('---:' if is_right else '---' for is_right in right)}|", *map(_markdown_record, rows)]


def items(texts: Iterable[str]) -> list[str]:
    """Return the lines of a Markdown list."""
    return [f"- {escaped_line(text)}" for text in texts]


def markdown_lines(frame: Frame[Any]) -> Iterator[Line]:
    """Yield the frame as Markdown: head and title as paragraphs, the table with all columns, the foot as a list."""
    for sentence in [*frame.head, frame.title] if frame.title else frame.head:
        yield from (Line(escaped_line(sentence)), Line(""))
    rows = ([column.text(record) for column in frame.columns] for record in frame.records)
    titles = [column.title for column in frame.columns]
    yield from map(Line, markdown_table(titles, rows, [column.right for column in frame.columns]))
    if frame.foot:
        yield from map(Line, ["", *items(frame.foot)])


# HTML of a notebook: a fragment, which the notebook styles. All text is escaped.


def html_text(frame: Frame[Any]) -> str:
    """Return the frame as HTML: head and title as paragraphs, the table with all columns, the foot as paragraphs."""
    parts = list(map(html_paragraph, frame.head))
    if frame.title:
        parts.append(f"<p><b>{_html(frame.title)}</b></p>")
    if frame.records:
        head = "".join(_html_field("th", column, column.title) for column in frame.columns)
        rows = ("".join(_html_field("td", column, column.text(record)) for column in frame.columns) for record in frame.records)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "\n".join([*parts, *map(html_paragraph, frame.foot)])


def html_paragraph(text: str) -> str:
    """Return a text as a paragraph of HTML."""
    return f"<p>{_html(text)}</p>"


def _html(text: str) -> str:
    from html import escape  # here, since ranks that print a table need no entities

    return escape(printable(text))


def _html_field(tag: str, column: Column[Any], text: str) -> str:
    return f'<{tag} style="text-align: {"right" if column.right else "left"}">{_html(text)}</{tag}>'
