"""Measure a training step that computes while it communicates (`workload --compute real`), in interleaved states.

The states of a block: the exchanges alone, the computation alone, and both as the training's framework runs them. The computation is
real arithmetic on memory in equal parts, calibrated to the step time that the user states, or else to the time of the exchanges. Each
exchange has its own buffer, as gradients have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from collbench.backends.backend import ComputingBackend
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measuring.engine import Work
from collbench.measuring.prepared_case import PreparedCase, phase
from collbench.measuring.request import Budget
from collbench.measuring.sampling import Measurement, Stopping
from collbench.measuring.verification import VerificationTurn
from collbench.operations.program import Call, Program
from collbench.operations.unsupported import DeviceUnsupported, TimelineUnsupported, decode_reason
from collbench.plugins.overlap.computation import FixedComputation
from collbench.plugins.overlap.measurement import (
    OverlapStates,
    calibrate_to,
    computation_for,
    loop_of,
    median_time,
    progress_of,
    shared_cores,
    unassisted_by,
)
from collbench.plugins.overlap.records import States, StepOverlap, efficiency_of
from collbench.plugins.training.step_task import (
    PreparedPart,
    PreparedStep,
    StepPlan,
    runs_timelines,
    startable,
    step_checks,
    turns_of,
)
from collbench.plugins.training.timeline import calls_of
from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.step import Action, Compute, Regime
from collbench.reason import Fact, as_json

_OPTION = "--compute real"


class ComputingUnsupported(Fact, frozen=True):
    """A training cannot be measured with its computation, since each computation needs the data of the exchange before it."""

    text = "--compute real is not supported for {regime}: its computation waits for each exchange (use {supported:or})"
    regime: str
    supported: tuple[str, ...]


def unsupported(regime: Regime) -> ComputingUnsupported | None:
    """Return why a training cannot be measured with computation, or None."""
    if regime.with_computing:
        return None
    return ComputingUnsupported(regime.name, tuple(name for name, known in regimes().items() if known.with_computing))


def with_own_buffers(plan: StepPlan) -> StepPlan:
    """Return the plan with a buffer for each exchange, so that all of them can run at the same time."""
    return replace(plan, parts=tuple(replace(part, in_flight=part.times) for part in plan.parts))


@dataclass
class ComputingWork(Work):
    """The states of a step that was prepared with its own buffers.

    goal_s    the seconds that the computation should take; None: as long as the exchanges alone
    states    of the prepared step; checking: the step with the loop that runs the exchanges while it computes
    """

    step: PreparedStep
    regime: Regime
    goal_s: float | None
    states: OverlapStates | None = None
    checking: PreparedStep | None = None

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the step with its states, calibrated; or why it cannot be measured, the same at all ranks."""
        step = self.step
        stage = self.context
        if self.regime.with_computing is None:
            raise UsageError(str(unsupported(self.regime)))
        device = step.ready.case.device
        if device != "cpu" and not isinstance(stage.backend, ComputingBackend):
            return DeviceUnsupported(_OPTION, device, ("cpu",))
        if not runs_timelines(stage):
            return TimelineUnsupported(stage.backend.name)
        parts, reason = startable(step.parts, stage, world)
        if reason:
            return reason
        exchanges = [replace(exchange, times=1) for exchange in step.plan.step.exchanges for _ in range(exchange.times)]
        actions = self.regime.with_computing(exchanges, 1.0)
        slices = sum(isinstance(action, Compute) for action in actions)
        computation = computation_for(step.ready.case, stage.backend, slices)
        first = world.first_error(as_json(computation) if isinstance(computation, Fact) else None, "preparing the computation")
        if first is not None or isinstance(computation, Fact):
            return decode_reason(first)  # type: ignore[return-value]
        states = _states(step.plan, parts, actions, computation, slices)
        timed = step.ready.timed
        with phase(step.ready, world, "calibrating the computation"):
            self.goal_s = self.goal_s or median_time(loop_of(states[0], stage, world), timed, world)
            calibrate_to(self.goal_s, computation, stage, timed, world)
        program = replace(states[2], slots=tuple(state.slots[0] for state in states))
        ready = replace(step.ready, loop=loop_of(program, stage, world), checking=loop_of(states[2], stage, world), program=program)
        progress = progress_of(stage.backend, step.ready.case)
        unassisted = None if progress == "calls" else unassisted_by(stage.backend, progress)
        self.states = OverlapStates(len(states), timed, computation, progress, unassisted, shared_cores(world, progress))
        self.checking = replace(step, parts=tuple(parts), ready=ready)
        return ready

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return how many blocks are taken."""
        assert self.states is not None
        return self.states.rule(budget, ready.case.size_bytes)

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> States | None:
        """Return the samples of all states at rank 0, None elsewhere."""
        assert self.states is not None
        return self.states.gather(ready.case.title(), measured, world)

    def checks(self, ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
        """Yield the turns of verification, while the ranks compute."""
        assert self.checking is not None
        return step_checks(self.checking, calls)

    def release(self, ready: PreparedCase) -> None:
        """Free nothing: `release_step` frees the parts."""

    def result(self, states: States, *, stated: bool) -> StepOverlap:
        """Return the result. stated: whether the user stated the time of the computation."""
        assert self.states is not None and self.goal_s is not None
        return StepOverlap(self.goal_s, stated, self.states.overlap(states, self.goal_s), efficiency_of(states))


def _states(
    plan: StepPlan, parts: Sequence[PreparedPart], actions: Sequence[Action], computation: FixedComputation, slices: int
) -> list[Program]:
    """Return the programs of the exchanges, of the computation, and of both, with one slot each."""
    turns = list(turns_of(plan, parts))
    slice_calls = computation.calls(slices)[: len(computation.calls())]

    def calls(exchange: int, waiting: bool) -> Sequence[Call]:
        part, slot = turns[exchange]
        started = parts[part].started
        assert started is not None, "startable returned a reason"
        program = started.wait if waiting else started.start
        return program.slots[slot % len(program.slots)]

    def program(actions: Sequence[Action]) -> Program:
        made = calls_of(actions, partial(calls, waiting=False), partial(calls, waiting=True), lambda seconds: slice_calls)
        return Program((tuple(made),), keep=(tuple(parts), computation), explain=parts[0].program.explain)

    exchanging = [action for action in actions if not isinstance(action, Compute)]
    return [program(exchanging), program([Compute(0.0)] * slices), program(actions)]


def refused(reason: Fact, goal_s: float | None) -> StepOverlap:
    """Return the result of a step that could not be measured with computation."""
    return StepOverlap(goal_s or 0.0, goal_s is not None, refusal=as_json(reason))
