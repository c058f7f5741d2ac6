"""Rows as JSON, one object per line, exactly as they stand in cells.jsonl."""

from __future__ import annotations

from collbench.report.plan import PlanSummary
from collbench.report.table import Line
from collbench.results.row import Row
from collbench.results.store import to_line


class JsonWriter:
    """One object per row, nothing before and nothing after."""

    def start(self, _plan: PlanSummary) -> list[Line]:
        """Nothing."""
        return []

    def row(self, row: Row) -> list[Line]:
        """The row."""
        return [Line(to_line(row.as_json()))]

    def end(self) -> list[Line]:
        """Nothing."""
        return []
