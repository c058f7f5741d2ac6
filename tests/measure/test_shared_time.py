"""The total time of a launch is divided among its cases, and what a case does not use goes to those that follow."""

import time

import pytest

from collbench.backends.registry import backend_defaults
from collbench.backends.torch_distributed import GlooBackend
from collbench.launch.spawn import BEGAN, command_began_s
from collbench.measuring.request import Budget, Request, SharedTime
from collbench.measuring.tasks.cases import task_of
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.results.reader import read_run
from tests.measure.launches import RecordingListener, run_alone

MIB = 1 << 20


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize(("budget", "sizes", "spent_s", "shares"), [
    (Budget(total_s=10.0), [8] * 5, [2.0] * 5, [2.0] * 5),  # equal cases: the sum is the total
    (Budget(total_s=10.0), [8, 64 * MIB], [], [1.0]),  # large messages get more
    (Budget(total_s=10.0), [64 * MIB, 8], [], [5.0]),  # 9 s, but --max-time comes first
    (Budget(60.0, total_s=10.0), [1024 * MIB, 64 * MIB], [], [5.0]),
    (Budget(total_s=10.0), [8] * 10, [0.1], [1.0, 1.1]),  # unused time goes to the cases that follow
    (Budget(5.0), [8, 64 * MIB], [0.0], [5.0, 5.0]),  # without a total
    (Budget(5.0, total_s=10.0), [8, 8], [60.0], [5.0, 0.05]),  # late cases
])  # fmt: skip
def test_the_total_time_is_divided_among_the_cases(budget, sizes, spent_s, shares):
    clock = Clock()
    times = SharedTime(budget, sizes, clock)
    given = []
    for number in range(len(shares)):
        given.append(times.next())
        clock.now_s += spent_s[number] if number < len(spent_s) else 0
    assert [share.max_time_s for share in given] == pytest.approx(shares, rel=1e-5)


def test_late_cases_are_still_measured_in_the_same_way():
    clock = Clock()
    times = SharedTime(Budget(5.0, warmup=3, precision=0.1, total_s=10.0), [8, 8], clock)
    clock.now_s += 60
    assert times.next() == Budget(0.05, warmup=3, precision=0.1, total_s=10.0)


class TestEnd:
    """The cases of a command that must end at a time."""

    def test_the_earlier_of_both_ends_counts(self):
        clock = Clock()
        assert SharedTime(Budget(total_s=8.0), [8], clock, ends_s=105.0).left_s == pytest.approx(5.0)
        assert SharedTime(Budget(total_s=8.0), [8], clock, ends_s=120.0).left_s == pytest.approx(8.0)

    def test_the_time_left_never_stands_still(self):
        clock = Clock()
        times = SharedTime(Budget(total_s=8.0), [8] * 20, clock, ends_s=115.0)
        left = []
        for _ in range(10):
            times.next()
            clock.now_s += 0.7
            left.append(times.left_s or 0.0)
        assert left == sorted(left, reverse=True) and len(set(left)) == 10

    def test_the_first_case_is_never_omitted_and_a_rank_that_judges_otherwise_than_rank_0_follows_it(self):
        clock = Clock()
        times = SharedTime(Budget(total_s=8.0), [8, 8], clock, ends_s=90.0)
        assert times.fits(8)
        times.next()
        times.spent(8, 0.1)
        assert not times.fits(8)  # but rank 0 measures the case
        assert times.next().max_time_s > 0

    def test_large_cases_are_omitted_if_their_set_up_no_longer_fits(self):
        clock = Clock()
        times = SharedTime(Budget(total_s=8.0), [MIB, 64 * MIB, 8], clock, ends_s=102.0)
        times.next()
        times.spent(MIB, 0.1)  # 64 MiB would take more than 6 s
        assert not times.fits(64 * MIB) and times.fits(8)
        times.omit()
        assert times.next().max_time_s == pytest.approx(2.0)

    def test_without_an_end_nothing_is_omitted(self):
        clock = Clock()
        times = SharedTime(Budget(total_s=8.0), [8, 8], clock)
        times.spent(8, 100.0)
        clock.now_s += 60
        assert times.fits(8)


