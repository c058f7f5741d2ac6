"""How often a case is run: budget before counts, warm-up by a test, stop by the median's interval; the short plan of one of many."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.control.world import World
from collbench.launch.info import LaunchInfo
from collbench.measuring.request import Budget
from collbench.measuring.sampling import FEW, MOST_SAMPLES, MOST_WARMUPS, Stopping, measure, schedule, slowest, sound
from collbench.stats.median import median


class Bench:
    """Runs a plan: `series(i)` is the time of the ith iteration at the slowest rank; the clock moves by what the samples took."""

    def __init__(self, budget, series, *, mode="isolated", size_bytes=8, ranks=2, timed=(0, 1), overhead_s=0.0, iterations=1):
        self.now, self.looks, self.started, self._i, self._iterations = 0.0, [], [], 0, iterations
        plan = schedule(Stopping(budget, size_bytes, list(timed), mode, iterations), lambda: self.now)
        look = next(plan)
        while True:
            self.looks.append(look)
            self.started.append(self.now)
            samples = self._run(*look, series, ranks, overhead_s)
            try:
                look = plan.send(samples)
            except StopIteration as stop:
                self.measured = stop.value
                return

    def _run(self, n, batch, series, ranks, overhead_s):
        values = np.array([[series(self._i + k * batch + j) for j in range(batch)] for k in range(n)]).mean(axis=1)
        self._i += n * batch
        went = np.where(np.isfinite(values) & (values > 0), values, 1e-3)  # the rank's clock may be broken, this one is not
        self.now += float(went.sum()) * batch * self._iterations + overhead_s * n
        rows = [values, *[values / 2] * (ranks - 1)]
        return np.array(rows)

    @property
    def timed_looks(self):
        total, n = 0, self.measured.samples.shape[1]
        for k, look in enumerate(reversed(self.looks)):
            total += look[0]
            if total == n:
                return self.looks[len(self.looks) - 1 - k :]
        raise AssertionError("samples that belong to no look")


def noisy(seconds=1e-3, spread=0.01, seed=1):
    random = np.random.default_rng(seed)
    values = seconds * random.normal(1, spread, 100_000)
    return lambda i: float(values[i])


def steady(seconds):
    return lambda i: seconds


def test_a_steady_series_warms_up_in_windows_of_a_fifth_of_the_budget_and_stops_at_sixty():
    bench = Bench(Budget(5.0), steady(1e-3))
    assert bench.looks == [(1, 1), (20, 1), (20, 1), (6, 1), (54, 1)]
    assert (bench.measured.warmups, bench.measured.reached, bench.measured.flags) == (40, True, [])
    assert bench.measured.samples.shape == (2, FEW)
    assert Bench(Budget(5.0), steady(1e-6)).looks[1] == (20, 1)
    assert Bench(Budget(5.0), steady(0.1)).looks[1] == (10, 1)
    assert Bench(Budget(5.0), steady(0.5)).looks[1] == (3, 1)
    bench = Bench(Budget(5.0), noisy(spread=0.5), ranks=4, timed=(1, 2))
    assert bench.measured.samples.shape[0] == 4


def test_a_warm_up_is_waited_for_until_the_cap_or_a_quarter_of_the_budget():
    bench = Bench(Budget(50.0), lambda i: 1e-3 if i > 100 else 5e-3 * (1 - i / 150))
    assert 100 < bench.measured.warmups < MOST_WARMUPS
    assert bench.measured.flags == []
    assert np.all(bench.measured.samples[0] == pytest.approx(1e-3))
    bench = Bench(Budget(1000.0), lambda i: 1e-3 * 1.01 ** (i % 2000))
    assert bench.measured.warmups == MOST_WARMUPS
    assert "warmup_unsettled" in bench.measured.flags
    bench = Bench(Budget(1.0), lambda i: 5e-3 * 1.01 ** min(i, 500))
    warm = sum(n for n, _ in bench.looks) - bench.measured.samples.shape[1]
    assert warm == bench.measured.warmups + 1
    assert "warmup_unsettled" in bench.measured.flags
    assert bench.started[len(bench.looks) - len(bench.timed_looks)] < 0.25 + 0.2 * 1.3  # a quarter, and the window that crossed it


@pytest.mark.parametrize(("iterations", "warmup", "looks"), [
    (100, 10, [(1, 1), (9, 1), (100, 1)]), (7, 1, [(1, 1), (7, 1)]), (1, 0, [(1, 1), (1, 1)]), (5000, 400, [(1, 1), (399, 1), (5000, 1)]),
])  # fmt: skip
def test_exactly_as_many_as_asked_for(iterations, warmup, looks):
    bench = Bench(Budget(1000.0, iterations, warmup), noisy())
    assert bench.looks == looks
    assert (bench.measured.warmups, bench.measured.reached) == (warmup, None)
    assert bench.measured.samples.shape[1] == iterations


def test_few_samples_are_flagged_and_long_iterations_batched_less():
    assert Bench(Budget(5.0, FEW - 1, 1), noisy()).measured.flags == ["few_samples"]
    assert Bench(Budget(5.0, FEW, 1), noisy()).measured.flags == []
    bench = Bench(Budget(1.0), noisy(0.04, 0.001))
    assert bench.now < 1.1
    assert "few_samples" in bench.measured.flags
    assert Bench(Budget(4.0), steady(0.1), mode="pipelined").measured.batch == 3
    assert Bench(Budget(1.0), steady(2.0), mode="pipelined").measured.batch == 1
    assert Bench(Budget(5.0), steady(1e-3)).measured.batch == 1


def test_looks_grow_by_half_until_the_target_of_the_size_is_reached_or_missed():
    bench = Bench(Budget(100.0), noisy(spread=0.3))
    sizes = np.cumsum([n for n, _ in bench.timed_looks])
    assert sizes[:5].tolist() == [6, 60, 91, 137, 206]
    assert bench.measured.reached
    assert bench.measured.target == 0.03
    assert [Budget().target(size) for size in (8, 2**14, 2**14 + 1, 2**20, 2**20 + 1)] == [0.03, 0.03, 0.02, 0.02, 0.005]
    assert Budget(precision=0.001).target(8) == 0.001
    loose, tight = (Bench(Budget(100.0, precision=p), noisy(spread=0.1)).measured.samples.shape[1] for p in (0.1, 0.005))
    assert loose == FEW
    assert tight > 10 * FEW
    bench = Bench(Budget(1e6, precision=1e-6), noisy(spread=0.3))
    assert bench.measured.samples.shape[1] == MOST_SAMPLES
    assert (bench.measured.reached, bench.measured.flags) == (False, ["target_missed"])


@pytest.mark.parametrize("max_time_s", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("each_s", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("overhead_s", [0.0, 1e-3])
def test_no_look_is_planned_beyond_the_budget(max_time_s, each_s, overhead_s):
    bench = Bench(Budget(max_time_s, precision=1e-9), noisy(each_s, 0.001), overhead_s=overhead_s)
    first = len(bench.looks) - len(bench.timed_looks)
    for (n, _), started in list(zip(bench.looks, bench.started, strict=True))[first + 1 :]:
        assert started + n * (each_s + overhead_s) < max_time_s * 1.02 + each_s
    assert bench.now < max_time_s * 1.05 + 12 * (each_s + overhead_s)


@pytest.mark.parametrize("iterations", [None, 50])
def test_one_iteration_longer_than_the_budget_is_one_sample_and_no_interval(iterations):
    bench = Bench(Budget(0.5, iterations), steady(2.0))
    assert bench.looks == [(1, 1)]
    assert (bench.measured.samples.tolist(), bench.measured.warmups) == ([[2.0], [1.0]], 0)
    assert (bench.measured.stopped, bench.measured.reached) == ("max_time", None if iterations else False)
    assert bench.measured.flags == ["budget_exceeded", "few_samples", *([] if iterations else ["target_missed"])]


def test_messages_graphs_and_long_iterations_keep_to_the_budget():
    bench = Bench(Budget(0.5), steady(0.014), overhead_s=0.6)
    assert bench.looks == [(1, 1), (6, 1)]
    assert (bench.measured.samples.shape[1], bench.measured.stopped) == (6, "max_time")
    assert bench.measured.flags == ["warmup_unsettled", "few_samples"]
    bench = Bench(Budget(5.0), noisy(10e-3, 0.001), mode="graph", iterations=20)  # 0.2 s a turn
    assert bench.measured.warmups <= 10 and bench.now < 5.5
    bench = Bench(Budget(5.0), steady(1.0))
    assert bench.looks == [(1, 1), (4, 1)]
    assert bench.measured.flags == ["warmup_unsettled", "few_samples", "target_missed"]
    bench = Bench(Budget(1.0, 1000, 1), noisy(0.01, 0.001))
    n = bench.measured.samples.shape[1]
    assert (95 < n < 102, bench.measured.stopped) == (True, "max_time")


@pytest.mark.parametrize(("budget", "series", "stopped"), [
    (Budget(5.0), steady(1e-3), "precision"), (Budget(5.0, 7), steady(1e-3), "iterations"),
    (Budget(0.3), noisy(0.01, 0.3), "max_time"), (Budget(0.5), noisy(spread=0.9), "out_of_reach"),
    (Budget(1e6, precision=1e-6), noisy(spread=0.3), "most_samples"),
])  # fmt: skip
def test_why_it_stopped_is_reported(budget, series, stopped):
    assert Bench(budget, series).measured.stopped == stopped


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-3])
def test_samples_of_a_broken_clock_neither_count_nor_harm(bad):
    good = noisy()
    bench = Bench(Budget(5.0), lambda i: bad if i % 7 == 3 else good(i))
    measured = bench.measured
    kept = sound(measured.samples, [0, 1])
    assert 0 < np.count_nonzero(~kept) < len(kept) / 5
    assert slowest(measured.samples, [0, 1]) == pytest.approx(1e-3, rel=0.06)
    assert measured.stopped == "precision"


@pytest.mark.parametrize("bad", [np.nan, -1.0])
def test_a_clock_that_never_works_ends_without_a_figure(bad):
    measured = Bench(Budget(1.0, 5), lambda i: bad, overhead_s=0.0).measured
    assert slowest(measured.samples, [0, 1]).size == 0


@pytest.mark.parametrize("mode", ["pipelined", "batched"])
def test_twenty_iterations_a_stamp_unless_isolated(mode):
    bench = Bench(Budget(5.0), steady(1e-3), mode=mode)
    assert bench.looks[:2] == [(1, 1), (20, 20)]
    assert bench.measured.batch == 20
    assert all(batch == 20 for _, batch in bench.timed_looks)


@pytest.mark.parametrize("max_time_s", [0.5, 2.0])
@pytest.mark.parametrize("each_s", [1e-4, 1e-3, 0.01, 0.05])
def test_batches_keep_to_the_budget_too(max_time_s, each_s):
    bench = Bench(Budget(max_time_s, precision=1e-9), noisy(each_s, 0.001), mode="pipelined")
    assert bench.now < max_time_s * 1.1 + 7 * each_s


def test_measure_runs_the_plans_looks_and_divides_by_the_batch():
    class Stub:
        def __init__(self, iterations=1):
            self.looks, self.iterations = [], iterations

        def run(self, n, batch):
            self.starts_ns = np.full((1, n), 1000.0 * len(self.looks)) + np.arange(n)
            self.looks.append((n, batch))
            return np.full((1, n), 2e-3 * batch * self.iterations)

    world, stub, graph = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0), Stub(), Stub(iterations=20)
    one, several = (schedule(Stopping(Budget(5.0, 3, 2), 8, [0], mode), lambda: 0.0) for mode in ("pipelined", "graph"))
    try:
        found = measure(stub, world, one, "a case")
        of_graph = measure(graph, world, several, "a case of a graph that holds 20 iterations")
    finally:
        world.close()
    assert (graph.looks, of_graph.samples.tolist()) == ([(1, 1), (1, 1), (3, 1)], [[2e-3] * 3])
    assert stub.looks == [(1, 1), (1, 1), (3, 20)]
    assert found.samples.tolist() == [[2e-3] * 3]
    assert found.starts_ns.tolist() == [[2000, 2001, 2002]]  # of the samples that are kept


NEXT = "a case: the next samples"


def test_ranks_receive_each_batch_and_the_end():
    class Stub:
        iterations = 2

        def run(self, n, batch):
            self.starts_ns = np.zeros((2, n))
            return np.full((2, n), 4e-3)

    told = []
    doing = []
    dog = SimpleNamespace(phase=lambda what: doing.append(what) or nullcontext())
    gather = SimpleNamespace(watchdog=dog, broadcast=lambda value, what: told.append((value, what)) or value)
    gather.gather_array = lambda array, what: told.append(what) or [array]
    found = measure(Stub(), gather, schedule(Stopping(Budget(5.0, 3, 2), 8, [0]), lambda: 0.0), "a case")
    looks = [[1, 1, True], [1, 1, True], [3, 1, False]]
    assert told == [*(text for look in looks for text in ((look, NEXT), "a case: gathering samples")), ([0, 0, False], NEXT)]
    assert doing == ["a case: warm-up", "a case: warm-up", "a case: measuring"]
    assert found.samples.tolist() == [[2e-3] * 3] * 2 and found.durations == [("warm-up", 4e-3)] * 2 + [("timed", 4e-3)] * 3
    assert [phase.name for phase in found.phases] == ["warm-up", "samples"] and 0 <= found.loop_s < 5


@pytest.mark.parametrize("said", [[0, 0, False], [0, 1, True]])
def test_a_rank_without_a_plan_ends_on_request(said):
    world = SimpleNamespace(broadcast=lambda value, what: said if value == [0, 0, False] else None)
    assert measure(None, world, None, "a case") is None


def test_only_whole_rounds_of_sound_turns_count():
    samples = np.array([[1.0, 3.0, 2.0, np.nan, 4.0, 5.0], [0.5, 6.0, 2.0, 2.0, 4.0, 1.0], [9.0] * 6])
    assert slowest(samples, [0, 1], 2).tolist() == [[1, 6], [4, 5]]
    rule = Stopping(Budget(5.0), 8, [0, 1], turns=2)
    assert (rule.rounds(samples), rule.times(samples).tolist(), rule.mean_s(samples)) == (3, [7, 9], 8)
    assert Stopping(Budget(5.0), 8, [0, 1]).times(samples).tolist() == [1, 6, 2, 4, 5]


def test_rounds_of_several_turns_are_warmed_up_and_taken_whole():
    looks, now = [], SimpleNamespace(s=0.0)
    plan = schedule(Stopping(Budget(5.0), 8, [0], turns=3), lambda: now.s)
    look = next(plan)
    with pytest.raises(StopIteration) as stop:
        while True:
            looks.append(look)
            now.s += 1e-3 * look[0]
            look = plan.send(np.full((1, look[0]), 1e-3))
    assert looks == [(3, 1), (60, 1), (60, 1), (18, 1), (162, 1)]
    assert (stop.value.value.warmups, stop.value.value.stopped, stop.value.value.flags) == (120, "precision", [])


def test_many_warm_ups_are_taken_only_if_they_fit_into_half_of_the_time():
    rule = Stopping(Budget(1.0), 8, [0], warmup=40)
    for call_s, looks in ((0.01, [(1, 1), (39, 1), (6, 1)]), (0.02, [(1, 1), (6, 1)])):
        plan = schedule(rule, lambda: 0.0)
        found = [next(plan)]
        while found[-1] != (6, 1):
            found.append(plan.send(np.full((1, found[-1][0]), call_s)))
        assert found == looks


def test_the_second_half_of_the_budget_is_not_spent_on_what_it_cannot_reach():
    two = np.random.default_rng(3).choice([1e-3, 4e-3], 100_000, p=[0.55, 0.45])
    bench = Bench(Budget(1.0, precision=0.005), lambda i: float(two[i]))
    assert (bench.measured.stopped, bench.measured.reached, bench.measured.flags[-1]) == ("out_of_reach", False, "target_missed")
    assert 0.5 <= bench.now < 0.8
    assert bench.measured.samples.shape[1] >= FEW


@pytest.mark.parametrize(("factor", "left_s", "turns", "stopped"), [
    (1.9, 0.4, 1, None), (2.0, 0.4, 1, "out_of_reach"), (3.0, 0.6, 1, None), (1.0, 0.4, 1, "precision"), (5.0, 0.4, 2, None),
])  # fmt: skip
def test_samples_still_missing_grow_with_the_square_of_the_interval(factor, left_s, turns, stopped):
    """Of 100 rounds with an interval `factor` times too wide 100 (factor² - 1) are missing; 0.4 s has room for 66, 0.6 s for 150."""
    samples = np.random.default_rng(1).normal(4e-3, 4e-5, (1, 100 * turns))
    width = Stopping(Budget(), 8, [0], turns=turns).width(samples)
    rule = Stopping(Budget(1.0, warmup=1, precision=width / factor), 8, [0], turns=turns, first=100)
    now = SimpleNamespace(s=0.0)
    plan = schedule(rule, lambda: now.s)
    next(plan)
    assert plan.send(samples[:, :turns]) == (100 * turns, 1)
    now.s = 1.0 - left_s
    with pytest.raises(StopIteration) if stopped else nullcontext() as stop:
        plan.send(samples)
    assert stop is None or stop.value.value.stopped == stopped


@pytest.mark.parametrize(
    ("shift", "spread", "alike"), [(1.0, 1.0, True), (1.015, 1.0, True), (1.03, 1.0, False), (1.0, 1.2, True), (1.0, 2.0, False)]
)
def test_two_windows_of_the_warm_up_agree_in_their_middle_and_in_their_quartiles(shift, spread, alike):
    window = 1e-3 * (1 + 0.1 * np.linspace(-1, 1, 21))
    other = 1e-3 * shift * (1 + 0.1 * spread * np.linspace(-1, 1, 21))
    plan = schedule(Stopping(Budget(5.0), 8, [0], window=(21, 21)), lambda: 0.0)
    next(plan)
    looks = [plan.send(times[np.newaxis]) for times in (window[:1], window, other)]
    assert looks == [(21, 1), (21, 1), (6, 1) if alike else (21, 1)]


class ShortBench:
    """Runs a plan with made-up samples of `seconds` each; every look costs `look_s` besides them."""

    def __init__(self, budget, seconds, *, look_s=0.0, spread=0.0, mode="isolated", size_bytes=8):
        self.now, self.looks, random = 0.0, [], np.random.default_rng(1)
        plan = schedule(Stopping.short_measurement(budget, size_bytes, [0, 2], mode), lambda: self.now)
        look = next(plan)
        while True:
            self.looks.append(look)
            n, batch = look
            values = seconds * random.lognormal(0, spread, n)
            self.now += values.sum() * batch + look_s
            try:
                look = plan.send(np.array([values, values * 9, values * 0.5]))  # rank 1 is not timed
            except StopIteration as stop:
                self.measured = stop.value
                return


def test_a_short_measurement_has_the_first_call_as_warm_up_and_three_looks():
    bench = ShortBench(Budget(0.5, warmup=10), 1e-5)
    assert bench.looks == [(1, 1), (9, 1), (60, 1)]
    assert (bench.measured.stopped, bench.measured.reached, bench.measured.flags, bench.measured.warmups) == ("precision", True, [], 10)
    assert ShortBench(Budget(0.5, warmup=1), 1e-3).looks == [(1, 1), (60, 1)]
    assert ShortBench(Budget(0.5, warmup=1), 0.2).measured.samples.shape[1] in (1, 2)
    found = ShortBench(Budget(0.5, warmup=1), 0.6)
    assert found.looks == [(1, 1)]
    assert (found.measured.stopped, found.measured.flags) == ("max_time", ["budget_exceeded", "few_samples", "target_missed"])
    bench = ShortBench(Budget(5.0, warmup=1), 1e-3, spread=0.3)
    assert bench.looks[:2] == [(1, 1), (60, 1)] and len(bench.looks) == 3 and 60 < bench.looks[2][0] <= 2940
    assert bench.now < 5.5


@pytest.mark.parametrize("look_s", [0.0, 0.01, 0.1, 1.0])
def test_what_a_look_costs_takes_no_samples_away_that_fit(look_s):
    bench = ShortBench(Budget(0.5, warmup=1), 0.05, look_s=look_s)
    assert 6 <= bench.measured.samples.shape[1] <= 9 and len(bench.looks) <= 3
    assert bench.measured.flags == ["few_samples"]


@pytest.mark.parametrize("look_s", [0.0, 0.02])
def test_the_time_is_kept(look_s):
    assert ShortBench(Budget(0.5, warmup=1), 2e-3, look_s=look_s, spread=1.0).now <= 0.6 + 2 * look_s


def test_a_short_measurement_takes_its_iterations_in_batches_and_ends_without_a_clock():
    assert ShortBench(Budget(0.5, 8, 1), 1e-3).looks == [(1, 1), (8, 1)]
    slow = ShortBench(Budget(0.5, 100, 1), 0.05).measured
    assert slow.samples.shape[1] < 10 and (slow.stopped, slow.reached) == ("max_time", None)
    bench = ShortBench(Budget(0.5, warmup=1), 1e-5, mode="pipelined")
    assert bench.looks[1] == (60, 20) and bench.measured.batch == 20
    assert ShortBench(Budget(0.5, warmup=1), 0.0).measured.samples.shape[1] >= 60


@pytest.mark.parametrize(("factor", "missing"), [(1.5, 75), (2.0, 180), (3.0, 480), (40.0, 2940)])
def test_the_second_batch_is_as_large_as_the_interval_demands(factor, missing):
    """After 60 samples with an interval `factor` times too wide; an interval narrows with the root of the samples."""
    series = np.random.default_rng(1).lognormal(0, 0.1, (1, 60))
    budget = Budget(1e4, warmup=1, precision=median(series[0]).half_width / factor)
    plan = schedule(Stopping.short_measurement(budget, 8, [0]), lambda: 0.0)
    next(plan)
    assert plan.send(series[:, :1]) == (60, 1)
    number, batch = plan.send(series)
    assert (number, batch) == (pytest.approx(missing, abs=1), 1)
