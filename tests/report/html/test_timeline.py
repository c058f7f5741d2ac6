"""The machine's state on the time axis of the cases, and its GPUs' on the same: what disturbed which case, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report.html.chart import Chart
from collbench.report.html.timeline import TimeAxis, gpu_chart, moments, section, worst
from collbench.results.reader import Run
from collbench.results.row import Row
from tests.report.html.stored import material, run_of
from tests.report.html.svg import marks, outside
from tests.results.rows import make_row, not_measured

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
    found = section(material(run(rows)))
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
    for words in (
        ">state probe in ns, before and after<",
        ">CPU time stolen in %<",
        ">preemptions<",
        ">s since the start of the run<",
    ):
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
    assert axis.title == "cases in the order of measurement"


def test_a_flagged_case_without_a_state_probe_is_marked() -> None:
    found = section(material(run([row(3, 1.0), row(4, 2.0, (None, None), flags=("cpu_shared",))])))
    assert found.charts[0].spots[1].text.startswith("2 s, allreduce 16 B nccl: state probe ? → ? ns")
    assert triangles(found.charts[0]) == pytest.approx([found.charts[0].spots[1].x], abs=0.1)


def test_of_many_cases_the_largest_changes_are_drawn_and_listed() -> None:
    rows = [row(3 + number % 20, float(number)) for number in range(400)]
    rows[250] = row(8, 250.0, (80e-9, 300e-9), flags=("state_flip",))
    found = section(material(run(rows)))
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


def test_a_run_in_which_nothing_was_disturbed_or_reported_has_no_section() -> None:
    events = [telemetry(10.0, {"a": [sample(1008.0)]})]
    assert section(material(run([row(3, 1.0), row(4, 2.0)], events, started_utc=STARTED.isoformat()))) is None
    assert section(material(run([make_row(8)]))) is None
    assert section(material(run([]))) is None


def test_of_two_runs_only_the_disturbed_one_is_shown() -> None:
    calm, disturbed = run([row(3, 1.0)]), replace(run([row(3, 1.0, flags=("state_flip",))]), path=Path("disturbed"))
    found = section(material(calm, disturbed))
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
    found = section(material(run([row(3, 5.0), row(4, 10.5)], events, started_utc=STARTED.isoformat())))
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


class TestTimeAxis:
    @pytest.mark.parametrize(("end", "unit", "text"), [(90.0, "s", "45 s"), (3600.0, "min", "0.75 min"), (86400.0, "h", "0.0125 h")])
    def test_its_unit_fits_its_length(self, end: float, unit: str, text: str) -> None:
        axis = TimeAxis(end, timed=True)
        assert axis.unit[1] == unit and axis.text(45.0) == text
        assert axis.title == f"{unit} since the start of the run"

    def test_without_times_cases_are_counted(self) -> None:
        axis = TimeAxis(3.5, timed=False)
        assert (axis.title, axis.text(0.5)) == ("cases in the order of measurement", "case 1")
