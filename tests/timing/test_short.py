"""Short measurements: few batches at any cost, and six samples if they fit."""

import numpy as np
import pytest

from collbench.measure.request import Budget
from collbench.measure.sampling import Measurement, _enough_short, short_schedule
from collbench.stats.median import median


class Bench:
    """Runs a plan with made-up samples of `seconds` each; every look costs `look_s` besides them."""

    def __init__(self, budget, seconds, *, look_s=0.0, spread=0.0, mode="isolated", size_bytes=8):
        self.now, self.looks, random = 0.0, [], np.random.default_rng(1)
        plan = short_schedule(budget, size_bytes, mode, [0, 2], lambda: self.now)
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


def test_a_steady_ping_pong_takes_three_looks():
    bench = Bench(Budget(0.5, warmup=10), 1e-5)
    assert bench.looks == [(1, 1), (9, 1), (60, 1)]
    assert (bench.measured.stopped, bench.measured.reached, bench.measured.flags, bench.measured.warmups) == ("precision", True, [], 10)


def test_one_warm_up_is_the_first_call():
    assert Bench(Budget(0.5, warmup=1), 1e-3).looks == [(1, 1), (60, 1)]


@pytest.mark.parametrize("look_s", [0.0, 0.01, 0.1, 1.0])
def test_what_a_look_costs_takes_no_samples_away_that_fit(look_s):
    bench = Bench(Budget(0.5, warmup=1), 0.05, look_s=look_s)
    assert 6 <= bench.measured.samples.shape[1] <= 9 and len(bench.looks) <= 3
    assert bench.measured.flags == ["few_samples"]


def test_fewer_than_six_where_so_many_do_not_fit():
    assert Bench(Budget(0.5, warmup=1), 0.2).measured.samples.shape[1] in (1, 2)


def test_one_call_that_is_longer_than_the_time_is_all():
    found = Bench(Budget(0.5, warmup=1), 0.6)
    assert found.looks == [(1, 1)]
    assert (found.measured.stopped, found.measured.flags) == ("max_time", ["budget_exceeded", "few_samples", "target_missed"])


def test_noise_takes_a_second_look_as_large_as_needed():
    bench = Bench(Budget(5.0, warmup=1), 1e-3, spread=0.3)
    assert bench.looks[:2] == [(1, 1), (60, 1)] and len(bench.looks) == 3 and 60 < bench.looks[2][0] <= 2940
    assert bench.now < 5.5


@pytest.mark.parametrize("look_s", [0.0, 0.02])
def test_the_time_is_kept(look_s):
    assert Bench(Budget(0.5, warmup=1), 2e-3, look_s=look_s, spread=1.0).now <= 0.6 + 2 * look_s


def test_so_many_iterations_are_taken_if_the_time_allows():
    assert Bench(Budget(0.5, 8, 1), 1e-3).looks == [(1, 1), (8, 1)]
    slow = Bench(Budget(0.5, 100, 1), 0.05).measured
    assert slow.samples.shape[1] < 10 and (slow.stopped, slow.reached) == ("max_time", None)


def test_back_to_back_calls_are_timed_in_batches():
    bench = Bench(Budget(0.5, warmup=1), 1e-5, mode="pipelined")
    assert bench.looks[1] == (60, 20) and bench.measured.batch == 20


def test_a_clock_that_reports_nothing_ends_too():
    assert Bench(Budget(0.5, warmup=1), 0.0).measured.samples.shape[1] >= 60


@pytest.mark.parametrize(("factor", "missing"), [(1.5, 125), (2.0, 300), (3.0, 800), (0.9, 0), (40.0, 2900)])
def test_the_second_batch_is_as_large_as_the_interval_demands(factor, missing):
    """Of 100 samples with an interval `factor` times too wide; an interval narrows with the root of the samples."""
    series = np.random.default_rng(1).lognormal(0, 0.1, (1, 100))
    target = median(series[0]).half_width / factor
    stopped, more = _enough_short(Budget(1.0), [0], Measurement(series, target), second=False)
    assert stopped == ("precision" if factor < 1 else None) and more == pytest.approx(missing, abs=1)
