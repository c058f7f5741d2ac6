"""The plain table: one header, one full-width line per row, a foot that explains what occurred. Lines are never cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from collbench.report.columns import COLUMNS, Column, doubtful, not_available, same_for_all, shown_columns, widths
from collbench.report.flags import explain, printable
from collbench.report.plan import PlanSummary
from collbench.report.tuning import sentences as choices
from collbench.results.reader import Run
from collbench.results.row import Row

_STOPPED = {
    "precision": "precision",
    "out_of_reach": "out of reach",
    "max_time": "max-time",
    "most_samples": "most samples",
    "iterations": "iterations",
}


class Line(NamedTuple):
    """A line of data; style is "", "head", "foot", "na", "doubtful" or "wrong"."""

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

    `rows`, where they are known beforehand, make the widths exact. Without them the foot names ranks that held the others up, from
    the folder that the plan names, and where the library's own choice of algorithm loses; of stored runs `findings` says more.
    """

    def __init__(self, room: int | None = None, rows: Sequence[Row] = ()) -> None:
        self._room = room
        self._rows = rows
        self._printed: list[Row] = []

    def start(self, plan: PlanSummary) -> list[Line]:
        """What is the same in all rows, and the titles."""
        self._plan = plan
        self._columns = shown_columns(plan)
        self._widths = widths(self._columns, plan, self._rows)
        dropped = self._drop(plan)
        facts = same_for_all(plan, dropped)
        self._unsaid = [column.title for column in dropped if column.figure]
        titles = [column.pad(column.title, width) for column, width in zip(self._columns, self._widths, strict=True)]
        return [*([Line(facts, "head")] if facts else []), Line(_joined(titles), "head")]

    def row(self, row: Row) -> list[Line]:
        """One line."""
        self._printed.append(row)
        pairs = list(zip(self._columns, self._widths, strict=True))
        if row.na is not None:
            cells = [column.pad(column.text(row), width) for column, width in pairs if not column.figure]
            return [Line(_joined([*cells, not_available(row)]), "na")]
        style = "wrong" if row.wrong else "doubtful" if doubtful(row) else ""
        return [Line(_joined(column.pad(column.text(row), width) for column, width in pairs), style)]

    def end(self) -> list[Line]:
        """What the reader should know about the rows above."""
        lines = [*self._intervals(), *self._groups(), *stopped_by(self._printed)]
        lines += explain(flag for row in self._printed for flag in row.flags)
        if not self._rows:
            lines += [*map(printable, choices(self._printed)), *self._stragglers()]
        if self._unsaid:
            lines.append(f"not shown on a terminal this narrow: {', '.join(self._unsaid)}")
        return [Line(line, "foot") for line in lines]

    def _intervals(self) -> list[str]:
        if not any(row.time_s is not None and row.time_s.ci_low is not None for row in self._printed):
            return []
        if self._plan.launches > 1:
            return [f"intervals: over the medians of {self._plan.launches} launches"]
        return ["intervals: of the median within one launch; another launch may differ by more"]

    def _groups(self) -> list[str]:
        if not any(row.groups for row in self._printed):
            return []
        return ["groups: all ran at the same time; times, busbw and percentages are the slowest one's"]

    def _stragglers(self) -> list[str]:
        if not self._plan.run or not any(row.samples for row in self._printed):
            return []
        from collbench.analysis.stragglers import stragglers

        run = Run(Path(self._plan.run), {"rank_map": list(self._plan.rank_map)}, self._printed)
        return [printable(each.sentence()) for each in stragglers(run)]

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


def stopped_by(rows: Iterable[Row]) -> list[str]:
    """Why no more samples were taken, in one line: "stopped by: precision 28, max-time 6"; no line where no row tells."""
    reasons = Counter(row.stopped for row in rows if row.stopped)
    order = [*_STOPPED, *sorted(reasons.keys() - _STOPPED.keys())]
    told = [f"{_STOPPED.get(reason, printable(reason))} {reasons[reason]}" for reason in order if reasons[reason]]
    return [f"stopped by: {', '.join(told)}"] if told else []


def _joined(cells: Iterable[str]) -> str:
    return "  ".join(cells).rstrip()
