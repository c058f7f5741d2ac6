"""Measure a training step that computes while it communicates (`workload --compute real`), in interleaved states.

The states of a block: the exchanges alone, the computation alone, and both as the training's framework runs them. The computation is
real arithmetic on memory in equal parts, calibrated to the step time that the user states, or else to the time of the exchanges. Each
exchange has its own buffer, as gradients have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collbench.backends.backend import ComputingBackend
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.prepared_case import BackendContext, PreparedCase, phase
from collbench.measuring.session import LaunchSession
from collbench.operations.program import Call, Program
from collbench.operations.unsupported import DeviceUnsupported, TimelineUnsupported, decode_reason
from collbench.plugins.overlap.computation import FixedComputation
from collbench.plugins.overlap.measurement import (
    OverlapCase,
    calibrate_to,
    computation_for,
    loop_of,
    median_time,
    progress_of,
    schedule,
    shared_cores,
    unassisted_by,
)
from collbench.plugins.overlap.records import StepOverlap, efficiency_of, evaluate
from collbench.plugins.training.step_task import (
    PreparedPart,
    PreparedStep,
    StepPlan,
    WrongPart,
    runs_timelines,
    startable,
    turns_of,
    verify_step,
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
    return ComputingUnsupported(regime.name, tuple(name for name, each in regimes().items() if each.with_computing))


def with_own_buffers(plan: StepPlan) -> StepPlan:
    """Return the plan with a buffer for each exchange, so that all of them can run at the same time."""
    return replace(plan, parts=tuple(replace(part, in_flight=part.times) for part in plan.parts))


@dataclass(frozen=True)
class ComputingStep:
    """The states of a step on all ranks. checking: the step with the loop that runs the exchanges while it computes."""

    case: OverlapCase
    checking: PreparedStep
    goal_s: float
    stated: bool


def measure_computing(
    step: PreparedStep, regime: Regime, stage: BackendContext, session: LaunchSession, goal_s: float | None
) -> tuple[StepOverlap, list[WrongPart], MonitoredMeasurement] | Fact | None:
    """Measure the states of a step that was prepared with its own buffers, and verify its data. All ranks call.

    goal_s: the stated time of the computation in seconds; None: that of the exchanges.
    Return (result, wrong data, measurement) at rank 0, None elsewhere; or why it cannot be measured, the same at all ranks.
    """
    world = session.world
    prepared = _prepare(step, regime, stage, world, goal_s)
    if isinstance(prepared, Fact):
        return prepared
    case = prepared.case
    watched = session.measured(case.ready, stage.backend, session.request.budget)
    states = case.gather(watched, world)
    wrong = verify_step(prepared.checking, world, session.request.check) if session.request.check else []
    if watched is None or states is None or wrong is None:
        return None
    overlap = evaluate(states, case.progress, case.unassisted, case.shared, prepared.goal_s)
    return StepOverlap(prepared.goal_s, prepared.stated, overlap, efficiency_of(states)), wrong, watched


def _prepare(step: PreparedStep, regime: Regime, stage: BackendContext, world: World, goal_s: float | None) -> ComputingStep | Fact:
    if regime.with_computing is None:
        raise UsageError(str(unsupported(regime)))
    device = step.ready.case.device
    if device != "cpu" and not isinstance(stage.backend, ComputingBackend):
        return DeviceUnsupported(_OPTION, device, ("cpu",))
    if not runs_timelines(stage):
        return TimelineUnsupported(stage.backend.name)
    parts, reason = startable(step.parts, stage, world)
    if reason:
        return reason
    exchanges = [replace(each, times=1) for each in step.plan.step.exchanges for _ in range(each.times)]
    actions = regime.with_computing(exchanges, 1.0)
    slices = sum(isinstance(action, Compute) for action in actions)
    computation = computation_for(step.ready.case, stage.backend, slices)
    first = world.first_error(as_json(computation) if isinstance(computation, Fact) else None, "preparing the computation")
    if first is not None or isinstance(computation, Fact):
        return decode_reason(first)  # type: ignore[return-value]
    states = _states(step.plan, parts, actions, computation, slices)
    with phase(step.ready, world, "calibrating the computation"):
        goal = goal_s or median_time(loop_of(states[0], stage, world), step.ready.timed, world)
        calibrate_to(goal, computation, stage, step.ready.timed, world)
    program = replace(states[2], slots=tuple(state.slots[0] for state in states))
    timed = step.ready.timed
    ready: PreparedCase = replace(
        step.ready, loop=loop_of(program, stage, world), checking=loop_of(states[2], stage, world), program=program,
        plan=lambda budget: schedule(budget, step.ready.case.size_bytes, len(states), timed),
    )  # fmt: skip
    progress = progress_of(stage.backend, step.ready.case)
    unassisted = None if progress == "calls" else unassisted_by(stage.backend, progress)
    case = OverlapCase(ready, len(states), computation, progress, unassisted, shared_cores(world, progress))
    return ComputingStep(case, replace(step, parts=tuple(parts), ready=ready), goal, goal_s is not None)


def _states(
    plan: StepPlan, parts: Sequence[PreparedPart], actions: Sequence[Action], computation: FixedComputation, slices: int
) -> list[Program]:
    """Return the programs of the exchanges, of the computation, and of both, with one slot each."""
    turns, one = list(turns_of(plan, parts)), computation.calls(slices)[: len(computation.calls())]

    def calls(exchange: int, waiting: bool) -> Sequence[Call]:
        part, slot = turns[exchange]
        started = parts[part].started
        assert started is not None, "startable returned a reason"
        program = started.wait if waiting else started.start
        return program.slots[slot % len(program.slots)]

    def program(chosen: Sequence[Action]) -> Program:
        made = calls_of(chosen, lambda exchange: calls(exchange, False), lambda exchange: calls(exchange, True), lambda seconds: one)
        return Program((tuple(made),), keep=(tuple(parts), computation), explain=parts[0].program.explain)

    exchanging = [action for action in actions if not isinstance(action, Compute)]
    return [program(exchanging), program([Compute(0.0)] * slices), program(actions)]


def refused(reason: Fact, goal_s: float | None) -> StepOverlap:
    """Return the result of a step that could not be measured with computation."""
    return StepOverlap(goal_s or 0.0, goal_s is not None, refusal=as_json(reason))
