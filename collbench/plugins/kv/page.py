"""The section "Block transfers": the rates of the methods as a chart, all rows, and the costs per transfer and per block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from collbench.machine.peak.ceiling import ABOVE_LIMIT, is_above_limit
from collbench.plugins.kv.records import KvRow
from collbench.plugins.kv.text import BLOCK_TRANSFERS, blocks_text, remarks, sorted_rows, title
from collbench.report.cases import rate
from collbench.report.charts import Bar, BarPanel
from collbench.report.forms import frame_of
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import bar_chart
from collbench.units import format_percent, format_span, listed, plural

if TYPE_CHECKING:
    from collbench.report.material import Material

_MOST_BARS = 16
_FASTEST = 1e15  # bytes per second: a larger rate is not valid
_METHOD = (
    "A bar is the bytes of all blocks divided by the median time until the last target has all of them. Each method moves the same blocks "
    "between the same places. The horizontal line is the 95 % interval of the median. The vertical mark is the rate of the limiting link, "
    "where blocks cross hosts."
)


def section(material: Material) -> Section | None:
    """Return the section, or None if no run moved blocks."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    charts: list[Chart] = []
    runs = material.of_kind("kv")
    for number, (run, rows) in enumerate(runs):
        if not rows:
            continue
        name = f"{printable(run.path.resolve().name)}: " if len(runs) > 1 else ""
        tables.append((f"{name}{title(rows)}", Table.of(frame_of(BLOCK_TRANSFERS, rows))))
        texts += [f"{name}{text}" for text in remarks(rows)]
        chart = _chart(f"kv-{number}", name, rows)
        if chart:
            charts.append(chart)
    return Section("kv", "Block transfers", list(dict.fromkeys(texts)), tables, charts) if tables else None


def most_bytes(rows: Sequence[KvRow]) -> list[KvRow]:
    """Return the measured rows with the most bytes, the fastest first: those of one number and size of blocks."""
    measured = [row for row in rows if row.bytes_per_s is not None and row.bytes_per_s < _FASTEST]
    cases = [list(methods) for _, methods in groupby(sorted_rows(measured), key=lambda row: (row.block_bytes, row.blocks))]
    return max(cases, key=lambda case: case[0].size_bytes, default=[])


def fastest_text(shown: Sequence[KvRow]) -> str:
    """Return "mpi-put is the fastest", or all methods whose intervals overlap with its. shown: measured rows, the fastest first."""
    first, *slower = shown
    high = first.time_s.high or first.time_s.value or 0.0
    equal = [row.method for row in slower if (row.time_s.low or row.time_s.value or 0.0) <= high]
    if not equal:
        return f"{first.method} is the fastest"
    return f"{listed([first.method, *equal], 3)} are the fastest (their intervals overlap)"


def _chart(key: str, prefix: str, rows: Sequence[KvRow]) -> Chart | None:
    """Return the rates of the methods; None if nothing was measured."""
    shown = most_bytes(rows)[:_MOST_BARS]
    if not shown:
        return None
    bars = []
    for row in shown:
        interval = None
        if row.time_s.low and row.time_s.high:
            interval = (_gigabytes(row, row.time_s.high), _gigabytes(row, row.time_s.low))
        mark = _gigabytes(row, row.expected_s) if row.expected_s else None
        bars.append(Bar(row.method, result(row), _gigabytes(row, row.time_s.value), interval, mark))
    name = f"{prefix}The rate of each method: {plural(shown[0].blocks, 'block')} of {blocks_text(shown[0])}"
    table = Table(["method", "rate"], [[row.method, result(row)] for row in shown])
    caption = short(f"{fastest_text(shown)}: {result(shown[0])}.", 300)
    return bar_chart(Chart(key, name, caption, _METHOD, table), BarPanel("", bars, "GB/s"))


def _gigabytes(row: KvRow, seconds: float | None) -> float:
    """Return the rate of all blocks in so many seconds, in GB/s; 0 without a time."""
    return min(row.size_bytes / seconds, _FASTEST) / 1e9 if seconds else 0.0


def result(row: KvRow) -> str:
    """Return "0.117 GB/s, 98 % of the link, 17.95 ms"; a percentage above 100 with what that means."""
    share = "" if row.percent_of_link is None else f", {format_percent(row.percent_of_link)} of the link"
    if is_above_limit(row.percent_of_link):
        share = f"{share} ({ABOVE_LIMIT})"
    time = "" if row.time_s.value is None else f", {format_span(row.time_s.value)}"
    return f"{rate(row.bytes_per_s)} GB/s{share}{time}"
