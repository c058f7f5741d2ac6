"""The section of results: what was measured, the peaks in the words of a headline, and what is wrong, worst first."""

import re
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collbench.analysis.launches import Launches
from collbench.report.headlines import subject
from collbench.report.html.chart import Section, Table
from collbench.report.html.overview import MOST, section
from collbench.report.html.page import html
from collbench.report.material import Material
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.cli.command import ROOT
from tests.report.html.svg import marks
from tests.results.rows import NIC, make_row, make_times, not_measured, store

INFO = {
    "finished_utc": "2026-11-21T06:59:15Z", "started_utc": "2026-11-21T06:58:54.648Z", "collbench": "0.1.0", "hosts": ["node1", "node2"],
    "backends": {"nccl": {"nccl": "2.30.3"}, "mpi": {"not measured": "no library"}},
    "host": {"cpu_model": "AMD EPYC", "cpus_online": 96, "system": "Debian 12", "kernel": "6.1"},
}  # fmt: skip
ROWS = [
    make_row(8, time_s=make_times(2.345e-6), busbw_bytes_per_s=5e6, percent_of_ceiling=0.01),
    make_row(64 << 20),
    make_row(64 << 20, backend="mpi", busbw_bytes_per_s=31e9, percent_of_ceiling=62.0, flags=("two_modes",)),
    not_measured("no library", backend="gloo"),
]


def overview(*tables: Sequence[Row], info: Any = INFO, warnings: Sequence[str] = ()) -> Section:
    """The section of runs with these rows, called run-0, run-1 …"""
    runs = [Run(Path(f"run-{number}"), dict(info), list(rows)) for number, rows in enumerate(tables)]
    found = section(Material(runs, Path("page.html"), warnings))
    assert found is not None
    return found


def table(found: Section, begins: str) -> Table:
    """Return the table with a caption that begins with this text."""
    return next(table for caption, table in found.tables if caption.startswith(begins))


def test_what_was_measured_and_how_fast_how_fast_it_could_be_and_what_limits() -> None:
    found = overview(ROWS)
    (text,) = found.texts
    assert text == (
        "allreduce over gloo, mpi, nccl, 8 B to 64 MiB (4 cases); cuda · isolated · out of place · fixed buffers · 4 ranks · 1 node; "
        "1 launch: intervals are within it, another may differ by more."
    )
    runs = tuple(Run(Path(f"launch-{number}"), INFO, [make_row()]) for number in (1, 2))
    assert subject(Launches("both", runs, [make_row(launches=2)]))["launches"] == "2 launches: intervals are over their medians"
    assert subject(Launches("both", runs, [not_measured("no")]))["launches"] == "2 launches"
    peaks = table(found, "Bus bandwidth of large")
    assert peaks.head == ["operation", "backend", "bus bandwidth", "at", "smallest message"]
    mpi = "? 31.0 of 50.0 GB/s (62 %) limited by NIC 4×100 Gb/s (ring) · bimodal"
    assert peaks.rows == [
        ["allreduce", "gloo", "n/a (no library)", "64 MiB", "–"],
        ["allreduce", "mpi", mpi, "64 MiB", "? 2399 µs at 64 MiB"],
        ["allreduce", "nccl", "42.0 of 50.0 GB/s (84 %) limited by NIC 4×100 Gb/s (ring)", "64 MiB", "2.345 µs at 8 B"],
    ]
    assert peaks.marks == {0: "na", 1: "doubtful"}


@pytest.mark.parametrize("row", [
    pytest.param(make_row(ranks=1), id="one rank"),
    pytest.param(make_row(busbw_bytes_per_s=None, algbw_bytes_per_s=None, percent_of_ceiling=None), id="without a bandwidth"),
    pytest.param(make_row(0, operation="barrier", busbw_bytes_per_s=None, algbw_bytes_per_s=None, percent_of_ceiling=None), id="barrier"),
    pytest.param(make_row(operation="p2p_latency"), id="ping-pong"),
])  # fmt: skip
def test_what_has_only_a_time_is_in_a_table_of_times(row: Row) -> None:
    found = overview([row, make_row(operation="broadcast")])
    times = table(found, "Time of operations without a bandwidth")
    assert (times.head[2], [cells[0] for cells in times.rows], times.rows[0][2]) == ("time", [row.operation], "2399 µs")
    assert [cells[0] for cells in table(found, PEAKS).rows] == ["broadcast"]


PEAKS = "Bus bandwidth of large messages"


def test_peaks_are_in_print_order_with_what_distinguishes_the_best_and_of_very_many_the_first_are_listed() -> None:
    rows = [make_row(operation=name, backend=backend) for name, backend in (("p2p", "mpi"), ("allreduce", "mpi"), ("allreduce", "gloo"))]
    peaks = table(overview(rows), PEAKS)
    assert [row[:2] for row in peaks.rows] == [["allreduce", "gloo"], ["allreduce", "mpi"], ["p2p", "mpi"]]
    found = overview([make_row(operation=f"op{number:03}") for number in range(MOST + 1)])
    assert found.tables[0][0] == f"{PEAKS} (the first {MOST} of {MOST + 1})"
    assert len(found.tables[0][1].rows) == MOST
    rows = [make_row(in_place=True), make_row(algorithm="tree", busbw_bytes_per_s=43e9), make_row(root=3)]
    assert table(overview(rows), PEAKS).rows[0][3] == "64 MiB, out of place, tree"


