"""The first screen: what was measured, the peaks in the words of a headline, and what is wrong, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analysis.launches import Launches
from collbench.report.headlines import NO_CONCERNS, subject
from collbench.report.html import overview as peak_bars
from collbench.report.html.chart import Section, Table
from collbench.report.html.material import Material
from collbench.report.html.overview import section
from collbench.results.reader import Run, read_run, row_from_json
from collbench.results.row import Row
from collbench.results.store import parse_object, to_line
from tests.cli.command import ROOT
from tests.results.rows import NIC, make_row, make_times, not_measured

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


def test_what_was_measured_on_what() -> None:
    assert table(overview(ROWS), "What was measured").rows == [
        ["measured", "allreduce over gloo, mpi, nccl, 8 B to 64 MiB (4 cases)"],
        ["how", "cuda · isolated · out of place · fixed buffers · 4 ranks · 1 node"],
        ["hosts", "2 hosts: node1, node2"],
        ["first host", "AMD EPYC, 96 CPUs, Debian 12, kernel 6.1"],
        ["software", "nccl: 2.30.3"],
        ["date", "2026-11-21 06:58 UTC, collbench 0.1.0"],
        ["launches", "1 launch: intervals are within it, another may differ by more"],
    ]


def test_intervals_over_launches_are_called_so() -> None:
    runs = tuple(Run(Path(f"launch-{number}"), INFO, [make_row()]) for number in (1, 2))
    assert subject(Launches("both", runs, [make_row(launches=2)]))["launches"] == "2 launches: intervals are over their medians"
    assert subject(Launches("both", runs, [not_measured("no")]))["launches"] == "2 launches"


def test_peaks_report_how_fast_how_fast_it_could_be_and_what_limits() -> None:
    found = table(overview(ROWS), "Peaks")
    assert found.head == ["operation", "backend", "peak", "at", "smallest message"]
    mpi = "? 31.0 of 50.0 GB/s (62 %) limited by NIC 4×100 Gb/s (ring) · bimodal"
    assert found.rows == [
        ["allreduce", "gloo", "n/a (no library)", "64 MiB", "–"],
        ["allreduce", "mpi", mpi, "64 MiB", "? 2399 µs at 64 MiB"],
        ["allreduce", "nccl", "42.0 of 50.0 GB/s (84 %) limited by NIC 4×100 Gb/s (ring)", "64 MiB", "2.345 µs at 8 B"],
    ]
    assert found.marks == {0: "na", 1: "doubtful"}


def test_peaks_are_in_print_order_for_any_order_of_measurement() -> None:
    rows = [make_row(operation=name, backend=backend) for name, backend in (("p2p", "mpi"), ("allreduce", "mpi"), ("allreduce", "gloo"))]
    found = overview(rows)
    assert [row[:2] for row in table(found, "Peaks").rows] == [["allreduce", "gloo"], ["allreduce", "mpi"], ["p2p", "mpi"]]
    assert [row[0] for row in found.charts[0].table.rows] == ["allreduce · gloo", "allreduce · mpi", "p2p · mpi"]


def test_peaks_of_one_backend_are_distinguished_in_the_drawing_too() -> None:
    rows = [make_row(), make_row(mode="batched"), make_row(ranks=2), make_row(backend="mpi")]
    assert {row[0] for row in overview(rows).charts[0].table.rows} == {
        "allreduce · nccl · isolated · ranks 4", "allreduce · nccl · batched · ranks 4", "allreduce · nccl · isolated · ranks 2",
        "allreduce · mpi",
    }  # fmt: skip


def test_a_ceiling_that_was_given_limits_nothing() -> None:
    given = replace(NIC, kind="given", limited_by="the ceiling given")
    assert table(overview([make_row(ceiling=given)]), "Peaks").rows[0][2] == "42.0 of 50.0 GB/s (84 %), the ceiling given"


@pytest.mark.parametrize(
    ("row", "figure"),
    [
        (make_row(percent_of_ceiling=None), "42.0 GB/s"),
        (make_row(wrong=7), "WRONG 7"),
        (make_row(ranks=1), "2399 µs"),
        (make_row(busbw_bytes_per_s=None, algbw_bytes_per_s=None, percent_of_ceiling=None), "2399 µs"),
    ],
)
def test_no_percentage_where_none_is_honest(row: Row, figure: str) -> None:
    assert table(overview([row]), "Peaks").rows[0][2] == figure


def test_many_peaks_have_a_line_per_operation_and_a_column_per_backend() -> None:
    bound = replace(NIC, limited_by="NIC 8×100 Gb/s", model="bound")
    rows = [make_row(operation=f"op{number}", backend=name) for number in range(6) for name in ("nccl", "mpi", "gloo")]
    rows[1] = replace(rows[1], ceiling=bound, flags=("drift",))
    rows[4] = replace(rows[4], na="no library")
    found = table(overview(rows[:-1]), "Peaks")
    assert found.head == ["operation", "gloo", "mpi", "nccl", "limited by"]
    figure = "42.0 of 50.0 GB/s (84 %) at 64 MiB"
    assert found.rows[0] == ["op0", figure, f"? {figure}", figure, "gloo, nccl: NIC 4×100 Gb/s (ring); mpi: NIC 8×100 Gb/s (hard limit)"]
    assert found.rows[1] == ["op1", figure, "n/a (no library)", figure, "NIC 4×100 Gb/s (ring)"]
    assert found.rows[5][1] == "–"
    assert found.marks == {0: "doubtful"}


def test_runs_of_one_name_stay_apart() -> None:
    runs = [Run(Path(place) / "run", INFO, [make_row(operation=f"op{number}", backend=name) for number in range(4) for name in "ab"])
            for place in ("one", "two")]  # fmt: skip
    found = section(Material(runs, Path("page.html")))
    assert found is not None
    assert [row[:2] for row in table(found, "Peaks").rows] == [["run", f"op{number}"] for _ in range(2) for number in range(4)]


def test_what_differs_among_competing_rows_is_reported_of_the_best() -> None:
    rows = [make_row(in_place=True), make_row(algorithm="tree", busbw_bytes_per_s=43e9), make_row(root=3)]
    assert table(overview(rows), "Peaks").rows[0][3] == "64 MiB, out of place, tree"


def test_concerns_come_worst_first_with_what_they_mean() -> None:
    found = overview([*ROWS, make_row(16, wrong=2)], warnings=["run-7 is empty"])
    concerns = table(found, "Findings and flags, worst first (4)")
    assert concerns.head == ["severity", "what", "where"]
    assert [[row[0], row[1][:32], row[2]] for row in concerns.rows] == [
        ["wrong data", "2 elements are wrong", "1 of 5 cases: allreduce nccl at 16 B"],
        ["doubtful", "bimodal: the samples gather arou", "1 of 5 cases: allreduce mpi at 64 MiB"],
        ["missing", "not measured: no library", "1 of 5 cases: allreduce gloo at 64 MiB"],
        ["missing", "run-7 is empty", ""],
    ]
    assert concerns.marks == {0: "wrong", 1: "doubtful", 2: "na", 3: "na"}
    assert list(found.texts) == [
        "Concerns: 1 × wrong data, 1 × doubtful, 2 × missing.",
        f"{concerns.rows[0][1]} ({concerns.rows[0][2]}).",
    ]


def test_a_run_without_concerns_is_reported_as_such() -> None:
    found = overview([make_row()])
    assert list(found.texts) == ["No findings, no flags, nothing missing."]
    assert [caption.split()[0] for caption, _ in found.tables] == ["What", "Peaks:"]


def test_several_runs_are_side_by_side_and_the_sixth_is_counted() -> None:
    found = overview(*([make_row()] for _ in range(7)))
    assert table(found, "What was measured").head == ["", "run-0", "run-1", "run-2", "run-3", "run-4"]
    assert found.texts[-1] == "The table below shows the first 5 runs; 2 more are in the other sections."
    assert [row[:2] for row in table(found, "Peaks").rows][:2] == [["run-0", "allreduce"], ["run-1", "allreduce"]]


def test_what_became_slower_is_reported_first() -> None:
    found = overview([make_row(8), make_row(16)], [make_row(8), make_row(16, time_s=make_times(3e-3))])
    assert found.texts[1].startswith("Compared with run-0: run-1 (1 launch): ") and "1 slower (+25.1 %)" in found.texts[1]


def test_a_matrix_of_pairs_begins_with_slow_places() -> None:
    folder = ROOT / "reports" / "pairs-trials" / "host-0"
    found = section(Material([read_run(folder)], Path("page.html")))
    assert found is not None
    assert found.texts[0].startswith("Concerns: 1 × finding")
    assert found.texts[1].startswith("cb1h2 sends and receives at 50 % ")
    assert table(found, "What was measured").rows[0][1].startswith("pairs of 8 nodes, over socket, bandwidth of 128 KiB")
    assert found.charts == []


def test_runs_without_rows_or_without_a_word_of_themselves() -> None:
    assert table(overview([], info={}), "What was measured").rows == [["measured", "no cases"], ["launches", "1 launch"]]
    strange = {"hosts": 7, "host": [], "backends": {"x": [], "y": {}}, "started_utc": 5, "collbench": None}
    assert [row[0] for row in table(overview([make_row()], info=strange), "What was measured").rows] == ["measured", "how", "launches"]
    assert overview().tables == []


def test_strange_figures_and_endless_texts() -> None:
    evil = "\u202e<script>" * 500
    rows = [make_row(size, backend=evil, flags=(evil,), busbw_bytes_per_s=value, percent_of_ceiling=value) for size, value in
            ((8, nan), (16, inf), (32, -inf), (64, 1e308))]  # fmt: skip
    found = overview([*rows, not_measured(evil)], info={**INFO, "hosts": [evil] * 9})
    cases = [case for _, each in found.tables for row in each.rows for case in row]
    assert max(map(len, cases)) <= 600
    assert all(case.isprintable() for case in cases)


def test_the_drawing_of_all_peaks() -> None:
    without = [("wrong", make_row(wrong=1)), ("none", not_measured("no")), ("one", make_row(ranks=1))]
    rows = [("allreduce · $nccl$", ROWS[1]), ("allreduce · mpi", ROWS[2]), *without]
    drawn = peak_bars.chart([*rows, ("above", make_row(percent_of_ceiling=400.0))])
    assert drawn is not None
    assert drawn.caption == "Between ? 62 % (allreduce · mpi) and 400 % (above) of the expected bandwidth; 1 of 3 is doubtful (open)."
    assert drawn.method.endswith("see the table above.")
    assert drawn.drawing.startswith("<svg") and "allreduce · $nccl$" in drawn.drawing
    assert "42.0 of 50.0 GB/s (84 %)  NIC 4×100 Gb/s (ring)" in drawn.drawing and "? 31.0 of 50.0" in drawn.drawing
    assert [spot.text[:21] for spot in drawn.spots] == ["allreduce · $nccl$: 4", "allreduce · mpi: ? 31", "above: 42.0 of 50.0 G"]
    assert drawn.table.rows[0] == ["allreduce · $nccl$", "84", "–", "42", "50", "–", "NIC 4×100 Gb/s (ring)"]
    assert drawn.table.rows[1][1] == "? 62"
    assert drawn.spots[0].y < drawn.spots[1].y and drawn.spots[0].x > drawn.spots[1].x
    assert peak_bars.chart(rows[2:]) is None


def test_a_peak_above_its_ring_reference_has_both_percentages() -> None:
    bound = replace(NIC, bytes_per_s=93.75e9, model="bound")
    drawn = peak_bars.chart([("allreduce · nccl", make_row(busbw_bytes_per_s=60e9, percent_of_ceiling=120.0, hard_bound=bound))])
    assert drawn is not None
    assert "60.0 of 50.0 GB/s (120 %, hard limit 64 %)  NIC 4×100 Gb/s (ring)" in drawn.drawing
    assert drawn.table.rows == [["allreduce · nccl", "120", "64", "60", "50", "93.75", "NIC 4×100 Gb/s (ring)"]]


def test_an_imported_run_reports_from_what_and_what_it_lacks() -> None:
    table_1 = {
        "file": "a.log",
        "tool": "nccl-tests",
        "version": None,
        "program": "all_reduce_perf",
        "statistic": "the mean over 20 iterations",
    }
    imported = {
        "tables": [table_1, 7, {**table_1, "file": "b.log"}, table_1],
        "missing": ["no interval", "no per-rank data", 3],
        "doubts": ["a.log: 8 ranks, but 4 by its figures"],
    }
    found = overview([make_row()], info={**INFO, "imported": imported})
    facts = {row[0]: row[1] for row in table(found, "What was measured").rows}
    assert facts["imported from"] == "nccl-tests: a.log, b.log (a time is the mean over 20 iterations)"
    assert facts["date"].startswith("imported 2026-11-21 06:58 UTC")
    assert (table(found, "Findings").head, table(found, "Findings").rows) == (
        ["severity", "what"],
        [["doubtful", "a.log: 8 ranks, but 4 by its figures"], ["note", "imported, and not in it: no interval; no per-rank data"]],
    )
    assert overview([make_row()], info={**INFO, "imported": {"tables": 3, "missing": 4}}).texts[0] == NO_CONCERNS


_NUMBER = st.floats() | st.integers()
_JSON = st.none() | _NUMBER | st.text(max_size=3) | st.lists(st.integers() | st.text(max_size=2), max_size=2)
_FIELDS = {
    "operation": st.text(max_size=3), "backend": st.text(max_size=3), "size_bytes": st.integers(), "ranks": st.integers(),
    "percent_of_ceiling": _NUMBER, "busbw_bytes_per_s": _NUMBER, "flags": st.lists(st.text(max_size=3), max_size=2), "wrong": st.integers(),
    "time_s": st.fixed_dictionaries({name: _NUMBER | st.none() for name in ("p50", "ci_low", "ci_high", "min", "p95", "p99", "max")}),
    "ceiling": st.fixed_dictionaries({"kind": st.text(max_size=2), "bytes_per_s": _NUMBER | st.none(), "limited_by": st.text(max_size=3)}),
    "na": st.none() | st.text(max_size=3), "launches": st.integers(),
}  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_hostile_rows_and_runs_never_raise(data: st.DataObject) -> None:
    rows = []
    for _ in range(4):
        values = {**make_row().as_json(), **data.draw(st.fixed_dictionaries({}, optional=_FIELDS))}
        with suppress(ValueError):
            rows.append(row_from_json(parse_object(to_line(values).encode())))
    info = data.draw(st.dictionaries(st.sampled_from([*INFO, "imported"]), _JSON | st.dictionaries(st.text(max_size=3), _JSON)))
    found = overview(rows, info=info)
    assert all(case.isprintable() for _, each in found.tables for row in each.rows for case in row)
