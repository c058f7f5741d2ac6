"""Sections on samples: the distribution of doubtful cases, how often each rank ended last, and the machine's state around each case."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.report.html.chart import Chart
from collbench.report.html.samples import sampled, section
from collbench.report.html.slowest import section as slowest_section
from collbench.report.html.timeline import TimeAxis, gpu_chart, moments, worst
from collbench.report.html.timeline import section as state_section
from collbench.results.reader import Run
from collbench.results.row import Row
from tests.report.html.stored import material, run_of, sampled_row
from tests.report.html.svg import marks, outside
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


def test_the_curves_of_any_operation_rise_from_the_bottom_to_the_top() -> None:
    found = section(material(run_of([case(WIDE, flags=("drift",))])))
    (chart,) = found.charts
    xs, ys = zip(*((spot.x, spot.y) for spot in chart.spots), strict=True)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)
    assert len(set(xs)) == len(chart.spots) == 7
    found = section(material(run_of([case(BOTH, 0, operation="barrier")])))
    assert [row[0] for row in found.charts[0].table.rows] == ["barrier nccl"]


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


def ranked(size: int, shares: list[int], medians: list[float], **changes: Any) -> tuple[Any, dict[str, Any]]:
    """A case in which each rank was the slowest so many times, in turn, and each has this median in µs."""
    order = [rank for rank, times in enumerate(shares) for _ in range(times)]
    slowest = np.random.default_rng(size).permutation(order).astype(np.int32)
    row = make_row(size, ranks=len(shares), n=len(order), n_eff=float(len(order)), **changes)
    return row, {"slowest_rank": slowest, "rank_p50_s": np.array(medians) * 1e-6}


def test_a_rank_that_ends_last_has_its_role_above_its_bar() -> None:
    found = slowest_section(material(run_of([ranked(1 << power, [5, 5, 85, 5], [100, 101, 120, 99]) for power in range(3, 9)])))
    assert [text.startswith("rank 2 (node1) finishes last in 85 % ") for text in found.texts] == [True]
    (chart,) = found.charts
    assert chart.caption.startswith("rank 2 (node1) finishes last ")
    assert chart.table.rows[2] == ["2", "node1", "85 %", "25 %", "+19.4 %", "finishes last"]
    assert chart.table.marks == {2: "doubtful"}
    assert chart.spots[2].text == "rank 2 (node1): last in 85 % of the samples, its median +19.4 %, finishes last"
    assert ">finishes last<" in chart.drawing
    assert ">equal share 25 %<" in chart.drawing
    assert re.search(r'data-mark="rank \d"><path fill="var\(--limit\)"', chart.drawing) and "--bad" not in chart.drawing


def test_only_a_rank_that_is_slow_itself_is_red_and_of_two_there_is_a_sentence_and_no_bar() -> None:
    cases = [ranked(1 << power, [5, 5, 85, 5], [100, 101, 120, 99], operation="alltoall") for power in range(3, 9)]
    found = slowest_section(material(run_of(cases)))
    assert re.search(r'data-mark="rank \d"><path fill="var\(--bad\)"', found.charts[0].drawing)
    assert found.charts[0].table.rows[2][-1] == "delays"
    found = slowest_section(material(run_of([ranked(1 << power, [95, 5], [130, 100]) for power in range(3, 9)])))
    assert found.charts == [] and "either rank, or the link" in found.texts[0]
    rooted = ranked(8, [50, 50], [100, 100], root=0)
    assert slowest_section(material(run_of([rooted]))) is None
    assert slowest_section(material(run_of([]))) is None


def test_like_ranks_are_not_named_and_a_rank_that_never_was_it_has_its_place() -> None:
    found = slowest_section(material(run_of([ranked(8, [50, 50, 0], [100, 100, 100])])))
    assert found.texts == []
    (chart,) = found.charts
    assert chart.caption.startswith("No rank finishes last ") and "rank 0 (node0), in 50 % " in chart.caption
    assert [row[:3] for row in chart.table.rows] == [["0", "node0", "50 %"], ["1", "node0", "50 %"], ["2", "node1", "0.0 %"]]


def test_of_many_ranks_the_most_frequent_have_bars() -> None:
    shares = [1] * 200
    shares[190] = 40
    found = slowest_section(material(run_of([ranked(8, shares, [100.0] * 200)])))
    (chart,) = found.charts
    assert chart.caption.endswith(" The chart shows the 64 most frequent of 200 ranks.")
    assert len(chart.table.rows) == 64
    assert chart.table.rows[-1][:3] == ["190", "–", "17 %"]


STARTED = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


def row(number: int, at: Any = None, probe: Any = (80e-9, 81e-9), **more: Any) -> Row:
    """A case that began at so many seconds and took half of one; without `at` its start is unknown."""
    when = {} if at is None else {"at_s": [at, at + 0.5]}
    evidence = {"stolen": more.pop("stolen", 0.0), "preempted": more.pop("preempted", 3), **when}
    return make_row(1 << number, evidence=evidence, canary_s={"before": probe[0], "after": probe[1]}, **more)


def triangles(chart: Chart) -> list[float]:
    """The middles of the triangles above disturbed cases, in pixels: a triangle begins at its lower point."""
    return [x for x, _ in marks(chart.drawing)["marks"]]


def run(rows: list[Row], events: Any = (), **info: Any) -> Run:
    return replace(run_of([(each, {}) for each in rows], **info), events=list(events))


def test_cases_are_at_their_time_in_any_stored_order() -> None:
    rows = [
        row(4, 10.0, (80e-9, 240e-9), flags=("state_flip",), stolen=0.03),
        row(3, 2.0),
        not_measured("no library", evidence={"at_s": [1, 2]}),
    ]
    found = state_section(material(run(rows)))
    (chart,) = found.charts
    assert [line[:4] for line in chart.table.rows] == [
        ["2 s", "allreduce 8 B nccl", "80", "81"],
        ["10 s", "allreduce 16 B nccl", "80", "240"],
    ]
    assert chart.table.rows[1][4:] == ["3.0 %", "3", "unstable state"]
    assert chart.table.marks == {1: "doubtful"}
    assert chart.caption == (
        "State probe: 80 to 240 ns; at most 3.0 % of the CPU time was stolen. 1 of 2 cases have a flag for it (triangles)."
    )
    assert chart.spots[1].text == "10 s, allreduce 16 B nccl: state probe 80 → 240 ns, stolen 3.0 %, preemptions 3, unstable state"
    assert chart.spots[0].x < chart.spots[1].x
    for words in (">state probe in ns, before and after<", ">CPU time stolen in %<", ">preemptions<", ">s since the start of the run<"):
        assert words in chart.drawing
    (triangle,) = triangles(chart)
    assert triangle == pytest.approx(chart.spots[1].x, abs=0.1)
    assert not outside(chart.drawing)


def test_rows_of_older_runs_are_in_measuring_order() -> None:
    found, axis = moments(run([row(3, 5.0), row(4), row(5)]))
    assert axis == TimeAxis(3.5, timed=False)
    assert [(each.name, axis.text(each.begin)) for each in found] == [
        ("allreduce 8 B nccl", "case 1"), ("allreduce 16 B nccl", "case 2"), ("allreduce 32 B nccl", "case 3"),
    ]  # fmt: skip
    assert (axis.title, axis.text(0.5)) == ("cases in the order of measurement", "case 1")


def test_a_flagged_case_without_a_state_probe_is_marked() -> None:
    found = state_section(material(run([row(3, 1.0), row(4, 2.0, (None, None), flags=("cpu_shared",))])))
    assert found.charts[0].spots[1].text.startswith("2 s, allreduce 16 B nccl: state probe ? → ? ns")
    assert triangles(found.charts[0]) == pytest.approx([found.charts[0].spots[1].x], abs=0.1)


def test_of_many_cases_the_largest_changes_are_drawn_and_listed() -> None:
    rows = [row(3 + number % 20, float(number)) for number in range(400)]
    rows[250] = row(8, 250.0, (80e-9, 300e-9), flags=("state_flip",))
    found = state_section(material(run(rows)))
    (chart,) = found.charts
    assert len(chart.spots) == 120
    assert "4.167 min, allreduce 256 B nccl: state probe 80 → 300 ns, preemptions 3, unstable state" in [spot.text for spot in chart.spots]
    assert chart.caption.endswith(" Drawn are the 120 cases with the largest changes.")
    assert len(chart.table.rows) == 100
    assert ["4.167 min", "allreduce 256 B nccl", "80", "300", "0.0 %", "3", "unstable state"] in chart.table.rows
    assert chart.table.head[0] == "time (100 of 400 cases, the largest changes)"
    assert len(chart.drawing) < 15_000
    chosen = worst(moments(run(rows))[0], 3)
    assert len(chosen) == 3 and [each.begin for each in chosen if each.flags] == [250.0]
    assert [each.begin for each in chosen] == sorted(each.begin for each in chosen)


def test_a_run_in_which_nothing_was_disturbed_or_reported_has_no_section_and_of_two_the_other_is_shown() -> None:
    events = [telemetry(10.0, {"a": [sample(1008.0)]})]
    assert state_section(material(run([row(3, 1.0), row(4, 2.0)], events, started_utc=STARTED.isoformat()))) is None
    assert state_section(material(run([make_row(8)]))) is None
    assert state_section(material(run([]))) is None
    calm, disturbed = run([row(3, 1.0)]), replace(run([row(3, 1.0, flags=("state_flip",))]), path=Path("disturbed"))
    found = state_section(material(calm, disturbed))
    assert [chart.title for chart in found.charts] == ["machine state around each case (disturbed)"]
    assert len(found.texts) == 1 and "1 of 2 runs" in found.texts[0]


def telemetry(at_s: float, hosts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "telemetry", "cell": 0, "utc": (STARTED + timedelta(seconds=at_s)).isoformat(), "hosts": hosts}


def sample(monotonic_s: float, *slowed_by: str, mhz: float = 1980) -> dict[str, Any]:
    state = {"sm_mhz": mhz, "memory_mhz": 2600, "power_w": 512.5, "temperature_c": 61, "slowed_by": list(slowed_by)}
    return {"monotonic_s": monotonic_s, "gpus": {"0000:18:00.0": state}}


def test_hosts_clocks_are_put_onto_the_runs_and_the_slowed_host_comes_first() -> None:
    events = [
        telemetry(10.0, {"a": [sample(1008.0), sample(1009.5)], "b": [sample(57.0), sample(59.0, "power cap", mhz=1400)]}),
        telemetry(20.0, {"a": [sample(1020.0)], "b": [sample(70.0)]}),
    ]
    found = state_section(material(run([row(3, 5.0), row(4, 10.5)], events, started_utc=STARTED.isoformat())))
    chart = found.charts[1]
    assert chart.caption == "1 of 2 GPUs were throttled, b 0000:18:00.0 most: in 33 % of its samples (power cap)."
    assert chart.table.rows == [
        ["b 0000:18:00.0", "3", "1400", "1980", "512.5", "512.5", "61", "33 % of its samples (power cap)"],
        ["a 0000:18:00.0", "3", "1980", "1980", "512.5", "512.5", "61", "no"],
    ]
    assert [spot.text.partition(":")[0] for spot in chart.spots] == ["7 s", "8 s", "9 s", "9.5 s", "20 s", "20 s"]
    for words in (">SM clock in MHz<", ">power in W<", ">temperature in °C<", ">b 0000:18:00.0<"):
        assert words in chart.drawing


def test_of_many_gpus_the_most_throttled_are_drawn_and_all_are_listed() -> None:
    throttled = {7: ["heat"]}
    hosts = {
        f"node{number}": [sample(100.0 + step, *throttled.get(number, []), mhz=1900 + number) for step in range(3)] for number in range(9)
    }
    chart = gpu_chart("key", "title", run([], [telemetry(10.0, hosts)], started_utc=STARTED.isoformat()), TimeAxis(0.0, timed=False))
    assert ">node7 0000:18:00.0<" in chart.drawing and ">node0 0000:18:00.0<" in chart.drawing
    assert ">node3 0000:18:00.0<" not in chart.drawing
    assert len(chart.table.rows) == 9
    assert [row[0] for row in chart.table.rows][:2] == ["node7 0000:18:00.0", "node0 0000:18:00.0"]
    assert chart.spots[0].text == "8 s: node7 0000:18:00.0: SM clock in MHz 1907"
    assert not outside(chart.drawing)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from([0, -1, 7, 1.5, 1e99, 2**62, "", "2026-11-21", "<script>", "utc"]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["monotonic_s", "gpus", "a", "sm_mhz"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_what_is_no_telemetry_is_left_out(hosts: Any) -> None:
    events = [
        {"kind": "telemetry", "utc": STARTED.isoformat(), "hosts": hosts},
        {"kind": "telemetry", "utc": hosts, "hosts": {"a": [sample(1)]}},
    ]
    found = gpu_chart("key", "title", run([], events, started_utc=STARTED.isoformat()), TimeAxis(0.0, timed=False))
    assert found is None or found.table.rows
    assert found is None or not outside(found.drawing)


@pytest.mark.parametrize("at", [7, [1], [2, 1], [None, 1], ["1", "2"], [True, 2], [-1, 1], [0.0, 1e99]])
def test_times_that_are_none_are_not_believed(at: Any) -> None:
    assert not moments(run([make_row(8, evidence={"at_s": at, "stolen": "much", "preempted": None}, canary_s={"before": "x"})]))[1].timed


@pytest.mark.parametrize(("end", "unit", "text"), [(90.0, "s", "45 s"), (3600.0, "min", "0.75 min"), (86400.0, "h", "0.0125 h")])
def test_the_unit_of_a_time_axis_fits_its_length(end: float, unit: str, text: str) -> None:
    axis = TimeAxis(end, timed=True)
    assert axis.unit[1] == unit and axis.text(45.0) == text
    assert axis.title == f"{unit} since the start of the run"
