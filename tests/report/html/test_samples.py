"""The samples behind the rows: strips of all cases, the doubtful ones in full, and the text if there are none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report.html.chart import cut, level
from collbench.report.html.samples import sampled, section
from tests.report.html.stored import material, run_of, sampled_row
from tests.results.rows import make_row, not_measured

EVEN = np.linspace(90e-6, 110e-6, 101)
BOTH = np.concatenate([np.linspace(9e-6, 11e-6, 60), np.linspace(39e-6, 41e-6, 40)])


def case(series: Any, size: int = 1024, **changes: Any) -> tuple[Any, dict[str, Any]]:
    return sampled_row(list(series), size, **changes), {"max_s": series}


def test_each_case_has_a_strip_and_a_line_in_the_table() -> None:
    found = section(material(run_of([case(EVEN), case(2 * EVEN, 4096), case(EVEN / 2, 1024, backend="mpi")])))
    assert found is not None
    assert [chart.title for chart in found.charts] == ["allreduce: spread of the samples"]
    (chart,) = found.charts
    assert chart.table.rows[0][:10] == ["mpi", "1 KiB", "101", "45.00", "45.10", "47.50", "50.00", "52.50", "54.90", "55.00"]
    assert [row[:3] for row in chart.table.rows[1:]] == [["nccl", "1 KiB", "101"], ["nccl", "4 KiB", "101"]]
    assert chart.spots[0].text == "1 KiB mpi: 50.00 µs, half 47.50–52.50, 98 % 45.10–54.90"
    assert len({(spot.x, spot.y) for spot in chart.spots}) == 3
    assert "var(--series-0)" in chart.drawing
    assert re.search(r">mpi<.*>nccl<", chart.drawing)


def test_two_values_are_seen_named_and_shown_in_whole() -> None:
    found = section(material(run_of([case(EVEN), case(BOTH, 4096)])))
    assert found is not None
    strips, doubtful = found.charts
    assert strips.caption == "Largest spread at 4 KiB nccl: 98 % of the samples are between 9.034 and 40.95 µs. 1 of 2 cases are bimodal."
    assert strips.table.rows[1][10:] == ["10.00 µs (60 %) and 40.00 µs (40 %)", "bimodal"]
    assert strips.table.marks == {1: "doubtful"}
    assert strips.spots[1].text.startswith("4 KiB nccl: 10.00 µs (60 %) and 40.00 µs (40 %), half ")
    assert doubtful.caption == "1 doubtful case. allreduce 4 KiB nccl is bimodal: 10.00 µs (60 %) and 40.00 µs (40 %)."
    assert [row[0] for row in doubtful.table.rows] == ["allreduce 4 KiB nccl"]
    assert doubtful.spots[-1].text.startswith("allreduce 4 KiB nccl: 95 % took at most 40.")


def test_launches_are_shown_together_and_against_their_common_median() -> None:
    about = {"allocation_id": "job 7"}
    runs = [run_of([case(factor * EVEN)], f"launch-{number}", **about) for number, factor in enumerate((1.0, 1.1, 1.2))]
    shown = material(*runs)
    (one,), without = sampled(shown, shown.tables[0])
    assert (len(one.ordered), without) == (303, [])
    assert one.time_s == pytest.approx(110e-6)
    assert one.ratio(0) == pytest.approx(90 / 110)
    assert one.ratio(1) == pytest.approx(132 / 110)


def test_cases_without_samples_are_counted_and_named_and_na_rows_are_not() -> None:
    cases = [case(EVEN), *((make_row(1 << power), {}) for power in range(4)), (not_measured("no library", backend="mpi"), {})]
    found = section(material(run_of(cases)))
    assert found is not None
    assert found.texts == [
        "run: no samples for 4 cases with a time (samples.bin is incomplete): "
        "allreduce 1 B nccl, allreduce 2 B nccl, allreduce 4 B nccl, …."
    ]
    assert len(found.charts[0].table.rows) == 1
    assert section(material(run_of([(not_measured("no library"), {})]))) is None


def test_what_is_imported_has_no_samples_and_so_no_section() -> None:
    assert section(material(run_of([(make_row(1 << power, flags=("imported",)), {}) for power in range(4)]))) is None


def test_what_moves_nothing_has_a_strip_too() -> None:
    found = section(material(run_of([case(EVEN, 0, operation="barrier")])))
    assert found is not None
    assert [(chart.title, chart.spots[0].text) for chart in found.charts] == [
        ("barrier nccl: spread of the samples", "nccl: 100.0 µs, half 95.00–105.0, 98 % 90.20–109.8")
    ]


def test_names_that_are_hostile_come_out_inert() -> None:
    found = section(material(run_of([case(EVEN, backend="<script>$x$\u202e" + 100 * "x"), case(BOTH, operation="<b>&")])))
    assert found is not None
    for chart in found.charts:
        assert "<script>" not in chart.drawing
        assert "<b>" not in chart.drawing
        assert "\u202e" not in chart.drawing + chart.title + chart.table.rows[0][0]
    assert cut("a" * 50) == "a" * 39 + "…"


def test_ratios_beyond_the_axis_are_drawn_at_its_edge() -> None:
    assert (level(1), level(2), level(0.5), level(1e9), level(0)) == (0, 1, -1, pytest.approx(level(20)), pytest.approx(level(0.05)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -1.0, 1e-12, 1e-6, 2e-6, 1.0, 1e11, 1e300, float("nan"), float("inf")]), max_size=12),
    st.sampled_from(["<f8", "<f4", "<i4", "|b1"]),
)
def test_samples_that_no_clock_can_give_are_left_out(values: list[float], dtype: str) -> None:
    with np.errstate(all="ignore"):
        stored = np.array(values, "<f8").astype(dtype)
    row = replace(make_row(1024), modes=[{"time_s": 1e90, "share": 0.5}, {"time_s": 1e-90, "share": 0.5}])
    shown = material(run_of([(row, {"max_s": stored})]))
    there, without = sampled(shown, shown.tables[0])
    assert len(there) + len(without) == 1
    for each in there:
        assert ((each.ordered > 0) & (each.ordered < 1e12)).all()
        assert (np.diff(each.ordered) >= 0).all()


def test_a_series_is_no_table() -> None:
    shown = material(run_of([(make_row(1024), {"max_s": np.ones((2, 3))})]))
    assert sampled(shown, shown.tables[0]) == ([], [make_row(1024)])
