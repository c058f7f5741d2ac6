"""The distribution of the samples of doubtful cases, and the text if samples are missing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report.html.samples import sampled, section
from tests.report.html.stored import material, run_of, sampled_row
from tests.report.html.svg import outside
from tests.results.rows import make_row, not_measured

EVEN = np.linspace(90e-6, 110e-6, 101)
WIDE = np.linspace(50e-6, 150e-6, 101)
BOTH = np.concatenate([np.linspace(9e-6, 11e-6, 60), np.linspace(39e-6, 41e-6, 40)])


def case(series: Any, size: int = 1024, **changes: Any) -> tuple[Any, dict[str, Any]]:
    return sampled_row(list(series), size, **changes), {"max_s": series}


def test_cases_without_doubt_samples_or_a_series_have_no_section() -> None:
    assert section(material(run_of([case(EVEN), case(WIDE, 4096)]))) is None
    assert section(material(run_of([(make_row(1 << power, flags=("imported",)), {}) for power in range(4)]))) is None
    shown = material(run_of([(make_row(1024), {"max_s": np.ones((2, 3))})]))
    assert sampled(shown, shown.tables[0]) == ([], shown.tables[0].rows)


def test_bimodal_cases_come_first_then_the_widest() -> None:
    found = section(material(run_of([case(EVEN), case(EVEN, 8, flags=("drift",)), case(WIDE, 16, flags=("drift",)), case(BOTH, 4096)])))
    (chart,) = found.charts
    assert chart.caption == "3 doubtful cases. allreduce 4 KiB nccl is bimodal: 10.00 µs (60 %) and 40.00 µs (40 %)."
    assert [row[0] for row in chart.table.rows] == ["allreduce 4 KiB nccl", "allreduce 16 B nccl", "allreduce 8 B nccl"]
    assert chart.table.rows[2][1:9] == ["101", "90.20", "92.00", "95.00", "100.0", "105.0", "108.0", "109.8"]
    assert chart.table.rows[0][9:] == ["10.00 µs (60 %) and 40.00 µs (40 %)", "bimodal"]
    assert chart.spots[-1].text == "allreduce 8 B nccl: 99 % took at most 109.8 µs"


def test_the_curves_rise_from_the_bottom_to_the_top() -> None:
    found = section(material(run_of([case(WIDE, flags=("drift",))])))
    (chart,) = found.charts
    xs, ys = zip(*((spot.x, spot.y) for spot in chart.spots), strict=True)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)
    assert len(set(xs)) == len(chart.spots) == 7


def test_of_many_doubtful_cases_the_worst_are_shown() -> None:
    cases = [case(WIDE, 1 << power, flags=("drift",)) for power in range(10)]
    found = section(material(run_of(cases)))
    (chart,) = found.charts
    assert chart.caption.startswith("10 doubtful cases; 6 of them are shown. ")
    assert (len(chart.table.rows), len(chart.spots)) == (10, 6 * 7)


def test_launches_are_combined_and_shown_against_their_common_median() -> None:
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
    assert found.texts == [
        "run: no samples for 4 cases with a time (samples.bin is incomplete): "
        "allreduce 1 B nccl, allreduce 2 B nccl, allreduce 4 B nccl, …."
    ]
    assert found.charts == []
    assert section(material(run_of([(not_measured("no library"), {})]))) is None


def test_an_operation_without_bytes_is_shown_too() -> None:
    found = section(material(run_of([case(BOTH, 0, operation="barrier")])))
    assert [row[0] for row in found.charts[0].table.rows] == ["barrier nccl"]


def test_hostile_names_are_escaped() -> None:
    found = section(material(run_of([case(BOTH, backend="<script>$x$\u202e" + 100 * "x"), case(BOTH, operation="<b>&")])))
    for chart in found.charts:
        assert not re.search(r"<script>|<b>|\u202e", chart.drawing)
        assert "\u202e" not in chart.title + chart.caption + "".join(cell for row in chart.table.rows for cell in row)
        assert not outside(chart.drawing)


def test_ratios_beyond_the_axis_are_drawn_at_its_edge() -> None:
    series = np.concatenate([[1e-9] * 5, np.full(90, 1e-6), [1.0] * 5])
    found = section(material(run_of([case(series, flags=("drift",), modes=[])])))
    (chart,) = found.charts
    assert not outside(chart.drawing)
    assert chart.table.rows[0][2] == "0.001000" or float(chart.table.rows[0][2]) == pytest.approx(1e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -1.0, 1e-12, 1e-6, 2e-6, 1.0, 1e11, 1e300, float("nan"), float("inf")]), max_size=12),
    st.sampled_from(["<f8", "<f4", "<i4", "|b1"]),
)
def test_invalid_samples_are_left_out(values: list[float], dtype: str) -> None:
    with np.errstate(all="ignore"):
        stored = np.array(values, "<f8").astype(dtype)
    row = replace(make_row(1024, flags=("drift",)), modes=[{"time_s": 1e90, "share": 0.5}, {"time_s": 1e-90, "share": 0.5}])
    shown = material(run_of([(row, {"max_s": stored})]))
    there, without = sampled(shown, shown.tables[0])
    assert len(there) + len(without) == 1
    for each in there:
        assert ((each.ordered > 0) & (each.ordered < 1e12)).all()
        assert (np.diff(each.ordered) >= 0).all()
    found = section(shown)
    assert not any(outside(chart.drawing) for chart in (found.charts if found else ()))
