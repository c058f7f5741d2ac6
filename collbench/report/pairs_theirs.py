"""What other tools said of the pairs, beside what we measured: a line per run, told apart, never judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from collbench.report.columns import NOTHING
from collbench.report.flags import explain, printable
from collbench.report.table import Line
from collbench.results.rounds import PairMatrix
from collbench.results.row import Row
from collbench.units import format_rate, format_size, format_time

_MOST_LINES = 40
_LATENCY = "p2p_latency"
_TITLES = ("from", "to", "tool", "of", "theirs", "ours", "")
_OF_ALL = frozenset({"their_tool", "unverified"})


def their_lines(rows: Sequence[Row], matrix: PairMatrix, backend: str) -> Iterator[Line]:
    """A table with ours in the last column, which kind of figure each tool gives, and what the flags mean; nothing without rows.

    backend: the one that carried ours.
    """
    if not rows:
        return
    yield Line("")
    yield Line(f"other tools beside ours (ours over {printable(backend)})", "head")
    table = [_TITLES, *(_cells(row, matrix) for row in rows[:_MOST_LINES])]
    wide = [max(len(cells[at]) for cells in table) for at in range(len(_TITLES))]
    for cells in table:
        yield Line("  ".join(cell.ljust(size) for cell, size in zip(cells, wide, strict=True)).rstrip())
    if len(rows) > _MOST_LINES:
        yield Line(f"and {len(rows) - _MOST_LINES} more: see --format json", "foot")
    told = dict.fromkeys((f"{row.backend} {_version(row)}".strip(), str(row.evidence.get("statistic"))) for row in rows if not row.na)
    yield from (Line(printable(f"{who}: {what}"), "foot") for who, what in _once(told))
    yield from (Line(text, "foot") for text in explain(flag for row in rows for flag in row.flags))


def their_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as tools.jsonl has them."""
    return [row.as_json() for row in rows]


def _once(told: Any) -> Iterator[tuple[str, str]]:
    """Of each tool the first statistic of a kind: those of the others differ in their seconds."""
    seen = set()
    for who, what in told:
        kind = (who, what.split(" ")[0])
        if kind not in seen:
            seen.add(kind)
            yield who, what


def _version(row: Row) -> str:
    tool = row.evidence.get("tool")
    return str((tool.get("version") if isinstance(tool, dict) else "") or "")[:40]


def _cells(row: Row, matrix: PairMatrix) -> tuple[str, ...]:
    ends = tuple(str(row.evidence.get(name, NOTHING)) for name in ("from", "to"))
    latency = row.operation == _LATENCY
    what = f"{format_size(row.size_bytes)} {'latency' if latency else 'bandwidth'}"
    theirs = f"n/a ({row.na})" if row.na or row.time_s is None else _told(row.time_s.p50 if latency else row.algbw_bytes_per_s, latency)
    inside = ["loopback"] if str(row.evidence.get("path", "")).startswith("loopback") else []
    doubt = ", ".join([*inside, *(flag for flag in row.flags if flag not in _OF_ALL)])
    return tuple(printable(cell[:200]) for cell in (*ends, row.backend, what, theirs, _ours(row, matrix, ends, latency), doubt))


def _ours(row: Row, matrix: PairMatrix, ends: tuple[str, ...], latency: bool) -> str:
    size = matrix.latency_size_bytes if latency else matrix.size_bytes
    if row.size_bytes != size or not all(name in matrix.places for name in ends):
        return NOTHING
    a, b = (matrix.places.index(name) for name in ends)
    value = float((matrix.latency_s if latency else matrix.bandwidth)[a, b])
    return _told(value if np.isfinite(value) else None, latency)


def _told(value: float | None, latency: bool) -> str:
    if value is None:
        return NOTHING
    return f"{format_time(value)} µs" if latency else f"{format_rate(value)} GB/s"
