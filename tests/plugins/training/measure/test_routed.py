"""Many routings of tokens to experts as steps of one launch: the time of each follows from its busiest rank, and all data is verified."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends import simulated
from collbench.backends.simulated import ALPHA_S, BETA_BYTES_PER_S
from collbench.errors import UsageError
from collbench.measuring.request import Budget
from collbench.measuring.sampling import schedule, slowest
from collbench.plugins.training.routed import RoutedWork, Turn, check_routing, joint_confidence, round_of, routed_times
from collbench.plugins.training.task import WorkloadTask
from collbench.plugins.training.workloads.registry import regime_named
from collbench.plugins.training.workloads.shape import shape_of
from tests.measure.launches import RecordingListener, run_alone
from tests.plugins.training.measure.workload_rank import request_of
from tests.plugins.training.reading import read_workload

TYPED = {"model": "1M", "layers": "2", "hidden": "256", "sequence": "128", "top_k": "2", "experts": "8"}
LAYERS, COPIES, TOKEN = 2, 128 * 2, 256 * 4


@pytest.fixture
def train(tmp_path):
    """Measures expert-parallel training on virtual ranks; returns the exit code, the row and its result over routings."""

    def these(ranks=4, iterations=12, check=0, **typed):
        asked = {"backends": ["simulated"], "ranks": ranks, "out": str(tmp_path / "run"), "iterations": iterations, "warmup": 1}
        asked |= {"max_time_s": 20.0, "check": check}
        training = {"regime": "expert-parallel", "typed": {**TYPED, **typed}}
        code = run_alone(WorkloadTask, request_of({**asked, "trainings": [training]}), RecordingListener())
        _, (row,), warnings = read_workload(tmp_path / "run")
        assert not warnings
        return SimpleNamespace(code=code, row=row, result=row.routing)

    return these


def routing_of_text(text, **typed):
    regime = regime_named("expert-parallel")
    return regime.step(shape_of(regime, {**TYPED, "routing": text, **typed}, (0, 0, 1, 1))).routing


def seconds_of(routing, place):
    """A step's time on the simulated link: in each exchange the busiest rank's bytes, of which a quarter stays."""
    busiest = [max(one.sum(axis=0).max(), one.sum(axis=1).max()) for one in routing.tokens[place]]
    return sum(2 * sum(ALPHA_S + int(most) * way.token_bytes * 0.75 / BETA_BYTES_PER_S for most in busiest) for way in routing.ways)


def test_each_routing_takes_as_long_as_its_busiest_rank_needs(train):
    typed = {"routing": "drift:0.8,hot=2", "routings": "6", "dispatch_dtype": "e4m3", "combine_dtype": "bfloat16"}
    found, routing = train(check=1, **typed), routing_of_text(typed["routing"], **typed)
    row, result = found.row, found.result
    assert (found.code, row.na, row.checked, row.wrong) == (0, None, 1, 0)
    expected = [seconds_of(routing, place) for place in range(6)]
    assert [step.time_s.value for step in result.steps] == pytest.approx(expected, rel=0.04)
    even = 4 * LAYERS * ALPHA_S + 2 * LAYERS * COPIES * 256 * (1 + 2) * 0.75 / BETA_BYTES_PER_S
    assert result.even_time_s.value == pytest.approx(even, rel=0.04)
    assert [step.tax.value for step in result.steps] == pytest.approx(np.array(expected) / even, rel=0.03)
    assert result.tax.low < np.mean(expected) / even < result.tax.high
    assert max(expected) / min(expected) > 1.15, "the hot experts of some steps are on one rank"
    assert result.time_s.max.value == pytest.approx(max(expected), rel=0.04) and row.time_s.max == result.time_s.max.value
    assert result.time_s.p50.value == pytest.approx(np.median(expected), rel=0.04)
    for quantile in (result.time_s.p5, result.time_s.p50, result.time_s.p95, result.time_s.max):
        assert quantile.low < quantile.value < quantile.high
    assert (row.n, result.rounds, len(result.steps)) == (6 * 12, 12, 6)
    assert (result.dispatch.bytes, result.combine.bytes) == (2 * LAYERS * 4 * COPIES * 256, 2 * LAYERS * 4 * COPIES * 512)


def test_rates_are_those_of_the_bytes_and_the_busiest_rank_is_named(train):
    found, routing = train(routing="zipf:1.5", routings="3"), routing_of_text("zipf:1.5", routings="3")
    for place, step in enumerate(found.result.steps):
        received = routing.tokens[place].sum(axis=(0, 1))
        assert (step.busiest_rank, step.busiest_share) == (received.argmax(), pytest.approx(received.max() / received.sum()))
        own = routing.tokens[place].diagonal(axis1=1, axis2=2)
        ways = [routing.tokens[place].sum(axis=axis) - own for axis in (1, 2)]
        moved = (4 * TOKEN * np.maximum(*ways).sum(axis=0)).max()
        assert step.moved_bytes == moved and step.busbw_bytes_per_s == pytest.approx(moved / step.time_s.value)
        assert step.percent_of_expected == pytest.approx(100 * step.busbw_bytes_per_s / step.expected_bytes_per_s)
    row = found.row
    assert row.moved_bytes == pytest.approx(np.mean([step.moved_bytes for step in found.result.steps]))
    assert row.percent_of_ceiling == pytest.approx(100 * row.busbw_bytes_per_s / row.ceiling.bytes_per_s)
    assert row.percent_of_ceiling == pytest.approx(np.mean([step.percent_of_expected for step in found.result.steps]), rel=0.01)


def test_an_even_routing_has_no_tax(train, tmp_path):
    np.savez(tmp_path / "even.npz", tokens=np.full((3, 3, 8), 4 * 32))
    found = train(routing=str(tmp_path / "even.npz"), iterations=30)
    assert found.result.tax.value == pytest.approx(1, abs=0.01) and found.result.tax.low <= 1.002 and found.result.tax.high >= 0.998
    assert {step.imbalance for step in found.result.steps} == {1.0} and found.result.layers == 3


def test_each_routing_is_compared_with_as_many_tokens(train, tmp_path):
    tokens = np.zeros((4, 1, 8), int)
    for step, scale in enumerate((1, 2, 3, 4)):
        tokens[step] = 16 * scale * 2
    np.savez(tmp_path / "grows.npz", tokens=tokens)
    found = train(routing=str(tmp_path / "grows.npz"))
    assert [step.tax.value for step in found.result.steps] == pytest.approx([1] * 4, abs=0.02)
    times = [step.time_s.value - 4 * ALPHA_S for step in found.result.steps]
    assert np.array(times) / times[0] == pytest.approx([1, 2, 3, 4], rel=0.1)


def test_wrong_data_of_one_routing_is_found_with_its_step_and_layer(train, monkeypatch):
    right = simulated.move

    def move(operation, buffers, slot):
        right(operation, buffers, slot)
        name = buffers.case.traffic.name if buffers.case.traffic else ""
        if "step 2, layer 1, combine" in name:
            buffers.recv(3, slot)[-1:] += 1

    monkeypatch.setattr(simulated, "move", move)
    found = train(routing="zipf:1", routings="3", check=1, iterations=1)
    assert (found.code, found.row.wrong) == (4, 1)
    assert found.row.evidence["wrong_data"]["first"][0]["what"] == "step 2, layer 1, combine"
    assert found.row.evidence["wrong_data"]["first"][0]["rank"] == 3


def test_all_routings_share_the_memory_of_the_largest(train, monkeypatch):
    allocated = []
    right = simulated.SimulatedBackend.allocate

    def allocate(self, operation, case, group, slots):
        allocated.append((case.dtype.name, slots))
        return right(self, operation, case, group, slots)

    monkeypatch.setattr(simulated.SimulatedBackend, "allocate", allocate)
    found = train(routing="zipf:1.5", routings="20", iterations=1, dispatch_dtype="float16")
    assert found.row.n == 20 and allocated == [("float16", 2), ("float32", 2)], "a slot for each layer, none for a routing"


def test_routings_that_fit_neither_memory_nor_time_are_refused(train, monkeypatch):
    with pytest.raises(UsageError, match=r"too many exchanges to prepare: use --routings \d+"):
        train(routing="zipf:1", microbatches="10000", routings="4", hidden="1")
    monkeypatch.setattr("collbench.plugins.training.routed.free_bytes", lambda: 10**6)
    with pytest.raises(UsageError, match="only 977 KiB is free"):
        train(routing="zipf:1")


# The order of a round, and its statistics.


@pytest.mark.parametrize("number", [1, 2, 9, 64])
def test_a_round_has_each_routing_once_and_even_ones_between(number):
    routing = routing_of_text("zipf:1", routings=str(number))
    turns = round_of(routing, 3)
    assert sorted(turn.place for turn in turns if not turn.even) == list(range(number))
    assert sum(turn.even for turn in turns) == -(-number // int(number**0.5))
    assert turns[0].even and turns == round_of(routing, 3)
    assert number < 9 or [turn.place for turn in turns if not turn.even] != list(range(number))


def plan_with(routing, turns):
    return SimpleNamespace(routing=routing, turns=turns, ranks=(0, 1))


def played(plan, budget, sample, each_s=0.01):
    """Runs rank 0's plan with samples from `sample(turn)`; returns the measurement and the batches."""
    state = {"now": 0.0}
    ready = SimpleNamespace(case=SimpleNamespace(size_bytes=2**20))
    rounds = schedule(RoutedWork(None, "routed", plan).rule(ready, budget), lambda: state["now"])
    batch, batches = next(rounds), []
    while True:
        batches.append(batch[0])
        state["now"] += each_s * batch[0]
        series = each_s * np.array([[sample(turn % len(plan.turns)) for turn in range(batch[0])]] * 2)
        try:
            batch = rounds.send(series)
        except StopIteration as stop:
            return stop.value, batches


