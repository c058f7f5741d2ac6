"""A comparison for programs: as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from collbench.analysis.compare import CellRatio, Comparison
from collbench.report.flags import defused
from collbench.report.plan import in_print_order
from collbench.report.table import Line
from collbench.results.jsonl import to_page
from collbench.results.record import SERIES, Row
from collbench.stats.ratio import Ratio

STATE = "machine_state_differs"


def csv_lines(found: Comparison) -> Iterator[Line]:
    """One record per cell, also those that only one side has; units stand in the names."""
    records = [_flat(record) for record in _records(found)]
    for values in (list(records[0]), *(list(record.values()) for record in records)):
        text = io.StringIO()
        csv.writer(text).writerow([_defused(value) for value in values])
        yield Line(text.getvalue().removesuffix("\n"))  # RFC 4180 ends records with both


def json_lines(found: Comparison) -> Iterator[Line]:
    """One object: {"schema", "a", "b": {name, launches}, "cells": […], "differences": [{kind, what, a, b}]}.

    A cell: its identity, "size_bytes", "b_is" ("slower", "faster", "same", "unknown", "n/a", "only in A", "only in B"), "within" (0.017:
    at most 1.7 % off, as far as the interval tells), "interval_over_launches", "machine_state_differs", "time_ratio" and "busbw_ratio"
    {value, low, high, n}, and per side "a" and "b" {p50_s, ci_low_s, ci_high_s, busbw_bytes_per_s, launches, canary_s, wrong, na, flags}.
    """
    sides = {name: {"name": side.name, "launches": len(side.runs)} for name, side in (("a", found.a), ("b", found.b))}
    differences = [{"kind": each.kind, "what": each.what, "a": each.a, "b": each.b} for each in found.differences]
    page = to_page({"schema": 1, **sides, "cells": list(_records(found)), "differences": differences})
    yield from (Line(text) for text in page.splitlines())


def in_order(cells: Sequence[CellRatio]) -> list[CellRatio]:
    """The cells series by series, ascending in size."""
    by_row = {id(cell.a): cell for cell in cells}
    return [by_row[id(row)] for row in in_print_order(cell.a for cell in cells)]


def _records(found: Comparison) -> Iterator[dict[str, Any]]:
    for cell in in_order(found.cells):
        yield {
            **_identity(cell.a), "b_is": cell.b_is, "within": cell.within, "interval_over_launches": cell.launches,
            STATE: cell.state_differs, "time_ratio": _ratio(cell.time), "busbw_ratio": _ratio(cell.bandwidth),
            "a": _figures(cell.a, cell.canary_s[0]), "b": _figures(cell.b, cell.canary_s[1]),
        }  # fmt: skip
    for side, rows in (("A", found.only_a), ("B", found.only_b)):
        for row in in_print_order(rows):
            sides = {name.lower(): _figures(row if name == side else None, None) for name in ("A", "B")}
            nothing = {
                "within": None,
                "interval_over_launches": False,
                STATE: False,
                "time_ratio": _ratio(None),
                "busbw_ratio": _ratio(None),
            }
            yield {**_identity(row), "b_is": f"only in {side}", **nothing, **sides}


def _identity(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*SERIES, "size_bytes")}


def _ratio(ratio: Ratio | None) -> dict[str, Any]:
    return {name: getattr(ratio, name, None) for name in ("value", "low", "high", "n")}


def _figures(row: Row | None, canary_s: float | None) -> dict[str, Any]:
    times = row.time_s if row else None
    quantiles = {f"{name}_s": getattr(times, name, None) for name in ("p50", "ci_low", "ci_high")}
    others = {name: getattr(row, name, None) for name in ("busbw_bytes_per_s", "launches", "wrong", "na")}
    return {**quantiles, **others, "canary_s": canary_s, "flags": list(row.flags) if row else []}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= {f"{name}_{inner}": of for inner, of in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _defused(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return defused(" ".join(value) if isinstance(value, list) else str(value))
