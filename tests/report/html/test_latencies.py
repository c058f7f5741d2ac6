"""Latency: small messages by themselves, the fit with its switches, and what moves nothing."""

from __future__ import annotations

import re
from typing import Any

from collbench.report.html import sweep
from collbench.results.row import Row
from tests.report.html.stored import material, run_of
from tests.results.rows import make_row, make_times, not_measured


def series(backend: str, latency_s: float, switch: int = 0, **changes: Any) -> list[Row]:
    """28 sizes of so much latency and 10 GB/s; from `switch` bytes on three times the latency."""
    rows = []
    for size in (1 << power for power in range(3, 31)):
        time_s = latency_s * (3 if switch and size >= switch else 1) + size / 10e9
        figures = {"algbw_bytes_per_s": size / time_s, "busbw_bytes_per_s": 1.5 * size / time_s}
        rows.append(make_row(size, **{"backend": backend, "time_s": make_times(time_s), **figures, **changes}))
    return rows


def charts(*rows: Row) -> list[Any]:
    section = sweep.section_latencies(material(run_of([(row, {}) for row in rows])))
    return list(section.charts) if section else []


def test_small_messages_have_a_chart_and_the_fit_another() -> None:
    small, fit = charts(*series("nccl", 8e-6), *series("mpi", 2e-6))
    assert (small.title, fit.title) == ("allreduce: time of small messages", "allreduce: latency and bandwidth (α–β fit)")
    assert len(small.table.rows) == 14
    assert list(small.table.rows[0]) == ["8 B", "2.001 (1.981–2.021)", "8.001 (7.921–8.081)"]
    assert small.caption == "mpi takes 2.001 µs for 8 B; nccl takes 8.001 µs for 8 B."
    assert "nccl 8 B: 8.001 µs [7.921, 8.081]" in [spot.text for spot in small.spots]
    assert len(fit.spots) == 56


def test_switches_of_regime_are_marked_and_named() -> None:
    _, fit = charts(*series("nccl", 8e-6, switch=1 << 16))
    assert "nccl: 64 KiB" in re.findall(r"<text[^>]*>([^<]*)<", fit.drawing)
    assert fit.caption == "nccl: α 8.000 µs, asymptotic rate 15.0 GB/s, another regime from 64 KiB on."
    ((label, sizes, *_, switches, off),) = [list(row) for row in fit.table.rows]
    assert (label, sizes, switches, off) == ("nccl", "8 B–1 GiB", "64 KiB", "–")


def test_a_size_that_is_off_is_in_the_fits_table_and_what_is_left_out_is_reported() -> None:
    rows = series("nccl", 8e-6)
    rows[10] = make_row(8192, backend="nccl", time_s=make_times(30e-6), flags=("two_modes",))
    _, fit = charts(*rows)
    assert "not fitted, bimodal: allreduce 8 KiB nccl" in fit.method


def test_large_messages_alone_have_no_chart_of_small_ones() -> None:
    only = charts(*series("nccl", 8e-6)[20:])
    assert [chart.key for chart in only] == ["fits-0-0-0"]


def test_three_sizes_have_no_fit() -> None:
    only = charts(*series("nccl", 8e-6)[:3])
    assert [chart.key for chart in only] == ["latencies-0-0-0"]


def test_what_is_na_is_reported() -> None:
    (small,) = charts(*series("nccl", 8e-6)[:3], not_measured("no MPI", size_bytes=8, backend="mpi"))
    assert "mpi: n/a (no MPI)" in small.caption
    assert list(small.table.rows[0])[1] == "n/a (no MPI)"


def test_a_barrier_is_a_table() -> None:
    rows = [make_row(0, operation="barrier", backend="mpi", busbw_bytes_per_s=None, time_s=make_times(3e-6), flags=("drift",))]
    section = sweep.section_latencies(material(run_of([(row, {}) for row in rows])))
    assert section
    ((caption, table),) = section.tables
    assert caption == "Operations without bytes"
    assert [list(row) for row in table.rows] == [["barrier", "mpi", "3.000 (? 2.970–3.030)", "drift"]]
    assert table.marks == {0: "doubtful"}
    assert sweep.section_latencies(material()) is None
