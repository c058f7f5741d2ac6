"""Backend against backend: the same case only, with an interval where there is one, and never an average."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from collbench.report.html import against
from collbench.report.html.chart import Section
from collbench.results.row import Row
from tests.report.html.stored import material, run_of
from tests.results.rows import make_row, make_times, not_measured


def series(backend: str, factor: float, **changes: Any) -> list[Row]:
    return [
        make_row(1 << power, **{"backend": backend, "time_s": make_times(factor * 1e-5 * (power - 9)), **changes})
        for power in range(10, 15)
    ]


def section_of(*rows: Row) -> Section | None:
    return against.section_ratios(material(run_of([(row, {}) for row in rows])))


def test_others_are_compared_with_the_one_that_is_fastest_in_most_cases() -> None:
    section = section_of(*series("gloo", 4), *series("mpi", 1), *series("nccl", 1.005))
    assert section
    (chart,) = section.charts
    assert chart.title == "allreduce: time against mpi"
    assert chart.table.head == ["size", "gloo", "nccl"]
    assert list(chart.table.rows[0]) == ["1 KiB", "slower 4.00× (3.94–4.06×)", "no change +0.5 % (-0.9 to +1.9 %), inside ±5 %"]
    assert chart.caption == (
        "Against mpi: gloo at 5 sizes: 5 slower, 0 faster, 0 no change, 0 inconclusive (4 times as long); "
        "nccl at 5 sizes: 0 slower, 0 faster, 5 no change, 0 inconclusive (1 times as long). No change: the whole interval is inside ±5 %."
    )
    assert "gloo 16 KiB: slower 4.00× (3.94–4.06×)" in [spot.text for spot in chart.spots]
    assert "as fast as mpi" in re.findall(r"<text[^>]*>([^<]*)<", chart.drawing)


def test_what_is_faster_at_one_size_is_below_one() -> None:
    rows = series("gloo", 4)
    rows[0] = replace(rows[0], time_s=make_times(0.5e-5))
    section = section_of(*rows, *series("mpi", 1))
    assert section
    (chart,) = section.charts
    assert list(chart.table.rows[0])[1] == "faster -50.0 % (-50.7 to -49.3 %)"
    assert "at 5 sizes: 4 slower, 1 faster, 0 no change, 0 inconclusive (0.5 to 4 times as long)" in chart.caption


def test_a_ratio_is_as_doubtful_as_the_worse_of_both() -> None:
    base = series("mpi", 1)
    base[0] = replace(base[0], flags=("drift",))
    section = section_of(*series("gloo", 4), *base)
    assert section
    (chart,) = section.charts
    assert list(chart.table.rows[0])[1].startswith("? slower 4.00×")
    assert "doubtful (see flags)" in chart.drawing


def test_without_an_interval_it_is_inconclusive() -> None:
    bare = [replace(row, time_s=replace(make_times(4e-5), ci_low=None, ci_high=None)) for row in series("gloo", 4)]
    section = section_of(*bare, *series("mpi", 1))
    assert section
    assert list(section.charts[0].table.rows[0])[1] == "inconclusive 4.00× (no interval)"


def test_launches_are_the_unit_where_there_are_several() -> None:
    runs = [
        run_of([(row, {}) for row in [*series("gloo", 4 * more), *series("mpi", more)]], name=f"run-{more}", allocation_id="1")
        for more in (1, 1.3, 1.5)
    ]
    section = against.section_ratios(material(*runs))
    assert section
    (chart,) = section.charts
    assert re.fullmatch(r"slower 4\.0× \(2\.\d–[67]\.\d×\)", list(chart.table.rows[0])[1])
    assert "over launches" in chart.method


def test_rows_of_another_placing_are_not_compared_and_that_is_reported() -> None:
    section = section_of(*series("gloo", 4, in_place=True), *series("mpi", 1))
    assert section
    assert section.charts == []
    assert section.texts[-1] == "allreduce: gloo, mpi are not compared, they differ in placing: --in-place measures both in place."


def test_another_way_of_the_same_backend_is_compared_too() -> None:
    section = section_of(*series("nccl", 1), *series("nccl", 2, algorithm="tree"), *series("mpi", 3))
    assert section
    assert section.charts[0].table.head == ["size", "mpi auto", "nccl tree"]


def test_one_backend_or_none_that_was_measured_has_no_section() -> None:
    assert section_of(*series("mpi", 1)) is None
    assert section_of(*series("mpi", 1), not_measured("no GPU", size_bytes=1024)) is None
