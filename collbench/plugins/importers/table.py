"""Tables in text: how the lines of a format are recognized, and what its columns mean. `Layout` declares both, and reads the lines.

A line of figures is never read by guessing: one without a word for each column, or without a valid size, is skipped and counted, and one
without a valid time becomes a row without figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from collbench.errors import UsageError
from collbench.plugins.importers.notes import ImportDoubt, SkippedLines, SkippedReason
from collbench.plugins.importers.rows import Quantiles, RowKind, is_size, is_time, parse_number, whole
from collbench.results.row import Row

MICROSECONDS = 1e-6
NANOSECONDS = 1e-9
MEBIBYTES = 1 << 20
GIGABYTES = 1e9
NO_TIME = "the output has no valid time"
_QUANTILES = ("min", "p95", "p99", "max")
_FAILED = "failed"  # the field of the words of a failed case
_WHOLE = ("size", "count")
_LONGEST = 1 << 16  # characters of a line; no tool prints longer ones


def cells(line: str) -> list[str]:
    """Return the words of a line "| a | b |"."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


class TextColumn(NamedTuple):
    """A column of a format.

    heading  a regular expression without groups; of a format without headings, the name of the group in `Layout.record`
    field    "size" (bytes), "count" (elements), "time", "min", "p95", "p99", "max", "rank_mean" (seconds), "rate" (bytes per second),
             "wrong", or a name of the format's own; of several columns with one field, the first that is printed counts
    unit     of the printed figure, in bytes, seconds, …
    shown    whether rows have the figure as it is printed, too
    """

    heading: str
    field: str = ""
    unit: float = 1
    shown: bool = True


class Figures(NamedTuple):
    """A line of figures.

    line     its number
    words    as printed, by field
    values   the valid numbers by field, in bytes, seconds, …
    printed  the words of the columns that rows show, by heading
    """

    line: int
    words: Mapping[str, str]
    values: Mapping[str, float]
    printed: Mapping[str, str]

    @property
    def size(self) -> int | None:
        """The size in bytes, None if it is not an integer."""
        return int(self.values["size"]) if "size" in self.values else None

    @property
    def time_s(self) -> float | None:
        """The time in seconds, None if it is not valid."""
        time_s = self.values.get("time")
        return time_s if time_s is not None and is_time(time_s) else None

    @property
    def spread(self) -> Quantiles:
        """The printed quantiles."""
        return Quantiles(**{name: self.values.get(name) for name in _QUANTILES})


