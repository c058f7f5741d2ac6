"""The plain table: one header, one full-width line per row, a foot that explains what occurred. Lines are never cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from collbench.report.columns import COLUMNS, Column, not_available, same_for_all, shown_columns, widths
from collbench.report.flags import explain
from collbench.report.plan import PlanSummary
from collbench.results.record import Row


class Line(NamedTuple):
    """A line of data; style is "", "head", "foot", "na" or "wrong"."""

    text: str
    style: str = ""


class RowWriter(Protocol):
    """An output format: turns a run into lines, as it goes."""

    def start(self, plan: PlanSummary) -> list[Line]:
        """What stands before the first row."""
        ...

    def row(self, row: Row) -> list[Line]:
        """What a finished row adds."""
        ...

    def end(self) -> list[Line]:
        """What stands after the last row."""
        ...


class TableWriter:
    """The table for people. `room` is a terminal's width, to which columns are dropped; None: all columns, whatever the width.

    `rows`, where they are known beforehand, make the widths exact.
    """

    def __init__(self, room: int | None = None, rows: Sequence[Row] = ()) -> None:
        self._room = room
        self._rows = rows
        self._flags: set[str] = set()
        self._intervals = False

    def start(self, plan: PlanSummary) -> list[Line]:
        """What is the same in all rows, and the titles."""
        self._launches = plan.launches
        self._columns = shown_columns(plan)
        self._widths = widths(self._columns, plan, self._rows)
        dropped = self._drop(plan)
        facts = same_for_all(plan, dropped)
        self._unsaid = [column.title for column in dropped if column.figure]
        titles = [column.pad(column.title, width) for column, width in zip(self._columns, self._widths, strict=True)]
        return [*([Line(facts, "head")] if facts else []), Line(_joined(titles), "head")]

    def row(self, row: Row) -> list[Line]:
        """One line."""
        self._flags.update(row.flags)
        self._intervals |= row.time_s is not None and row.time_s.ci_low is not None
        pairs = list(zip(self._columns, self._widths, strict=True))
        if row.na is not None:
            cells = [column.pad(column.text(row), width) for column, width in pairs if not column.figure]
            return [Line(_joined([*cells, not_available(row)]), "na")]
        return [Line(_joined(column.pad(column.text(row), width) for column, width in pairs), "wrong" if row.wrong else "")]

    def end(self) -> list[Line]:
        """What the reader should know about the rows above."""
        lines = []
        if self._intervals and self._launches == 1:
            lines.append("intervals: of the median within one launch; another launch may differ by more")
        lines += explain(self._flags)
        if self._unsaid:
            lines.append(f"not shown on a terminal this narrow: {', '.join(self._unsaid)}")
        return [Line(line, "foot") for line in lines]

    def _drop(self, plan: PlanSummary) -> list[Column]:
        """Takes out the least important columns until the line fits, and returns them in order."""
        if self._room is None:
            return []
        spare = sorted((c for c in self._columns if c.rank and not plan.varies(c.title)), key=lambda c: c.rank)
        dropped: list[Column] = []
        while spare and sum(self._widths) + 2 * (len(self._widths) - 1) > self._room:
            place = self._columns.index(spare.pop())
            dropped.append(self._columns.pop(place))
            del self._widths[place]
        return [column for column in COLUMNS if column in dropped]


def _joined(cells: Iterable[str]) -> str:
    return "  ".join(cells).rstrip()
