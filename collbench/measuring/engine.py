"""The engine of all measurements: prepare, sample, verify, and the figures of a row. Listeners take evidence around these events.

A measurement is a `Work`: its calls, what must arrive, and how its samples count. Cases, rounds of pairs, training steps and transfers of
blocks are works; the engine alone samples and verifies. All ranks call each method in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from collbench.backends.backend import Backend
from collbench.backends.slowing import Slowing
from collbench.measuring.listeners import Listener, Observed, listeners_of
from collbench.measuring.monitored import MonitoredMeasurement, StateProbe, measure_monitored
from collbench.measuring.open_backends import ranks_by_host
from collbench.measuring.phases import Phases
from collbench.measuring.prepared_case import BackendContext, PreparedCase, phase, release
from collbench.measuring.row import RowContext
from collbench.measuring.sampling import Measurement, SamplingPlan, Stopping, measure, schedule
from collbench.measuring.verification import DataError, VerificationTurn, checks_of_buffers, verify

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.machine.model import Machine
    from collbench.machine.peak.ceiling import Ceiling
    from collbench.measuring.instruments import Instruments
    from collbench.measuring.loop import TimedLoop
    from collbench.measuring.nccl_paths import NcclPaths
    from collbench.measuring.request import Budget
    from collbench.operations.case import Case
    from collbench.reason import Fact


@dataclass
class Work(ABC):
    """The description of one measurement.

    context    of the backend that it runs on
    is_case    whether it is an operation of the library by itself, whose choices are evidence
    monitored  whether the state probe, the hosts' counters and the `LISTENERS` observe it, in a launch that has them
    """

    context: BackendContext
    monitored: ClassVar[bool] = True
    is_case: ClassVar[bool] = False

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self.context.backend

    @abstractmethod
    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return what can be run, after its first call; or why not, the same at all ranks."""

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return how many samples are taken. Only rank 0's rule counts."""
        return Stopping(budget, ready.case.size_bytes, ready.timed, ready.case.mode, ready.loop.iterations)

    def sampling(self, ready: PreparedCase, budget: Budget) -> SamplingPlan:
        """Return rank 0's plan of the samples, where a rule does not say it all."""
        return schedule(self.rule(ready, budget))

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> Any:
        """Return what the figures need in addition to the samples, at rank 0, from all ranks directly after the samples."""
        return None

    def verify(self, ready: PreparedCase, world: World, calls: int) -> tuple[int, Sequence[DataError] | None]:
        """Verify so many calls. Return (the number of verified calls; the wrong data at rank 0, None elsewhere)."""
        return calls, verify(ready, world, self.checks(ready, calls))

    def checks(self, ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
        """Yield the turns of verification."""
        return checks_of_buffers(ready, calls)

    def listeners(self) -> Sequence[Listener]:
        """Return listeners of this measurement alone."""
        return ()

    def release(self, ready: PreparedCase) -> None:
        """Free what was made for this measurement alone."""
        release(ready, self.backend)


class Measured(msgspec.Struct, frozen=True):
    """The result of a measurement; `measured`, `watched` and `wrong` are at rank 0, None elsewhere.

    measured   the samples; watched: with their evidence, None also where the work is not monitored
    checked    number of verified calls; wrong: the wrong data
    gathered   what `Work.gather` returned
    evidence   of the listeners
    phases     set-up, warm-up, samples and verification at this rank
    """

    ready: PreparedCase
    measured: Measurement | None
    watched: MonitoredMeasurement | None = None
    checked: int = 0
    wrong: Sequence[DataError] | None = None
    gathered: Any = None
    evidence: Mapping[str, Any] = msgspec.field(default_factory=dict)
    phases: Phases = msgspec.field(default_factory=Phases)


class Engine(msgspec.Struct, frozen=True):
    """The engine of a launch.

    check        calls of each measurement that are verified; 0: none
    monitors     whether measurements are observed, with the following
    probe        the state probe; None: not available
    instruments  the readers of the hosts' counters; None: they are not read
    conditions   constant conditions of these hosts, for every row's evidence
    slowed       which cases are slowed down on purpose
    paths        NCCL's log on this rank, by backend
    machines     returns the hosts' machines at rank 0
    began_s      returns when the run began, in seconds on CLOCK_MONOTONIC, if rows store when their samples began; else None
    """

    world: World
    check: int
    monitors: bool = False
    probe: StateProbe | None = None
    instruments: Instruments | None = None
    conditions: Mapping[str, Any] = msgspec.field(default_factory=dict)
    slowed: Slowing = msgspec.field(default_factory=Slowing)
    paths: Mapping[str, NcclPaths] = msgspec.field(default_factory=dict)
    machines: Callable[[], Sequence[Machine]] = tuple
    began_s: Callable[[], float | None] = lambda: None

    def measure(self, work: Work, budget: Budget) -> Measured | Fact:
        """Prepare, sample, verify and release a work on all ranks. Return the result, or why a rank cannot run it, the same at all ranks.

        Raises CollbenchError if a rank fails.
        """
        phases = Phases()
        with phases.record("set-up"):
            ready = work.prepare(self.world)
        if not isinstance(ready, PreparedCase):
            return ready
        watched = None
        listeners = list(work.listeners())
        if work.monitored and self.monitors:
            paths = self.paths.get(work.backend.name)
            listeners += listeners_of(Observed(ready, work.backend, work.is_case, paths, self.machines))
            watched = self.watch(work, ready, budget, listeners)
            measured = watched.measured if watched else None
            phases += watched.phases if watched else ()
        else:
            for listener in listeners:
                listener.begin(ready, self.world)
            measured = self.sample(work, ready, budget)
            for listener in listeners:
                listener.end(ready)
        gathered = work.gather(ready, measured, self.world)
        checked = 0
        wrong: Sequence[DataError] | None = []
        if self.check:
            with phases.record("verification"), ExitStack() as contexts:
                for listener in listeners:
                    contexts.enter_context(listener.verifying(ready))
                checked, wrong = work.verify(ready, self.world, self.check)
            if not checked:  # it cannot be verified
                phases.pop()
        work.release(ready)
        evidence: dict[str, Any] = {}
        for listener in listeners:
            evidence |= listener.evidence(self.world, watched.reports if watched else (), watched.moved if watched else None)
        return Measured(ready, measured, watched, checked, wrong, gathered, evidence, phases)

    def sample(self, work: Work, ready: PreparedCase, budget: Budget, loop: TimedLoop | None = None) -> Measurement | None:
        """Take the samples of a prepared work on all ranks; the result is at rank 0, None elsewhere. loop: another one than its own."""
        plan = work.sampling(ready, budget) if self.world.rank == 0 else None
        with phase(ready, self.world, "measuring"), self.world.extend_timeout(budget.max_time_s):
            return measure(loop or ready.loop, self.world, plan, ready.case.title())

    def watch(self, work: Work, ready: PreparedCase, budget: Budget, listeners: Sequence[Listener] = ()) -> MonitoredMeasurement | None:
        """Take the samples between two state probes, with the hosts' counters, and again if the state changed. The result is at rank 0."""
        is_virtual = work.backend.virtual
        probe = None if is_virtual or ready.case.device != "cpu" else self.probe
        all_listeners = list(listeners)
        if self.instruments and not is_virtual:
            all_listeners.insert(0, self.instruments)
        return measure_monitored(ready, self.world, budget, partial(self.sample, work, ready), probe, listeners=all_listeners)

    def crowded(self, backend: Backend, device: str) -> bool:
        """Return whether ranks, or the busy threads of their library, wait for cores, so that percentages are left out."""
        is_crowded = bool(self.world.oversubscribed) or "oversubscribed" in backend.flags
        return is_crowded and not backend.virtual and device == "cpu"

    def flags(self, backend: Backend, cases: Sequence[Case], fell_back: bool = False) -> list[str]:
        """Return the quality flags that follow from the launch. fell_back: Python times what the C loop could time."""
        is_slowed = any(self.slowed.of(case) for case in cases)
        flags = {"slowed": is_slowed, "oversubscribed": self.crowded(backend, cases[0].device), "python_loop": fell_back}
        return [flag for flag, applies in flags.items() if applies]

    def context_of_row(
        self,
        ready: PreparedCase,
        backend: Backend,
        watched: MonitoredMeasurement,
        limits: tuple[Ceiling | None, Ceiling | None],
        *,
        cases: Sequence[Case] = (),
        flags: Sequence[str] = (),
    ) -> RowContext:
        """Return what a row has in addition to its figures: ceilings, libraries, conditions, evidence and flags.

        limits: the ceiling and the hard limit; cases: those that the work consists of, if it is not one; flags: more of them
        """
        evidence: dict[str, Any] = {"libraries": dict(backend.versions()), "conditions": self.conditions} | ready.evidence
        slowdowns = [self.slowed.of(case) for case in cases or [ready.case]]
        slowed = sorted({slowdown.text for slowdown in slowdowns if slowdown})
        if slowed:
            evidence["slowed"] = slowed if cases else slowed[0]
        all_flags = (*backend.flags, *self.flags(backend, cases or [ready.case], ready.fell_back), *flags)
        withheld = "oversubscribed" in all_flags or watched.other_path is not None
        return RowContext(
            ranks_by_host(backend, self.world), limits[0], limits[1], withheld, all_flags, evidence | watched.evidence, self.began_s()
        )