@pytest.mark.parametrize(("row", "figure"), [
    pytest.param({"percent_of_ceiling": None}, "42.0 GB/s", id="no honest percentage"),
    pytest.param({"wrong": 7}, "WRONG 7", id="wrong data"),
    pytest.param({"ceiling": replace(NIC, kind="given", limited_by="the ceiling given")}, "42.0 of 50.0 GB/s (84 %), the ceiling given",
                 id="a given ceiling limits nothing"),
])  # fmt: skip
def test_the_figure_of_a_peak(row: dict[str, Any], figure: str) -> None:
    assert table(overview([make_row(**row)]), PEAKS).rows[0][2] == figure


def test_runs_without_concerns_rows_or_a_word_of_themselves_and_pairs_that_lack_nothing() -> None:
    assert [caption for caption, _ in overview([make_row()]).tables] == ["Bus bandwidth of large messages"]
    assert overview([], info={}).texts == ["no cases; 1 launch."]
    strange = {"hosts": 7, "host": [], "backends": {"x": [], "y": {}}, "started_utc": 5, "collbench": None}
    assert len(overview([make_row()], info=strange).texts) == 1
    assert section(Material([read_run(ROOT / "reports" / "pairs-trials" / "host-0")], Path("page.html"))) is None


def test_of_several_runs_each_is_named_and_the_ninth_is_counted() -> None:
    found = overview(*([make_row()] for _ in range(9)))
    assert [text.partition(":")[0] for text in found.texts] == [*(f"run-{number}" for number in range(8)), "And 1 more run."]
    assert [row[:2] for row in table(found, "Bus bandwidth of large").rows][:2] == [["run-0", "allreduce"], ["run-1", "allreduce"]]


def test_strange_figures_and_endless_texts() -> None:
    evil = "\u202e<script>" * 500
    rows = [make_row(size, backend=evil, flags=(evil,), busbw_bytes_per_s=value, percent_of_ceiling=value) for size, value in
            ((8, nan), (16, inf), (32, -inf), (64, 1e308))]  # fmt: skip
    found = overview([*rows, not_measured(evil)], info={**INFO, "hosts": [evil] * 9})
    cases = [case for _, each in found.tables for row in each.rows for case in row]
    assert max(map(len, cases)) <= 600
    assert all(case.isprintable() for case in cases)


def test_an_imported_run_reports_from_what_and_what_it_lacks() -> None:
    table_1 = {
        "file": "a.log", "tool": "nccl-tests", "version": None, "program": "all_reduce_perf", "statistic": "the mean over 20 iterations",
    }  # fmt: skip
    imported = {
        "tables": [table_1, 7, {**table_1, "file": "b.log"}, table_1],
        "missing": ["no interval", "no per-rank data", 3],
        "doubts": ["a.log: 8 ranks, but 4 by its figures"],
    }
    found = overview([make_row()], info={**INFO, "imported": imported})
    assert found.texts[0].endswith("nccl-tests: a.log, b.log (a time is the mean over 20 iterations).")
    assert table(found, "Findings").rows == [["doubtful", "a.log: 8 ranks, but 4 by its figures"]]


class TestOperationsAtAGlance:
    ROWS = (
        make_row(64 << 20, operation="allreduce", percent_of_ceiling=84.0),
        make_row(64 << 20, operation="alltoall", percent_of_ceiling=22.0),
        make_row(64 << 20, operation="alltoall", backend="mpi", percent_of_ceiling=61.0, flags=("drift",)),
        make_row(8, operation="p2p_latency", percent_of_ceiling=1.0, ranks=2),
    )

    def test_each_has_a_bar_the_worst_first_and_latencies_have_none(self) -> None:
        (chart,) = overview(self.ROWS).charts
        assert [spot.text.split(":")[0] for spot in chart.spots] == ["alltoall nccl", "alltoall mpi", "allreduce nccl"]
        assert [row[0:2] for row in chart.table.rows] == [["alltoall", "nccl"], ["alltoall", "mpi"], ["allreduce", "nccl"]]
        assert [row[-1] for row in chart.table.rows] == ["", "drift", ""]
        lengths = {name: marks(chart.drawing)[name] for name in ("bar 0", "bar 1", "bar 2")}
        assert len(lengths) == 3 and [spot.x for spot in chart.spots] == sorted(spot.x for spot in chart.spots)
        assert 'data-mark="bar 1"><path fill="var(--paper)"' in chart.drawing  # a doubtful one is open

    def test_they_are_the_first_picture_and_one_operation_has_its_sizes(self, tmp_path: Path) -> None:
        several = html(Material([read_run(store(tmp_path / "several", list(self.ROWS)))], tmp_path / "page.html"))
        one = html(Material([read_run(store(tmp_path / "one", [self.ROWS[0]]))], tmp_path / "page.html"))
        first = re.compile(r'<figure id="([^"]*)"')
        assert [found[1] for found in map(first.search, (several, one)) if found] == ["operations", "sizes-0"]

    def test_of_many_the_lowest_are_drawn(self) -> None:
        rows = [make_row(64 << 20, operation=f"operation{number:02}", percent_of_ceiling=90.0 - number) for number in range(30)]
        (chart,) = overview(rows).charts
        assert len(chart.spots) == 24 and len(chart.table.rows) == 30
        assert chart.caption.endswith(" Drawn are the lowest 24 of 30.")
