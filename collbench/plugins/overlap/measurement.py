"""Measure the overlap of an operation with a computation: states in interleaved blocks, within one launch.

The states of a block: communication alone (start, then wait), computation alone, both (start, compute, wait), and, of a library that
makes progress only within its calls, both with test calls between slices of the computation. They are the slots of one program, so that
each sample is of another state and all have the same synchronization. The computation is calibrated before, to last as long as the
communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend, ComputingBackend, NonBlockingBackend, TestingBackend
from collbench.backends.nonblocking import bind_nonblocking
from collbench.control.world import World
from collbench.errors import CollbenchError
from collbench.measuring.engine import Measured
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.prepared_case import BackendContext, PreparedCase, phase
from collbench.measuring.request import Budget
from collbench.measuring.row import RowContext
from collbench.measuring.sampling import Measurement, Samples, Stopping
from collbench.measuring.tasks.cases import CaseWork
from collbench.operations.case import Case
from collbench.operations.program import Call, NonBlocking, Program
from collbench.operations.unsupported import DeviceUnsupported, StartUnsupported, decode_reason
from collbench.plugins.overlap.computation import Computation, FixedComputation
from collbench.plugins.overlap.records import (
    FEWEST_BLOCKS,
    AssistanceMissing,
    CoresSharedWithProgress,
    Overlap,
    Progress,
    States,
    evaluate,
)
from collbench.reason import Fact, Text, as_json
from collbench.results.row import Row

_SLICE_S = 50e-6  # of the computation between two test calls
_MOST_SLICES = 500
_FIRST_AMOUNT = 50  # blocks: about 100 µs
_MORE_ON_GPU = 100  # times as many blocks: a block there takes some nanoseconds
_SETTLED = 0.02  # the computation may differ from the communication by so much after calibration
_ADJUSTMENTS = 4
_WARMUPS = 2  # blocks before the samples, since the computation is calibrated


class OverlapStates(msgspec.Struct, frozen=True):
    """The states that the loop of a case runs in turn, calibrated.

    number   how many there are: 3, or 4 with test calls
    timed    the ranks that count
    """

    number: int
    timed: list[int]
    computation: FixedComputation
    progress: Progress
    unassisted: AssistanceMissing | None
    shared: CoresSharedWithProgress | None

    def rule(self, budget: Budget, size_bytes: int) -> Stopping:
        """Return how many blocks are taken, of one sample of each state: until the overlap is precise, as a part of the communication."""
        return Stopping(
            budget, size_bytes, self.timed, turns=self.number, first=2 * FEWEST_BLOCKS, warmup=_WARMUPS, least=FEWEST_BLOCKS,
            half_width=self._half_width,
        )  # fmt: skip

    def _half_width(self, samples: Samples) -> float | None:
        """Return the half-width of the interval of the overlap, as a part of the communication time."""
        alone, computing, both = (samples[self.timed][:, state :: self.number].max(axis=0) for state in range(3))
        percent = evaluate(States(alone, computing, both, computing, computing), "calls", None, None).percent
        return None if percent.low is None or percent.high is None else (percent.high - percent.low) / 2 / 100

    def gather(self, title: str, measured: Measurement | None, world: World) -> States | None:
        """Return the samples of all states at rank 0, None elsewhere. All ranks call it after the measurement."""
        doing = f"{title}: gathering the times of the computation"
        blocks = world.broadcast(measured.samples.shape[1] // self.number if measured else 0, doing)
        times = self.computation.seconds(blocks * (self.number - 1)).reshape(blocks, self.number - 1).T
        all_ranks = world.gather_array(times, doing)
        if measured is None or all_ranks is None:
            return None
        computing = np.max([all_ranks[rank] for rank in self.timed], axis=0)  # [states with a computation × blocks]
        slowest_s = [measured.samples[self.timed][:, state :: self.number].max(axis=0) for state in range(self.number)]
        states = States(slowest_s[0], slowest_s[1], slowest_s[2], computing[0], computing[1])
        if self.number > 3:
            return replace(states, assisted=slowest_s[3], computing_assisted=computing[2])
        return states

    def overlap(self, states: States, goal_s: float | None = None) -> Overlap:
        """Return the overlap. goal_s: the seconds that the computation should take; None: as long as the communication."""
        return evaluate(states, self.progress, self.unassisted, self.shared, goal_s)


@dataclass
class OverlapWork(CaseWork):
    """A case of which the loop runs the states in turn."""

    states: OverlapStates | None = None

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the case with its states, calibrated; or why a rank cannot run or start the operation."""
        ready = super().prepare(world)
        if not isinstance(ready, PreparedCase):
            return ready
        prepared = prepare_overlap(ready, self.context, world)
        if isinstance(prepared, Fact):
            self.release(ready)
            return prepared
        in_turn, self.states = prepared
        return in_turn

    @property
    def known_states(self) -> OverlapStates:
        """The states of a prepared case."""
        assert self.states is not None
        return self.states

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return how many blocks are taken."""
        return self.known_states.rule(budget, ready.case.size_bytes)

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> States | None:
        """Return the samples of all states at rank 0, None elsewhere."""
        return self.known_states.gather(ready.case.title(), measured, world)

    def row(self, result: Measured, watched: MonitoredMeasurement, around: RowContext) -> tuple[Row, dict[str, NDArray[Any]]]:
        """Return (row, arrays for samples.bin), at rank 0.

        Its time is that of both; it has no bandwidth, since the computation is a part of the time. The array "states_s" has the slowest
        rank of every sample [states × blocks].
        """
        measured = watched.measured
        number = self.known_states.number
        both = replace(
            measured, samples=measured.samples[:, 2 :: number], starts_ns=measured.starts_ns[:, 2 :: number],
            flags=[*measured.flags],
        )  # fmt: skip
        watched_both = replace(watched, measured=both)
        row, arrays = super().row(replace(result, watched=watched_both), watched_both, replace(around, ceiling=None, hard_bound=None))
        slowest_s = measured.samples[result.ready.timed].max(axis=0)
        arrays["states_s"] = slowest_s.reshape(-1, number).T.copy()
        overlap = self.known_states.overlap(result.gathered).as_json()
        return replace(row, algbw_bytes_per_s=None, busbw_bytes_per_s=None, groups={}, overlap=overlap), arrays


def prepare_overlap(ready: PreparedCase, stage: BackendContext, world: World) -> tuple[PreparedCase, OverlapStates] | Fact:
    """Return the case that runs the states in turn, calibrated, and the states; or why a rank cannot start the operation.

    The reason is the same at all ranks. All ranks call.
    """
    bound = bind_started(ready, stage.backend)
    computation = bound if isinstance(bound, Fact) else computation_for(ready.case, stage.backend, _FIRST_AMOUNT)
    first = world.first_error(
        as_json(computation) if isinstance(computation, Fact) else None, f"asking {stage.backend.name} what it can start"
    )
    if first is not None or isinstance(bound, Fact) or isinstance(computation, Fact):
        return decode_reason(first)  # type: ignore[return-value]
    tests = stage.backend.test_calls(bound.wait) if isinstance(stage.backend, TestingBackend) else None
    with phase(ready, world, "calibrating the computation"):
        communication_s = calibrate(loop_of(_states(bound, computation, None)[0], stage, world), computation, stage, ready.timed, world)
    slices = max(2, min(_MOST_SLICES, computation.amount, int(communication_s / _SLICE_S)))
    states = _states(bound, computation, tests, slices)
    slots = tuple(calls for in_turn in zip(*(state.slots for state in states), strict=True) for calls in in_turn)
    program = replace(states[2], slots=slots)
    progress = progress_of(stage.backend, ready.case)
    prepared = replace(
        ready, loop=loop_of(program, stage, world), checking=loop_of(states[2], stage, world), synchronised=True, program=program,
    )  # fmt: skip
    unassisted = None if tests else unassisted_by(stage.backend, progress)
    return prepared, OverlapStates(len(states), ready.timed, computation, progress, unassisted, shared_cores(world, progress))


def bind_started(ready: PreparedCase, backend: Backend) -> NonBlocking | Fact:
    """Return this process's programs, without calls if it drives no rank; or why the operation cannot be started."""
    if not isinstance(backend, NonBlockingBackend):
        return StartUnsupported(backend.name, ready.operation.name)
    if ready.own_groups:
        return bind_nonblocking(backend, ready.operation, ready.case, ready.own_groups[0], ready.buffers[0])
    nothing = Program(((),))
    return NonBlocking(nothing, nothing)


