"""Rows for Bencher (`--format bmf`), and the names of cases for programs that track results over time.

A case has the same name in each run. Rows without a time, and rows with wrong data, are left out.
"""

from __future__ import annotations

import json
from typing import Any

from collbench.report.cases import placing
from collbench.report.frame import Line, printable
from collbench.report.headlines import short
from collbench.report.writers import RowWriter
from collbench.results.row import Row, Times


def series_name(row: Row) -> str:
    """Return the name of the series of a row, its case but for the size: "allreduce/mpi/cpu/float32/sum/…/2 ranks/1 nodes"."""
    moves = row.size_bytes > 0
    parts = (
        row.operation, row.backend, row.device, row.dtype if moves else None, row.redop, None if row.root is None else f"root {row.root}",
        row.mode, placing(row) if moves else None, row.buffers, None if row.window is None else f"window {row.window}",
        None if row.group == "all" else f"group {row.group}", row.registration, row.algorithm, row.protocol, row.traffic,
        None if row.streams is None else f"{row.streams} streams", row.call, f"{row.ranks} ranks",
        None if row.nodes is None else f"{row.nodes} nodes",
    )  # fmt: skip
    return "/".join(printable(part) for part in parts if part)


def case_name(row: Row) -> str:
    """Return the name of a row's case: that of its series with the size in bytes, if it moves any."""
    return f"{series_name(row)}/{row.size_bytes} B" if row.size_bytes else series_name(row)


def comparable_times(row: Row) -> Times | None:
    """Return the times of a row that can be compared; None for n/a and wrong data."""
    return row.time_s if row.na is None and not row.wrong else None


# Bencher Metric Format, which `bencher run --adapter json` reads: https://bencher.dev/docs/reference/bencher-metric-format

_LONGEST_BMF = 1024  # letters of a benchmark's name


class BencherWriter(RowWriter):
    """One JSON object for a run: by case the measures `latency` (ns, Bencher's own), `bus-bandwidth` (bytes/s) and `percent-of-expected`.

    The bounds of the latency are the 95 % confidence interval of the median.
    """

    for_programs = True
    one_run = True

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._measures: dict[str, dict[str, dict[str, float]]] = {}

    def row(self, row: Row) -> list[Line]:
        """Return nothing: the object is complete after the last row."""
        times = comparable_times(row)
        if times:
            bounds = {"lower_value": times.ci_low, "upper_value": times.ci_high}
            latency = {name: 1e9 * value for name, value in {"value": times.p50, **bounds}.items() if value is not None}
            rates = {
                "bus-bandwidth": row.busbw_bytes_per_s if row.ranks > 1 else None,
                "percent-of-expected": row.comparison and row.comparison.percent,
            }
            measures = {name: {"value": value} for name, value in rates.items() if value is not None}
            self._measures[short(case_name(row), _LONGEST_BMF)] = {"latency": latency, **measures}
        return []

    def end(self) -> list[Line]:
        """Return the object."""
        return [Line(json.dumps(self._measures))]
