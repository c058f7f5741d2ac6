"""A case is measured again after a flip of the state probe."""

from types import SimpleNamespace

import numpy as np
import pytest

from collbench.control.watchdog import Watchdog
from collbench.measuring import monitored as watched_module
from collbench.measuring.crossing import MovedBytes, OtherPath
from collbench.measuring.instruments import CpuReading
from collbench.measuring.monitored import MonitoredMeasurement, measure_monitored
from collbench.measuring.request import Budget
from collbench.measuring.sampling import Measurement

READY = SimpleNamespace(case=SimpleNamespace(title=lambda: "a case"), timed=[0], loop=SimpleNamespace(enqueue_s=None))


class MadeUpProbe:
    """A state probe with given values before and after each measurement."""

    def __init__(self, *readings):
        self.readings = list(readings)

    def measure(self):
        return self.readings.pop(0)


@pytest.fixture
def seen(monkeypatch, world):
    """Monitor a case with a measurement of no duration, or `each` of the budget; returns (result, budgets of the measurements)."""

    def run(*readings, each=0.0, stolen=0, threads=1, working=90, series=(1.0, 1.0, 1.0), ready=READY, **more):
        budgets, clock = [], SimpleNamespace(now=0.0)

        def sample(budget):
            budgets.append(budget.max_time_s)
            clock.now += each
            return Measurement(np.array([series]), 0.03)

        def reading(k):
            return CpuReading(stolen * k, 1000 * (k + 1), 3 * k, working * k, {str(t): k * 9 * 10**8 for t in range(threads)}, float(k))

        moments = map(reading, range(9))
        monkeypatch.setattr(watched_module, "now", lambda: next(moments))
        monkeypatch.setattr(watched_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
        return measure_monitored(ready, world, Budget(4.0), sample, MadeUpProbe(*readings) if readings else None, **more), budgets

    return run


def test_a_rank_that_was_held_meanwhile_is_a_straggler_and_the_row_reports_for_how_long(seen, monkeypatch):
    held = iter([2.0, 3.5])
    monkeypatch.setattr(Watchdog, "paused_s", property(lambda dog: next(held)))
    found, _ = seen(65e-9, 66e-9)
    assert (found.flags, found.evidence["paused_s"]) == (["straggler"], {"0": 1.5})


def test_the_state_probe_runs_while_the_ranks_are_together_and_no_counters_are_read(seen, monkeypatch):
    heard = []
    monkeypatch.setattr(MadeUpProbe, "measure", lambda probe: heard.append("probe") or probe.readings.pop(0))
    instruments = SimpleNamespace(begin=lambda *_: heard.append("begin"), end=lambda _: heard.append("end") or {})
    monkeypatch.setattr(watched_module, "moved_evidence", lambda *_: None)
    seen(65e-9, 66e-9, listeners=[instruments])
    assert heard == ["probe", "begin", "probe", "end"]


@pytest.mark.parametrize(("readings", "each", "probe_s", "repeats", "flags", "budgets"), [
    ((65e-9, 66e-9), 0.0, (65e-9, 66e-9), 0, [], [4.0]),  # in one state
    ((65e-9, 260e-9, 261e-9, 259e-9), 1.5, (261e-9, 259e-9), 1, ["remeasured"], [4.0, 2.5]),
    ((65e-9, 260e-9, 260e-9, 65e-9, 65e-9, 260e-9), 0.1, (65e-9, 260e-9), 2, ["state_flip"], [4.0, 3.9, 3.8]),  # it goes on flipping
    ((65e-9, 260e-9), 3.5, (65e-9, 260e-9), 0, ["state_flip"], [4.0]),  # without time
    ((None, 65e-9), 0.0, (None, 65e-9), 0, ["cpu_shared"], [4.0]),  # a probe that failed is no flip, but other work on the cores
    ((None, None), 0.0, (None, None), 0, ["cpu_shared"], [4.0]),
], ids=["one state", "a flip", "flips", "without time", "a failed probe", "failed probes"])  # fmt: skip
def test_after_a_flip_it_is_measured_again_with_what_is_left_of_the_budget(seen, *, readings, each, probe_s, repeats, flags, budgets):
    found, of_measurements = seen(*readings, each=each)
    assert (found.probe_s, found.repeats, found.flags) == (dict(zip(("before", "after"), probe_s, strict=True)), repeats, flags)
    assert of_measurements == pytest.approx(budgets)


def test_without_a_state_probe_nothing_is_known_of_the_state(seen):
    found, _ = seen()
    assert (found.probe_s, found.repeats, found.flags) == ({}, 0, [])


def test_a_hypervisor_that_took_the_cpu_is_reported(seen):
    found, _ = seen(65e-9, 65e-9, stolen=50)
    assert (found.stolen, found.preempted, found.flags) == (0.05, 3, ["cpu_shared"])


@pytest.mark.parametrize(("threads", "series", "flags"), [
    (4096, (1.0, 7.0, 7.0), ["threads_share_cores"]), (4096, (1.0, 1.1, 1.1), []), (1, (1.0, 7.0, 7.0), []),
])  # fmt: skip
def test_threads_that_share_cores_are_reported_if_times_vary(seen, threads, series, flags):
    found, _ = seen(threads=threads, series=series)
    assert found.flags == flags
    assert found.evidence.get("threads", {}).get("threads") == (4096 if threads > 1 else None)


@pytest.mark.parametrize(("enqueue_s", "bound"), [(None, False), (0.79, False), (0.8, True), (3.0, True)])
def test_a_device_that_waits_for_its_host_is_reported(seen, enqueue_s, bound):
    """Each sample took 1 s."""
    ready = SimpleNamespace(case=READY.case, timed=[0], loop=SimpleNamespace(enqueue_s=enqueue_s))
    found, _ = seen(ready=ready)
    assert (found.launch_bound, found.flags) == (bound, ["launch_bound"] if bound else [])
    assert found.evidence == {"wall_s": {"measured": 0.0}} | ({} if enqueue_s is None else {"enqueue_s": enqueue_s})


def test_counters_that_show_another_path_withhold_the_percentage_and_what_is_unknown_raises_no_flag():
    other = OtherPath("mpi", "h1", "out", 1, 2 << 30)
    moved = MovedBytes(1, 2 << 30, {}, 0, "shared memory", None, other.render(), None, other)
    measured = Measurement(np.ones((1, 1)), 0.03)
    found = MonitoredMeasurement(measured, {}, False, None, 0, 0, False, moved=moved)
    assert (found.flags, found.other_path) == (["other_path"], other)
    assert MonitoredMeasurement(measured, {}, False, None, 0, 0, False).flags == []