def test_samples_are_whole_rounds_until_the_time_ends():
    plan = plan_with(routing_of_text("zipf:1", routings="4"), (Turn(0, True), *(Turn(place, False) for place in range(4))))
    rng = np.random.default_rng(0)
    measured, batches = played(plan, Budget(max_time_s=2.0, precision=1e-6), lambda turn: rng.lognormal(turn / 10, 0.3))
    assert all(number % 5 == 0 for number in batches) and measured.samples.shape[1] % 5 == 0
    assert measured.stopped == "max_time" and 150 <= sum(batches) <= 200 and "target_missed" in measured.flags
    measured, _ = played(plan, Budget(max_time_s=100.0, iterations=7, warmup=2), lambda turn: rng.lognormal(turn / 10, 0.1))
    assert (measured.stopped, measured.samples.shape, measured.warmups) == ("iterations", (2, 35), 10)
    measured, _ = played(plan, Budget(max_time_s=0.01), lambda turn: 1.0)
    assert (measured.stopped, measured.samples.shape[1]) == ("max_time", 5) and "budget_exceeded" in measured.flags
    measured, _ = played(plan, Budget(max_time_s=500.0, precision=0.02), lambda turn: rng.lognormal(turn / 10, 0.05))
    assert measured.stopped == "precision" and measured.samples.shape[1] >= 60


