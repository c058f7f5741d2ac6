"""Rows as CSV (RFC 4180), every field of a row in a column of its own; units stand in the names, lists and objects are JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from collbench.machine.peak.ceiling import Ceiling
from collbench.report.flags import defused
from collbench.report.plan import PlanSummary
from collbench.report.table import Line
from collbench.results.row import Row, Times
from collbench.results.store import plain

_TIMES = [field.name for field in fields(Times)]
_CEILING = [field.name for field in fields(Ceiling)]
_HARD_BOUND = ("kind", "bytes_per_s", "limited_by", "model", "source")  # never measured, so without an interval
_GROUPS = ("count", "ranks", "p50_s", "busbw_bytes_per_s", "total_busbw_bytes_per_s")
# Offsets into samples.bin mean nothing outside the run's folder.
_LEFT_OUT = {"samples"}


class CsvWriter:
    """A header and one record per row; the first column names the run, so that several can be put together."""

    def start(self, plan: PlanSummary) -> list[Line]:
        """The header."""
        self._run = Path(plan.run).name
        return [_record(csv_columns())]

    def row(self, row: Row) -> list[Line]:
        """One record."""
        return [_record([_cell(self._run), *(_cell(value) for _, value in _flat(row))])]

    def end(self) -> list[Line]:
        """Nothing."""
        return []


def csv_columns() -> list[str]:
    """The header's names."""
    return ["run", *(name for name, _ in _flat(None))]


def _flat(row: Row | None) -> Iterator[tuple[str, Any]]:
    for field in fields(Row):
        name, value = field.name, getattr(row, field.name, None)
        if name == "time_s":
            yield from ((f"time_{part}_s", getattr(value, part, None)) for part in _TIMES)
        elif name in ("ceiling", "hard_bound"):
            yield from ((f"{name}_{part}", getattr(value, part, None)) for part in (_CEILING if name == "ceiling" else _HARD_BOUND))
        elif name == "canary_s":
            yield from ((f"canary_{part}_s", (value or {}).get(part)) for part in ("before", "after"))
        elif name == "groups":
            yield from ((f"groups_{part}", (value or {}).get(part)) for part in _GROUPS)
        elif name not in _LEFT_OUT:
            yield name, value
        if name == "percent_of_ceiling":
            yield "percent_of_hard_bound", getattr(row, "percent_of_hard_bound", None)


def _cell(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = _json(value) if isinstance(value, dict | list) else " ".join(value) if isinstance(value, tuple) else str(value)
    return defused(text)


def _json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def _record(cells: list[str]) -> Line:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return Line(text.getvalue().removesuffix("\n"))  # the carriage return stays: RFC 4180 ends records with both
