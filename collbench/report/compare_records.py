"""A comparison for programs: as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from collbench.analysis.ceilings import Fallen
from collbench.analysis.compare import CellRatio, Comparison, Summary, largest_first
from collbench.report.flags import defused
from collbench.report.plan import in_print_order
from collbench.report.table import Line
from collbench.results.row import SERIES, Row
from collbench.results.store import to_page
from collbench.stats.launches import Ratio

STATE = "machine_state_differs"
_NOT_AVAILABLE = "n/a"


def csv_lines(found: Comparison) -> Iterator[Line]:
    """One record per cell, also those that only one side has; units stand in the names."""
    records = [_flat(record) for record in _records(found)]
    for values in (list(records[0]), *(list(record.values()) for record in records)):
        text = io.StringIO()
        csv.writer(text).writerow([_defused(value) for value in values])
        yield Line(text.getvalue().removesuffix("\n"))  # RFC 4180 ends records with both


def json_lines(found: Comparison) -> Iterator[Line]:
    """Return one object: {"schema", "a", "b": {name, launches}, "margin", "summary", "fallen", "cells": […], "differences": […]}.

    "margin" is the largest difference that counts as no change (0.05 is ±5 %). "summary" counts the cells: "slower", "faster",
    "no_change", "inconclusive", and "one_run_each" (of the inconclusive ones), "not_available", "wrong_data", "only_a", "only_b".
    "fallen" has the "links" {host, name, before_bits_per_s, after_bits_per_s} and "ceilings" {operation, backend, model,
    before_bytes_per_s, after_bytes_per_s, limited_before, limited_after} that are lower in b. A difference: {kind, what, a, b}.
    A cell: its identity, "size_bytes", "outcome" ("slower", "faster", "no change", "inconclusive", "n/a", "only in A", "only in B"),
    "doubt" (why it is inconclusive, null where it is not), "within" (0.017: the interval allows a difference of 1.7 %),
    "interval_over_launches", "machine_state_differs", "time_ratio" and "busbw_ratio" {value, low, high, n}, and per side "a" and "b"
    {p50_s, ci_low_s, ci_high_s, busbw_bytes_per_s, launches, canary_s, wrong, na, flags}.
    """
    sides = {name: {"name": side.name, "launches": len(side.runs)} for name, side in (("a", found.a), ("b", found.b))}
    differences = [{"kind": each.kind, "what": each.what, "a": each.a, "b": each.b} for each in found.differences]
    head = {"schema": 2, **sides, "margin": found.margin, "summary": _summary(found.summary), "fallen": _fallen(found.fallen)}
    page = to_page({**head, "cells": list(_records(found)), "differences": differences})
    yield from (Line(text) for text in page.splitlines())


def in_order(found: Comparison) -> list[CellRatio]:
    """Return the cells series by series, ascending in size; where no ratio has an interval, the largest change first."""
    if found.without_intervals:
        return largest_first(found.cells)
    by_row = {id(cell.a): cell for cell in found.cells}
    return [by_row[id(row)] for row in in_print_order(cell.a for cell in found.cells)]


def _summary(summary: Summary) -> dict[str, int]:
    others = {name: getattr(summary, name) for name in ("one_run_each", "not_available", "wrong_data", "only_a", "only_b")}
    return {**{each.value.replace(" ", "_"): number for each, number in summary.outcomes.items()}, **others}


def _fallen(fallen: Fallen) -> dict[str, list[dict[str, Any]]]:
    links = [
        {"host": each.host, "name": each.name, "before_bits_per_s": each.before, "after_bits_per_s": each.after} for each in fallen.links
    ]
    names = {"before": "before_bytes_per_s", "after": "after_bytes_per_s"}
    ceilings = [{names.get(name, name): value for name, value in vars(each).items()} for each in fallen.ceilings]
    return {"links": links, "ceilings": ceilings}


def _records(found: Comparison) -> Iterator[dict[str, Any]]:
    for cell in in_order(found):
        yield {
            **_identity(cell.a), "outcome": _NOT_AVAILABLE if cell.outcome is None else cell.outcome.value,
            "doubt": cell.doubt and cell.doubt.value, "within": cell.within, "interval_over_launches": cell.launches,
            STATE: cell.state_differs, "time_ratio": _ratio(cell.time), "busbw_ratio": _ratio(cell.bandwidth),
            "a": _figures(cell.a, cell.canary_s[0]), "b": _figures(cell.b, cell.canary_s[1]),
        }  # fmt: skip
    for side, rows in (("A", found.only_a), ("B", found.only_b)):
        for row in in_print_order(rows):
            sides = {name.lower(): _figures(row if name == side else None, None) for name in ("A", "B")}
            nothing = {
                "doubt": None,
                "within": None,
                "interval_over_launches": False,
                STATE: False,
                "time_ratio": _ratio(None),
                "busbw_ratio": _ratio(None),
            }
            yield {**_identity(row), "outcome": f"only in {side}", **nothing, **sides}


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