def computation_for(case: Case, backend: Backend, amount: int) -> FixedComputation | Fact:
    """Return a computation of so many blocks where the case's data is: on this core, or on the rank's GPU; or why there is none."""
    if case.device == "cpu":
        return Computation(amount)
    if not isinstance(backend, ComputingBackend):
        return DeviceUnsupported("--overlap", case.device, ("cpu",))
    from collbench.plugins.overlap.gpu_computation import GpuComputation

    try:
        return GpuComputation(*backend.computing_stream(), _MORE_ON_GPU * amount)
    except (MemoryError, CollbenchError) as error:
        return Text(str(error))


def progress_of(backend: Backend, case: Case) -> Progress:
    """Return what moves data while a rank computes: kernels on the GPU, threads of the library, or only its calls."""
    if case.device != "cpu":
        return "kernels"
    return backend.progress if isinstance(backend, TestingBackend) else "threads"


def unassisted_by(backend: Backend, progress: Progress) -> AssistanceMissing:
    """Return why a backend needs no help for its progress."""
    return AssistanceMissing(backend.name, "kernels" if progress == "kernels" else "threads")


def _states(bound: NonBlocking, computation: FixedComputation, tests: Program | None, slices: int = 1) -> list[Program]:
    """Return a program for each state, with the same buffer slots."""
    start = bound.start.slots
    wait = bound.wait.slots
    alone = computation.calls()

    def program(slots: Iterator[tuple[Call, ...]]) -> Program:
        return Program(tuple(slots), keep=(bound, computation, tests), explain=bound.start.explain)

    states = [
        program((*a, *b) for a, b in zip(start, wait, strict=True)),
        program(alone for _ in start),
        program((*a, *alone, *b) for a, b in zip(start, wait, strict=True)),
    ]
    if tests:
        slots = zip(start, wait, tests.slots, strict=True)
        states.append(program((*a, *computation.calls(slices, test), *b) for a, b, test in slots))
    return states


