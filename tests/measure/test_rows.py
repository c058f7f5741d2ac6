"""The doubts that a series of samples raises: each is a flag on the row, never a traceback or a false interval."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.machine.peak.ceiling import Ceiling
from collbench.measuring.loop import WRAP_NS
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.phases import Phase
from collbench.measuring.row import RowContext, against_limits, doubts, make_row
from collbench.measuring.sampling import Measurement
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.case import Split
from collbench.operations.operation import Operation
from collbench.results.reader import row_from_json
from tests.helpers import make_case

RANDOM = np.random.default_rng(7)
STEADY = RANDOM.normal(10e-6, 0.1e-6, 300)
BACKEND = SimpleNamespace(name="mpi", api="mpi", ranks=2)


def row_of(
    samples, starts=None, flags=(), mode="isolated", *, operation=ALLREDUCE, groups=((0, 1),), timed=(0, 1), case=None, ceiling=None,
    hard_bound=None, hosts=((0, 1),), **seen,
):  # fmt: skip
    """The row of samples [ranks × n] of an all-reduce of 400 bytes."""
    measured = Measurement(np.array(samples, float), 0.03, True, "precision", flags=list(flags))
    measured.starts_ns = np.zeros_like(measured.samples) if starts is None else np.array(starts, float)
    known = {"probe_s": {}, "silent": False, "stolen": None, "preempted": 0, "repeats": 0, "flipped": False}
    ready = SimpleNamespace(
        operation=operation, case=make_case(backend="mpi", mode=mode, **(case or {})), groups=groups, timed=list(timed), synchronised=True,
        loop=SimpleNamespace(iterations=1),
    )  # fmt: skip
    return make_row(ready, BACKEND, MonitoredMeasurement(measured, **{**known, **seen}), RowContext(hosts, ceiling, hard_bound))[0]


def test_a_steady_series_raises_no_doubt():
    assert list(doubts(STEADY, 300, np.full(300, 1e-7), 1)) == []


@pytest.mark.parametrize(("series", "word"), [
    (np.full(300, 1e-6), "constant"),
    (np.where(RANDOM.random(300) < 0.82, 2.3e-6, 10.7e-6) * RANDOM.normal(1, 0.01, 300), "two_modes"),
    (STEADY * np.linspace(1, 1.2, 300), "drift"),
])  # fmt: skip
def test_a_series_that_one_number_would_hide(series, word):
    assert word in list(doubts(series, 300, None, 1))


@pytest.mark.parametrize(("skew_s", "moves", "flagged"), [(0.9e-6, 1, False), (1.1e-6, 1, True), (1.1e-6, 64, False)])
def test_ranks_that_left_the_synchronisation_more_than_a_tenth_of_a_sample_apart(skew_s, moves, flagged):
    assert ("skew_limited" in list(doubts(STEADY, 300, np.full(300, skew_s), moves))) is flagged


def test_two_modes_are_on_the_row_and_equal_samples_have_no_interval():
    fast = RANDOM.random(400) < 0.82
    row = row_of([np.where(fast, 2.3e-6, 10.7e-6) * RANDOM.normal(1, 0.01, 400), np.full(400, 1e-6)])
    assert "two_modes" in row.flags
    assert [mode["time_s"] for mode in row.modes] == pytest.approx([2.3e-6, 10.7e-6], rel=0.01)
    assert [mode["share"] for mode in row.modes] == pytest.approx([fast.mean(), 1 - fast.mean()], abs=0.01)
    row = row_of(np.full((2, 100), 1e-6))
    assert (row.time_s.p50, row.time_s.ci_low, row.time_s.ci_high, "constant" in row.flags) == (1e-6, None, None, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-6])
def test_samples_that_no_clock_can_give_are_left_out_at_all_ranks(bad):
    samples = np.array([STEADY, STEADY / 2])
    samples[1, 10] = bad
    row = row_of(samples)
    assert (row.n, row.evidence["unsound_samples"], "clock_stepped" in row.flags) == (299, 1, True)
    assert row.time_s.p50 == pytest.approx(10e-6, rel=0.01)


def test_without_a_single_sound_sample_there_is_no_figure():
    row = row_of(np.full((2, 5), np.nan), flags=["few_samples"])
    assert (row.n, row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.modes) == (0, None, None, None, [])
    assert row.flags == ("few_samples", "clock_stepped")


def test_the_skew_is_evidence_of_isolated_rows_before_a_window_with_the_number_of_its_messages():
    starts = [np.arange(300.0) * 1000, np.arange(300.0) * 1000 + 2000]
    samples = [STEADY, STEADY]
    assert row_of(samples, starts).evidence["exit_skew_s"] == pytest.approx({"p50": 2e-6, "p95": 2e-6})
    assert "skew_limited" in row_of(samples, starts).flags
    assert "exit_skew_s" not in row_of(samples, starts, mode="batched").evidence
    assert "exit_skew_s" not in row_of(samples, np.full((2, 300), np.nan)).evidence
    row = row_of(samples, starts, operation=P2P_BANDWIDTH, timed=(0,), case={"window": 10, "redop": None})
    assert row.evidence["exit_skew_s"] == pytest.approx({"p50": 2e-6, "p95": 2e-6, "messages": 10})


def test_what_was_seen_around_the_case_is_on_the_row():
    row = row_of([STEADY, STEADY], probe_s={"before": 65e-9, "after": 66e-9}, stolen=0.05, preempted=7, repeats=1)
    assert (row.canary_s, row.stopped, row.reached) == ({"before": 65e-9, "after": 66e-9}, "precision", True)
    assert (row.evidence["stolen"], row.evidence["preempted"], row.evidence["repeats"]) == (0.05, 7, 1)
    assert row.flags == ("remeasured", "cpu_shared")


def of_two_groups(factor, **more):
    """Ranks 0 and 2 take 10 µs and a little, 1 and 3 `factor` times as long; 400 bytes."""
    samples = np.array([STEADY, STEADY * factor, STEADY * 0.9, STEADY * factor * 0.9])
    more = {"groups": ((0, 2), (1, 3)), "timed": (0, 1, 2, 3), "case": {"split": Split("MOD", 2)}, **more}
    return row_of(samples, np.zeros_like(samples), **more)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_the_slowest_groups_figures_are_the_rows(factor):
    row = of_two_groups(factor)
    p50s = [float(np.median(STEADY)), float(np.median(STEADY)) * factor]
    assert (row.group, row.time_s.p50) == ("MOD 2", max(p50s))
    assert row.busbw_bytes_per_s == pytest.approx(400 / max(p50s))  # 2(n-1)/n of two ranks is 1
    assert (row.groups["count"], row.groups["ranks"], row.groups["p50_s"]) == (2, 2, p50s)
    assert row.groups["busbw_bytes_per_s"] == pytest.approx([400 / p50 for p50 in p50s])
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(2 * 400 / max(p50s))  # until the last was done


def test_groups_that_take_turns_on_a_wire_do_not_pass_it_together():
    """In each iteration one group is done after T and the other one after 2T, now this one first and now that one."""
    first = np.arange(300) % 2 == 0
    samples = np.where([first, ~first, first, ~first], STEADY, 2 * STEADY)
    row = row_of(samples, np.zeros_like(samples), groups=((0, 2), (1, 3)), timed=(0, 1, 2, 3), case={"split": Split("MOD", 2)})
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(400 / np.median(STEADY), rel=1e-6)  # 800 bytes in 2T


def test_pairs_at_once_are_reported_pair_by_pair():
    """Of a pair the first rank is timed; a sample is a window of messages."""
    samples = np.array([STEADY, STEADY * 4, STEADY * 99, STEADY * 99])
    row = row_of(samples, samples, operation=P2P_BANDWIDTH, groups=((0, 2), (1, 3)), timed=(0, 1), case={"window": 10, "redop": None})
    p50 = float(np.median(STEADY)) / 10
    assert (row.group, row.groups["p50_s"]) == ("0-2,1-3", pytest.approx([p50, 4 * p50]))
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(2 * 400 / (4 * p50))


def test_many_groups_are_reported_together_only_and_one_group_once(monkeypatch):
    monkeypatch.setattr("collbench.measuring.row._MOST_GROUPS", 1)
    row = of_two_groups(2.0)
    assert (row.groups["count"], row.groups["p50_s"], row.groups["busbw_bytes_per_s"]) == (2, None, None)
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(2 * row.busbw_bytes_per_s)
    row = row_of([STEADY, STEADY], case={"split": Split("AND", 0)})
    assert (row.group, row.groups) == ("all", {})


@pytest.mark.parametrize(("disturbed", "flags"), [(False, ()), (True, ("reference_disturbed",))])
def test_a_disturbed_reference_gives_no_percentage_and_gives_the_reason(disturbed, flags):
    reference = Ceiling("measured", 1e9, "memory copy", low_bytes_per_s=0.98e9, high_bytes_per_s=1.02e9, disturbed=disturbed)
    row = row_of([STEADY, STEADY], ceiling=reference)
    assert (row.percent_of_ceiling is None, row.flags) == (disturbed, flags)
    assert row_from_json(row.as_json()).ceiling == reference


@pytest.mark.parametrize(("part", "disturbed"), [(1.19, False), (1.21, True)])
def test_a_row_far_above_a_measured_reference_shows_that_it_was_disturbed(part, disturbed):
    rate = row_of([STEADY, STEADY]).busbw_bytes_per_s
    row = row_of([STEADY, STEADY], ceiling=Ceiling("measured", rate / part, "shared memory"))
    assert (row.percent_of_ceiling is None, row.ceiling.disturbed) == (disturbed, disturbed)
    assert row.flags == (("reference_disturbed",) if disturbed else ())
    assert row_of([STEADY, STEADY], ceiling=Ceiling("network", rate / part, "NIC")).percent_of_ceiling == pytest.approx(100 * part)


def test_both_percentages_are_of_the_ring_reference_and_of_the_hard_limit():
    ring, limit = Ceiling("network", 30e6, "NIC"), Ceiling("network", 60e6, "NIC", "bound")
    row = row_of([STEADY, STEADY], ceiling=ring, hard_bound=limit)
    assert row.busbw_bytes_per_s > 30e6  # above the ring reference, which stays the base
    assert row.percent_of_ceiling == pytest.approx(100 * row.busbw_bytes_per_s / 30e6)
    assert row.percent_of_hard_bound == row.as_json()["percent_of_hard_bound"] == pytest.approx(row.percent_of_ceiling / 2)


def test_what_moves_nothing_has_a_time_alone():
    barrier = Operation("barrier", lambda n: 0.0, lambda x: [], is_barrier=True)
    row = of_two_groups(2.0, operation=barrier, case={"size_bytes": 0, "redop": None, "split": Split("MOD", 2)})
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.percent_of_ceiling, row.count) == (None, None, None, 0)
    assert (row.time_s.p50, row.groups["total_busbw_bytes_per_s"]) == (max(row.groups["p50_s"]), None)


def test_of_pairs_the_slowest_ranks_are_named_by_their_number_in_the_job():
    """Ranks 0 and 2 are timed: the second of them is rank 2, and no rank 1."""
    samples = np.array([STEADY, STEADY * 99, STEADY * 2, STEADY * 99])
    row = row_of(samples, samples, operation=P2P_BANDWIDTH, groups=((0, 1), (2, 3)), timed=(0, 2), case={"window": 10, "redop": None})
    assert row.slowest_ranks == {"worst": [[2, 300]], "count": 1}
    assert row.groups["p50_s"] == pytest.approx([float(np.median(STEADY)) / 10, float(np.median(STEADY)) / 5])


@pytest.mark.parametrize(("skew_s", "flagged"), [(2e-6, False), (8e-6, False), (12e-6, True)])
def test_the_skew_is_compared_with_a_whole_window_of_messages(skew_s, flagged):
    """A window of ten messages takes 100 µs: a tenth of that is 10 µs."""
    samples = np.array([STEADY * 10, STEADY * 10])
    starts = [np.arange(300.0) * 1e6, np.arange(300.0) * 1e6 + skew_s * 1e9]
    row = row_of(samples, starts, operation=P2P_BANDWIDTH, timed=(0,), case={"window": 10, "redop": None})
    assert ("skew_limited" in row.flags) is flagged


@pytest.mark.parametrize(
    ("busbw", "above", "percent"), [(0.9e9, False, 180.0), (1.01e9, False, 202.0), (1.03e9, True, None), (None, False, None)]
)
def test_above_the_hard_limit_by_more_than_a_clocks_error_there_is_no_percentage(busbw, above, percent):
    ceiling, flags = Ceiling("network", 0.5e9, "NIC"), ("above_bound",) if above else ()
    assert against_limits(busbw, ceiling, 1e9) == (percent and pytest.approx(percent), flags)
    assert against_limits(busbw, ceiling, 1e9, withheld=True) == (None, flags)


@pytest.mark.parametrize(("hosts", "skew_s"), [(((0, 1), (2, 3)), 5e-6), (((0, 1), (2,)), 1e-7), (((0,), (1,)), None)])
def test_the_skew_is_that_of_the_worst_host(hosts, skew_s):
    starts = np.stack([np.arange(300.0) * 1e6 + ns for ns in (0, 100, 0, 5000)])
    row = row_of([STEADY] * 4, starts, groups=((0, 1, 2, 3),), timed=range(4), hosts=hosts)
    assert row.evidence.get("exit_skew_s") == (skew_s and pytest.approx({"p50": skew_s, "p95": skew_s}))


# When the samples began, for a trace.


def stored_with(starts_ago_s, *, hosts=((0, 1), (2,)), timed=(0, 1, 2), requested=True, taken_ago_s=50.0):
    """The array and the evidence of a case with samples that began so many seconds ago; the run began 100 seconds ago."""
    now_s = time.monotonic()
    samples = np.full(np.shape(starts_ago_s), 1e-3)
    measured = Measurement(samples, 0.03, True, "precision", batch=5)
    measured.starts_ns = np.mod((now_s - np.array(starts_ago_s)) * 1e9, WRAP_NS)
    measured.phases.append(Phase("samples", now_s - taken_ago_s, now_s))
    ready = SimpleNamespace(operation=P2P_BANDWIDTH, case=make_case(backend="mpi", mode="isolated", window=64), groups=((0, 1),),
                            timed=list(timed), synchronised=False, loop=SimpleNamespace(iterations=1))  # fmt: skip
    known = {"probe_s": {}, "silent": False, "stolen": None, "preempted": 0, "repeats": 0, "flipped": False}
    backend, around = SimpleNamespace(name="mpi", api="mpi", ranks=3), RowContext(hosts, began_s=now_s - 100 if requested else None)
    ready.operation = ALLREDUCE if len(timed) > 1 else P2P_BANDWIDTH
    ready.groups = (tuple(range(len(starts_ago_s))),) if len(timed) > 1 else ((0, 1),)
    row, arrays = make_row(ready, backend, MonitoredMeasurement(measured, **known), around)
    return arrays.get("start_s"), row.evidence.get("sample_starts")


def test_the_starts_are_since_the_run_began_only_of_one_clock_and_of_a_pair_of_the_timed_rank_with_the_messages_of_an_iteration():
    starts, about = stored_with([[40.0, 30.0], [39.0, 29.0], [7.0, 7.0]])
    assert starts[:2] == pytest.approx(np.array([[60.0, 70.0], [61.0, 71.0]]), abs=0.01)
    assert np.isnan(starts[2]).all()
    assert about == {"ranks": [0, 1, 2], "messages": 1}
    starts, about = stored_with([[40.0], [40.0]], hosts=((0, 1),), timed=(0,))
    assert (starts.shape, about) == ((1, 1), {"ranks": [0], "messages": 64})


@pytest.mark.parametrize("change", [
    {"requested": False}, {"taken_ago_s": WRAP_NS * 1e-9}, {"starts_ago_s": [[np.nan], [np.nan], [np.nan]]}, {"hosts": ((1,), (2,))},
])  # fmt: skip
def test_starts_that_are_unknown_or_ambiguous_are_not_stored(change):
    assert stored_with(**{"starts_ago_s": [[40.0], [40.0], [40.0]], **change}) == (None, None)
