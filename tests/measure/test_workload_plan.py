"""A step's exchanges as parts: which of them are alike, how often each is run, and the buffers that they need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collbench.backends.simulated import SimulatedBackend
from collbench.measure.tasks.step import StepPlan, _on_device, _on_host, plan_of
from collbench.operations.data import bytes_needed, slots_for
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.workloads.step import Exchange, Step

ALL = ((0, 1, 2, 3),)


def plan(*exchanges: Exchange) -> StepPlan:
    backend = SimulatedBackend()
    backend.ranks = 4
    request: Any = SimpleNamespace(sweep=Sweep((), None, (DTYPES["float32"],)))
    return plan_of(Step(exchanges, 4), request, backend)


def bucket(size: int, times: int = 1, what: str = "bucket") -> Exchange:
    return Exchange("allreduce", ALL, size, what, times)


def test_exchanges_that_are_alike_are_one_part_and_are_run_in_their_order() -> None:
    found = plan(bucket(4096, 2, "first"), bucket(1024), bucket(4096, 3, "last"))
    assert [(part.what, part.times, part.case.size_bytes) for part in found.parts] == [("first … last", 5, 4096), ("bucket", 1, 1024)]
    assert found.order == (0, 0, 1, 0, 0, 0) and found.ranks == (0, 1, 2, 3)


def test_each_part_has_data_of_its_own() -> None:
    found = plan(bucket(4096), bucket(1024), bucket(2048))
    seeds = [part.case.seed for part in found.parts]
    assert len(set(seeds)) == 3 and min(abs(a - b) for a in seeds for b in seeds if a != b) > 100_000


@pytest.mark.parametrize(("times", "slots"), [(1, 1), (3, 3), (1000, 64)])
def test_a_part_uses_as_many_buffers_as_it_is_run_and_no_more_than_defeat_the_caches(times: int, slots: int) -> None:
    (part,) = plan(bucket(1 << 20, times)).parts
    assert (part.slots, part.case.buffers) == (slots, "rotating" if times > 1 else "fixed")


def test_memory_is_counted_for_the_buffers_that_are_used() -> None:
    found = plan(bucket(1 << 20, 3))
    (part,) = found.parts
    assert slots_for(part.case) == 64
    whole = bytes_needed(part.operation, part.case, 4)
    assert list(_on_device(found)) == [whole * 3 // 64]
    assert sum(_on_host(found, 4)) == 4 * whole * 3 // 64