class TestLaunch:
    """A launch of virtual ranks, of which the command must end."""

    def launch(self, folder, wall_s):
        operation = operations()["allreduce"]
        sweep = Sweep((operation,), (8, 16, 32, 64), (DTYPES["float32"],), defaults=backend_defaults)
        budget = Budget(0.02, total_s=5.0, wall_s=wall_s)
        listener = RecordingListener()
        request = Request("allreduce", sweep, ("simulated",), frozenset(["simulated"]), budget, 4, out=folder / "run")
        assert run_alone(task_of, request, listener) == 0
        return listener, folder / "run"

    def test_cases_that_do_not_fit_are_noted_and_not_stored(self, tmp_path):
        listener, path = self.launch(tmp_path, 0.001)  # this process began long ago
        found = read_run(path)
        (note,) = [event["reason"] for event in found.events if "reason" in event and event["reason"]["kind"] == "time_was_over"]
        assert (len(listener.records), len(found.rows), note["omitted"], note["cases"]) == (1, 1, 3, 4)
        assert note["series"] == [["allreduce", "simulated"]]

    def test_with_enough_time_every_case_is_measured(self, tmp_path):
        listener, _ = self.launch(tmp_path, 1e6)
        assert len(listener.records) == 4
        assert listener.left
        assert all(left_s is not None and left_s > 1e5 for left_s in listener.left)


class TestBackendThatOpensLate:
    """Default backends whose library is imported too slowly for a command that must end."""

    def backends(self, folder, requested):
        """Return (reasons of left out backends, the backends of the rows) of a command that must end in 30 s."""
        sweep = Sweep((operations()["allreduce"],), (8,), (DTYPES["float32"],), defaults=backend_defaults)
        budget = Budget(0.02, total_s=5.0, wall_s=time.monotonic() - command_began_s({}) + 30.0)
        request = Request("allreduce", sweep, ("simulated", "gloo"), requested, budget, 4, out=folder / "run")
        assert run_alone(task_of, request, RecordingListener()) == 0
        found = read_run(folder / "run")
        reasons = [event["reason"] for event in found.events if "reason" in event]
        return [reason for reason in reasons if reason["kind"] == "backend_opens_too_late"], {row.backend for row in found.rows}

    def test_it_is_left_out_with_its_reason(self, tmp_path, monkeypatch):
        monkeypatch.setattr(GlooBackend, "import_cpu_s", 1e6)
        (reason,), backends = self.backends(tmp_path, frozenset({"simulated"}))
        assert (reason["backend"], backends) == ("gloo", {"simulated"})
        assert reason["needed_s"] >= 1e6
        assert 0 < reason["left_s"] < 30

    @pytest.mark.parametrize(("requested", "seconds"), [({"gloo", "simulated"}, 1e6), ({"simulated"}, 1e-6)], ids=["named", "fast"])
    def test_a_named_or_fast_one_is_opened(self, requested, seconds, tmp_path, monkeypatch):
        monkeypatch.setattr(GlooBackend, "import_cpu_s", seconds)
        reasons, backends = self.backends(tmp_path, frozenset(requested))
        assert (reasons, backends) == ([], {"simulated", "gloo"})


def test_ranks_of_a_local_start_count_from_the_start_of_their_parent():
    own_s = command_began_s({})
    assert 0 < time.monotonic() - own_s < 24 * 3600
    assert command_began_s({"COLLBENCH_LOCAL": "x", BEGAN: f"{own_s - 5:.3f}"}) == pytest.approx(own_s - 5, abs=0.01)
    for text in ("", "x", f"{own_s + 1000:.3f}"):
        assert command_began_s({"COLLBENCH_LOCAL": "x", BEGAN: text}) == pytest.approx(own_s, abs=0.1)
    assert command_began_s({BEGAN: f"{own_s - 5:.3f}"}) == pytest.approx(own_s, abs=0.1)  # of another command
