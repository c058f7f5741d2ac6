"""A training step: its exchanges as parts with their buffers, their verification under the watchdog, and its time at its limits."""

from types import SimpleNamespace

import numpy as np
import pytest

from collbench.backends.simulated import SimulatedBackend
from collbench.machine.peak.ceiling import Ceiling
from collbench.measuring.row import RowContext
from collbench.measuring.sampling import Measurement
from collbench.measuring.verification import verify
from collbench.operations.data import bytes_needed, slots_for
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.plugins.training import step_task
from collbench.plugins.training.records import StepRow
from collbench.plugins.training.step_task import StepPart, StepPlan, plan_of
from collbench.plugins.training.workloads.step import Exchange, Step
from tests.helpers import make_case
from tests.measure.test_prepared_case import Watched, prepared

ALL = ((0, 1, 2, 3),)
MIB = 1 << 20


def plan(*exchanges):
    backend = SimulatedBackend()
    backend.ranks = 4
    request = SimpleNamespace(sweep=Sweep((), None, (DTYPES["float32"],)))
    return plan_of(Step(exchanges, 4), request, backend)


def bucket(size, times=1, what="bucket"):
    return Exchange("allreduce", ALL, size, what, times)


def test_exchanges_that_are_alike_are_one_part_and_are_run_in_their_order():
    found = plan(bucket(4096, 2, "first"), bucket(1024), bucket(4096, 3, "last"))
    assert [(part.what, part.times, part.case.size_bytes) for part in found.parts] == [("first … last", 5, 4096), ("bucket", 1, 1024)]
    assert found.order == (0, 0, 1, 0, 0, 0) and found.ranks == (0, 1, 2, 3)


def test_each_part_has_data_of_its_own():
    found = plan(bucket(4096), bucket(1024), bucket(2048))
    seeds = [part.case.seed for part in found.parts]
    assert len(set(seeds)) == 3 and min(abs(a - b) for a in seeds for b in seeds if a != b) > 100_000


@pytest.mark.parametrize("on_gpu", [True, False])
def test_memory_is_counted_for_the_buffers_that_a_part_uses(on_gpu, monkeypatch):
    found = plan(bucket(MIB, 3))
    (part,) = found.parts
    need = bytes_needed(part.operation, part.case, 4) * 3 // slots_for(part.case) * (1 if on_gpu else 4)
    world = SimpleNamespace(me=SimpleNamespace(host="h"))
    for free in (need, need - 1):
        backend = SimpleNamespace(free_bytes=lambda case, free=free: free if on_gpu else None, virtual=True, ranks=4)
        monkeypatch.setattr(step_task, "free_bytes", lambda free=free: free)
        assert (step_task.too_large("a step", found, backend, world) is None) == (free == need)


@pytest.mark.parametrize(("times", "slots"), [(1, 1), (3, 3), (1000, 64)])
def test_a_part_uses_as_many_buffers_as_it_is_run_and_no_more_than_defeat_the_caches(times, slots):
    (part,) = plan(bucket(1 << 20, times)).parts
    assert (part.slots, part.case.buffers) == (slots, "rotating" if times > 1 else "fixed")


def part(size, times=1, groups=((0, 1, 2, 3),)):
    operation = operations()["allreduce"]
    return StepPart("x", Exchange("allreduce", groups, size, "x", times), operation, make_case(count=size // 4), times)


def plan_of_parts(*parts):
    order = [number for number, each in enumerate(parts) for _ in range(each.times)]
    return StepPlan(Step(tuple(each.exchange for each in parts), 4), parts, tuple(order))


@pytest.mark.parametrize("kind", ["network", "given"])
def test_an_exchange_at_its_limit(kind):
    limit = Ceiling(kind, 1e9, "NIC")
    assert step_task.least_s(part(MIB), limit) == pytest.approx(2 * 3 / 4 * MIB / 1e9)  # what an all-reduce of four ranks moves
    assert step_task.rate_at(part(MIB), limit) == pytest.approx(1e9)
    assert step_task.least_s(part(MIB), None) is None


def figures_of(parts, limits, seconds):
    ready = SimpleNamespace(timed=[0, 1, 2, 3])
    prepared_parts = [SimpleNamespace(part=each, ready=ready) for each in parts]
    step = SimpleNamespace(plan=plan_of_parts(*parts), parts=prepared_parts, ready=ready)
    samples = seconds * (1 + 1e-4 * np.tile(np.arange(20), (4, 1)))
    seen = SimpleNamespace(measured=Measurement(samples, 0.03), flags=(), other_path=None, evidence={})
    moved_bytes = 1.5 * MIB * sum(each.times for each in parts)
    row = StepRow("data-parallel", "x", "mpi", "cpu", 4, 1, "float32", MIB // 4, MIB, MIB, moved_bytes)
    return step_task.with_figures(row, step, seen, [None] * len(parts), step_task.Around(limits, RowContext([])))


def test_the_limit_of_a_step_is_named_by_the_part_that_takes_longest():
    limits = [step_task.PartLimit(Ceiling("network", 1e9, "NIC a"), None), step_task.PartLimit(Ceiling("network", 2e9, "NIC b"), None)]
    once = 1.5 * MIB / 1e9
    found = figures_of([part(MIB), part(MIB, 10)], limits, once)  # faster than expected, and no hard limit is known
    assert (found.ceiling.limited_by, found.flags) == ("NIC b", ())
    assert found.ceiling_time_s == pytest.approx(once + 10 * once / 2) and found.percent_of_ceiling == pytest.approx(600, rel=0.01)
    assert found.ceiling.bytes_per_s == pytest.approx(11 * 1.5 * MIB / found.ceiling_time_s)


@pytest.mark.parametrize(("factor", "passed"), [(0.9, False), (1.01, False), (1.05, True)])
def test_a_step_faster_than_the_hard_limit_is_flagged_and_has_no_percentage(factor, passed):
    limit = step_task.PartLimit(Ceiling("network", 0.9e9, "NIC"), Ceiling("network", 1e9, "NIC", "bound"))
    found = figures_of([part(MIB)], [limit], 1.5 * MIB / 1e9 / factor)
    assert ("above_bound" in found.flags, found.percent_of_ceiling is None) == (passed, passed)
    assert found.busbw_bytes_per_s == pytest.approx(factor * 1e9, rel=0.01)


@pytest.mark.parametrize("calls", [1, 3])
def test_each_part_and_call_of_a_step_is_progress(calls):
    world, slots = Watched(), 2
    parts = [SimpleNamespace(ready=prepared(world), part=SimpleNamespace(slots=slots, what="x"), adding=None) for _ in range(3)]
    step = SimpleNamespace(parts=parts, ready=prepared(world))
    assert verify(step.ready, world, step_task.step_checks(step, calls)) == []
    assert world.phases == ([["fill"] * slots] * 3 + [["call"]] + [["compare"] * slots] * 3) * calls