def test_a_round_with_an_invalid_sample_is_left_out():
    samples = np.array([[1.0, 2.0, 3.0, np.nan, 5.0, 6.0], [2.0, 1.0, 1.0, 4.0, 7.0, 1.0]])
    assert slowest(samples, [0, 1], 2).tolist() == [[2.0, 2.0], [7.0, 6.0]]


@pytest.mark.parametrize("spread", [0.0, 0.5], ids=["equal routings", "different routings"])
def test_the_intervals_of_all_quantiles_hold_together(spread):
    rng, held, tax_held, tries = np.random.default_rng(5), 0, 0, 100
    routing = routing_of_text("zipf:1", routings="16")
    turns = round_of(routing, 1)
    truth = np.exp(spread * np.linspace(-1, 1, 16))
    of_turn = np.array([1.0 if turn.even else truth[turn.place] for turn in turns])
    right = dict(zip(("p5", "p50", "p95", "max"), np.quantile(truth, [0.05, 0.5, 0.95, 1.0]), strict=True))
    for _ in range(tries):
        found = routed_times(of_turn * rng.lognormal(0, 0.1, (40, len(turns))), plan_with(routing, turns))
        held += all(getattr(found.spread, name).low <= value <= getattr(found.spread, name).high for name, value in right.items())
        tax_held += found.whole.ci_low <= truth.mean() <= found.whole.ci_high
    assert held >= 0.93 * tries and tax_held >= 0.9 * tries
    assert joint_confidence(16) == pytest.approx(1 - 0.05 / 16)


def test_ranks_with_different_token_counts_end_the_launch():
    mine, others = routing_of_text("zipf:1"), routing_of_text("zipf:1", seed="1")
    members = [SimpleNamespace(host=f"node{rank}") for rank in range(3)]
    world = SimpleNamespace(allgather=lambda name, what: [name, name, others.name], members=members)
    with pytest.raises(UsageError, match=r"rank 2 \(node2\)"):
        check_routing(mine, world)
    check_routing(mine, SimpleNamespace(allgather=lambda name, what: [name] * 3, members=members))
    assert mine.name != replace(others, name="").name != others.name
    assert json.loads(json.dumps(mine.name)) == mine.name
