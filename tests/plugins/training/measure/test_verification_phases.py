"""Verification of a step under the watchdog: each filling, call and comparison is a phase of its own."""

from types import SimpleNamespace

import pytest

from collbench.measuring.verification import verify
from collbench.plugins.training.step_task import step_checks
from tests.measure.test_prepared_case import Watched, prepared


@pytest.mark.parametrize("calls", [1, 3])
def test_each_part_and_call_of_a_step_is_progress(calls: int) -> None:
    world, slots = Watched(), 2
    parts = [SimpleNamespace(ready=prepared(world), part=SimpleNamespace(slots=slots, what="x"), adding=None) for _ in range(3)]
    step = SimpleNamespace(parts=parts, ready=prepared(world))
    assert verify(step.ready, world, step_checks(step, calls)) == []  # type: ignore[arg-type]
    assert world.phases == ([["fill"] * slots] * 3 + [["call"]] + [["compare"] * slots] * 3) * calls