class TextTable(msgspec.Struct):
    """The lines of figures below one line of headings.

    number      of its first line in the file; the first line of a file has the number 1
    layout      of its format
    facts       what the lines before the figures contain
    columns     (heading as printed, column)
    lines       (number of the line, its words by heading)
    bad         numbers of the lines without one word for each column
    unreadable  numbers of the lines without a valid size
    remarks     further texts
    facts_of_lines, sizes  of a format without headings: what each line repeats, and the printed sizes
    """

    number: int
    layout: Layout
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    columns: list[tuple[str, TextColumn]] = msgspec.field(default_factory=list)
    lines: list[tuple[int, dict[str, str]]] = msgspec.field(default_factory=list)
    bad: list[int] = msgspec.field(default_factory=list)
    unreadable: list[int] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
    facts_of_lines: dict[str, str] = msgspec.field(default_factory=dict)
    sizes: set[str] = msgspec.field(default_factory=set)
    is_complete: bool = False

    @property
    def headings(self) -> list[str]:
        """The headings as printed."""
        return [heading for heading, _ in self.columns]

    @property
    def is_begun(self) -> bool:
        """Whether the table has lines of figures."""
        return bool(self.lines or self.bad)

    def titled(self, fact: str) -> str:
        """Return the fact of the line that begins the table. Raises UsageError if the table has no such line."""
        if fact not in self.facts:
            raise UsageError(f"the table at line {self.number}: the title of its test is missing: use the whole output")
        return self.facts[fact]

    def figures(self) -> Iterator[Figures]:
        """Yield the lines of figures."""
        by_field: dict[str, tuple[str, TextColumn]] = {}
        for heading, column in sorted(self.columns, key=lambda entry: self.layout.columns.index(entry[1])):
            by_field.setdefault(column.field, (heading, column))
        for number, texts in self.lines:
            words = {name: texts[heading] for name, (heading, _) in by_field.items() if heading in texts}
            if _FAILED in texts:
                words[_FAILED] = texts[_FAILED]
            values: dict[str, float] = {}
            for name, text in words.items():
                value = whole(text) if name in _WHOLE else parse_number(text)
                if value is not None:
                    unit = by_field[name][1].unit
                    values[name] = value * unit if unit >= 1 else value / round(1 / unit)  # 100 µs are 1e-4 s, not 9.999999999999999e-05 s
            printed = {heading: texts[heading] for heading, column in self.columns if column.shown and heading in texts}
            yield Figures(number, words, values, printed)

    def rows(self, kind: RowKind, wrong: int | None = None, ways: int = 1) -> list[Row]:
        """Return the rows of a format with a size and either a time or a rate on each line; ways: 2 if a rate counts both directions."""
        rows: list[Row] = []
        for figures in self.figures():
            size = figures.size
            time_s = figures.time_s
            rate = figures.values.get("rate")
            if size is None or not is_size(size):
                self.unreadable.append(figures.line)
                continue
            if rate and "time" not in figures.words:
                time_s = ways * size / rate
            if time_s is None or not is_time(time_s):
                rows.append(kind.without_figures(size, size, figures.line, NO_TIME))
            else:
                printed = figures.printed or None
                rows.append(kind.row(size, time_s, line=figures.line, spread=figures.spread, wrong=wrong, printed=printed))
        return rows

    def doubts(self) -> list[ImportDoubt]:
        """Return the doubts about the lines that were left out, if there are any."""
        doubts: list[ImportDoubt] = []
        for numbers, reason in ((self.bad, SkippedReason.INCOMPLETE), (self.unreadable, SkippedReason.UNREADABLE)):
            if numbers:
                doubts.append(SkippedLines(len(numbers), reason, numbers[0]))
        return doubts


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The lines of a format. The named groups of an expression for facts are the facts, or the groups `name` and `value` are one.

    columns   of the format
    headings  what a line of headings contains; None: `figures` matches whole lines, and its groups are columns, or facts of the table
    figures   the beginning of a line of figures
    broken    what only a line of figures contains, where it may be cut or damaged, without headings
    words     returns the words of a line of figures
    failure   the words of a failed case in a line of figures; they become the field "failed"
    begins    the first line of a table, as are a line of headings and one of figures that no such line precedes
    renews    a line after figures that begins another table
    inherits  whether that table has the facts of the one before it; if not, a file may begin with such a line
    before    lines with facts of the table that begins next
    facts     lines before the figures with facts of the table that they are in
    shared    lines with facts of all tables that begin after them
    remarks   other texts of a table, anywhere below its first line
    ends      a line after which the table has no further figures
    """

    columns: Sequence[TextColumn]
    headings: re.Pattern[str] | None = None
    figures: re.Pattern[str] = re.compile(r"\s*\d")
    broken: re.Pattern[str] | None = None
    words: Callable[[str], list[str]] = str.split
    failure: re.Pattern[str] | None = None
    begins: re.Pattern[str] | None = None
    renews: re.Pattern[str] | None = None
    inherits: bool = True
    before: Sequence[re.Pattern[str]] = ()
    facts: Sequence[re.Pattern[str]] = ()
    shared: Sequence[re.Pattern[str]] = ()
    remarks: re.Pattern[str] | None = None
    ends: re.Pattern[str] | None = None

    def tables(self, lines: Sequence[str]) -> list[TextTable]:
        """Return the tables, also those without a line of figures; none if all are without one."""
        tables: list[TextTable] = []
        shared: dict[str, str] = {}
        before: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line or len(line) > _LONGEST or " NCCL INFO " in line:  # a log may have 100,000 lines of NCCL
                continue
            table = tables[-1] if tables else None
            begin = self._begin(table, number, line)
            figures = None if begin or (self.headings and not (table and table.columns)) else self.figures.match(line)
            remark = self.remarks.search(line) if self.remarks and table else None
            if remark and table:
                table.remarks.append(remark[0])
            elif begin:
                begin.facts = {**shared, **before, **begin.facts}
                before = {}
                tables.append(begin)
            elif figures and self.headings is None:
                self._add_record(tables, number, figures, shared)
            elif figures and table:
                self._add(table, number, line)
            elif table and self.broken and self.broken.search(line):
                table.bad.append(number)
            else:
                if table:
                    self._learn(table, line)
                before |= _facts_of(line, self.before)
                shared |= _facts_of(line, self.shared)
        return tables if any(table.is_begun or table.remarks for table in tables) else []

    def columns_in(self, line: str) -> list[tuple[str, TextColumn]]:
        """Return the headings of a line with their columns; [] for another line."""
        if self.headings is None or not self.headings.search(line):
            return []
        return [(match[0], self.columns[(match.lastindex or 1) - 1]) for match in self._any_heading.finditer(line)]

    @property
    def named_columns(self) -> list[tuple[str, TextColumn]]:
        """The columns with their names, for lines without headings and for records."""
        return [(column.heading, column) for column in self.columns]

    @cached_property
    def _any_heading(self) -> re.Pattern[str]:
        """Headings are whole words: "Size(KB)" is not "Size"."""
        return re.compile("|".join(rf"(?<![^\s|])(?:({column.heading}))(?![^\s|])" for column in self.columns))

    def _begin(self, table: TextTable | None, number: int, line: str) -> TextTable | None:
        """Return the table that begins with this line, or None. Headings of a table without figures become its columns."""
        first = self.begins.match(line) if self.begins else None
        if first:
            return TextTable(number, self, _facts_in(first))
        may_begin = table.is_begun if table else not self.inherits
        renewed = self.renews.match(line) if may_begin and self.renews else None
        if renewed:
            facts = table.facts if table and self.inherits else {}
            return TextTable(number, self, {**facts, **_facts_in(renewed)})
        columns = self.columns_in(line)
        if columns and (may_begin or table is None) and not (table and table.is_complete):
            return TextTable(number, self, columns=columns)
        if columns and table and not table.is_begun:
            table.columns = columns
        return None

    def _learn(self, table: TextTable, line: str) -> None:
        if self.ends and self.ends.search(line):
            table.is_complete = True
        if not table.is_begun:
            table.facts |= _facts_of(line, (*self.facts, self.renews) if self.renews else self.facts)

    def _add(self, table: TextTable, number: int, line: str) -> None:
        if table.is_complete:
            return
        failed = self.failure.search(line) if self.failure else None
        words = self.words(line[: failed.start()] if failed else line)
        if failed:
            texts = dict(zip(table.headings, words, strict=False))
            table.lines.append((number, {**texts, _FAILED: line[failed.start() :].strip()}))
        elif len(words) == len(table.columns):
            table.lines.append((number, dict(zip(table.headings, words, strict=True))))
        else:
            table.bad.append(number)

    def _add_record(self, tables: list[TextTable], number: int, figures: re.Match[str], shared: Mapping[str, str]) -> None:
        """Add a line of figures without headings. A size that occurs again, or other facts, begin another table."""
        texts = {name: text for name, text in figures.groupdict().items() if text is not None}
        facts = {name: text for name, text in texts.items() if name not in dict(self.named_columns)}  # of the line
        size = next(texts.get(heading, "") for heading, column in self.named_columns if column.field == "size")
        table = tables[-1] if tables else None
        if table is None or size in table.sizes or facts != table.facts_of_lines:
            table = TextTable(number, self, {**shared, **facts}, self.named_columns, facts_of_lines=facts)
            tables.append(table)
        table.sizes.add(size)
        table.lines.append((number, texts))


def _facts_of(line: str, patterns: Sequence[re.Pattern[str]]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for pattern in patterns:
        for match in pattern.finditer(line):
            facts |= _facts_in(match)
    return facts


def _facts_in(match: re.Match[str]) -> dict[str, str]:
    """Return the facts of a line; those without text are empty."""
    facts = {name: (text or "").strip() for name, text in match.groupdict().items()}
    return {facts["name"]: facts["value"]} if "name" in facts else facts
