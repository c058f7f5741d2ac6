"""A backend that measures nothing is one line, not a row for each size: for the formats that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from collbench.report.columns import not_available
from collbench.report.flags import printable
from collbench.report.plan import PlanSummary
from collbench.report.table import Line, RowWriter
from collbench.results.row import Row

Form = Callable[[str], Line]


def table_line(text: str) -> Line:
    """As the table shows it."""
    return Line(text, "na")


def comment_line(text: str) -> Line:
    """As nccl-tests' text shows it."""
    return Line(f"# {text}")


class OneLinePerAbsentBackend:
    """Passes rows on to a writer, but for those of a backend whose rows are all n/a for one reason: one line replaces them.

    Of `rows` that are known beforehand it knows these backends. Else it holds a backend's rows, which come together, while they are alike.
    """

    def __init__(self, writer: RowWriter, form: Form = table_line, rows: Iterable[Row] | None = None) -> None:
        self._writer, self._form = writer, form
        self._known = None if rows is None else _absent(rows)
        self._shown: set[str] = set()
        self._held: list[Row] = []
        self._mixed: set[str] = set()  # backends of which some row was passed on
        self._planned: Mapping[str, int] = {}

    def start(self, plan: PlanSummary) -> list[Line]:
        """What stands before the first row."""
        self._planned = plan.by_backend
        return self._writer.start(plan)

    def row(self, row: Row) -> list[Line]:
        """What a finished row adds; nothing while it is held."""
        if self._known is not None:
            return self._of_known(row, self._known)
        lines = [] if not self._held or _alike(self._held[0], row) else self._release()
        if row.na is None or row.backend in self._mixed:
            self._mixed.add(row.backend)
            return [*lines, *self._writer.row(row)]
        self._held.append(row)
        return lines if len(self._held) < self._planned.get(row.backend, 0) else [*lines, *self._collapse()]

    def end(self) -> list[Line]:
        """What stands after the last row."""
        return [*(self._collapse() if len(self._held) > 1 else self._release()), *self._writer.end()]

    def _of_known(self, row: Row, absent: Mapping[str, int]) -> list[Line]:
        if row.backend not in absent:
            return self._writer.row(row)
        if row.backend in self._shown:
            return []
        self._shown.add(row.backend)
        return [self._line(row, absent[row.backend])]

    def _release(self) -> list[Line]:
        held, self._held = self._held, []
        self._mixed |= {row.backend for row in held}
        return [line for row in held for line in self._writer.row(row)]

    def _collapse(self) -> list[Line]:
        if len(self._held) == 1:
            return self._release()
        first, count = self._held[0], len(self._held)
        self._held = []
        return [self._line(first, count)]

    def _line(self, row: Row, count: int) -> Line:
        return self._form(printable(f"{row.backend}, {count} cases: {not_available(row)}"))


def _alike(held: Row, row: Row) -> bool:
    return (held.backend, held.na) == (row.backend, row.na)


def _absent(rows: Iterable[Row]) -> dict[str, int]:
    """The backends with several rows that are all n/a for one reason, and how many rows each has."""
    every = list(rows)
    counts, reasons = Counter(row.backend for row in every), {(row.backend, row.na) for row in every}
    several = Counter(backend for backend, _ in reasons)
    return {backend: counts[backend] for backend, why in reasons if why is not None and several[backend] == 1 and counts[backend] > 1}