def loop_of(program: Program, stage: BackendContext, world: World) -> Loop:
    """Return a loop that synchronizes before each sample and after the last: a library may still have to send what other ranks wait for."""
    return Loop(Timed(program, stage.sync, stage.backend.clock(), world.watchdog.progress, parting=stage.sync))


def shared_cores(world: World, progress: Progress) -> CoresSharedWithProgress | None:
    """Return the first host with fewer cores than ranks and progress threads (one for each rank), or None."""
    for host in world.hosts:
        ranks = len(world.on_host(host))
        cores = world.cores_on(host)
        threads = ranks if progress == "threads" else 0
        if ranks + threads > cores:
            return CoresSharedWithProgress(host, ranks, threads, cores)
    return None


def calibrate(communication: Loop, computation: FixedComputation, stage: BackendContext, timed: list[int], world: World) -> float:
    """Set the amount of every rank's computation so that it takes as long as the communication, and return these seconds.

    They are the same at all ranks. The slowest rank counts, and all ranks compute the same amount.
    """
    goal_s = median_time(communication, timed, world)
    calibrate_to(goal_s, computation, stage, timed, world)
    return goal_s


def calibrate_to(goal_s: float, computation: FixedComputation, stage: BackendContext, timed: list[int], world: World) -> None:
    """Set the amount of every rank's computation so that the slowest rank takes so long. All ranks call."""
    alone = loop_of(Program((computation.calls(),), keep=computation), stage, world)
    for _ in range(_ADJUSTMENTS):
        computation_s = median_time(alone, timed, world)
        if abs(computation_s / goal_s - 1) <= _SETTLED:
            break
        computation.amount = round(computation.amount * goal_s / computation_s)


def median_time(loop: Loop, timed: list[int], world: World) -> float:
    """Return the median time of a loop's sample at the slowest rank, from few samples, the same at all ranks."""
    once_s = _run(loop, 1, timed, world)
    return _run(loop, max(2, min(30, int(0.1 / max(once_s, 1e-6)))), timed, world)


def _run(loop: Loop, n: int, timed: list[int], world: World) -> float:
    all_ranks = world.allgather(loop.run(n).tolist(), "calibrating the computation")
    samples = np.array([rank_samples for process in all_ranks for rank_samples in process])
    return max(float(np.median(samples[timed].max(axis=0))), 1e-7)
