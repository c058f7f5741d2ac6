"""Measure test cases one after the other in shuffled order, on all ranks together, and store each row at once."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import Backend, unsupported_reason
from collbench.control.world import World
from collbench.errors import FAILED, USAGE
from collbench.launch.mpi import BackendStartFailed
from collbench.measuring.engine import Measured, Work
from collbench.measuring.memory import check_memory, fitting_sizes
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.open_backends import OpenBackend, PlannedCase
from collbench.measuring.phases import Phase, nvtx_range
from collbench.measuring.prepared_case import BackendContext, PreparedCase, placed, prepare
from collbench.measuring.request import Budget, SharedTime, TaskRequest
from collbench.measuring.resume import planned, requested_of, rows_by_place
from collbench.measuring.row import RowContext, make_row, row_without
from collbench.measuring.session import LaunchSession, Plan, Task, WrongDataStop, member_places
from collbench.measuring.verification import DataError, check_fields, left_early, wrong_evidence
from collbench.operations.case import Case
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.operations.sweep import OWN_MODES, Sweep, Sweeps
from collbench.operations.unsupported import decode_reason
from collbench.plugin import measurement_mode
from collbench.reason import Fact, Text, as_json
from collbench.results.folder import CASES
from collbench.results.reader import Run
from collbench.results.row import LoopTime, Row
from collbench.units import format_bytes, plural

_LEAST_S = 2.0  # with less time for all cases only the smallest ones are measured


@dataclass
class CasesTask(Task):
    """The cases of the request's sweep on each of its backends.

    identities  for each case how its stored row names it, see `resume.planned`
    """

    work: list[PlannedCase] = field(default_factory=list)
    identities: Sequence[tuple[Row, Row]] = ()

    def plan(self, session: LaunchSession) -> Plan:
        """Return the cases. Raises UsageError, on all ranks, for cases that do not fit the ranks or their memory."""
        request = session.request
        world = session.world
        check_traffic(request.sweep, world)
        for opened in session.opened:
            if opened.backend:
                request.sweep.check_ranks(opened.backend.ranks)
        work = [
            (operations()[case.operation], case, opened)
            for opened in session.opened
            for case in session.sweep.cases(opened.name, opened.ranks(world))
        ]
        if any(case.mode == "overlap" for _, case, _ in work) and not measurement_mode("overlap"):
            world.refuse("--overlap needs the plug-in 'overlap', which this installation of collbench lacks: install it again")
        ranks = max(opened.ranks(world) for opened in session.opened)
        request.slowed.check([case for _, case, _ in work], ranks)
        left_out = None
        if any(sweep.sparse for sweep in request.sweep.each):
            work, left_out = fitting_sizes(work, world)
        check_memory(work, world)
        self.work = work
        self.identities = planned(work, world)
        cases = [placed(case, operation, opened.backend) if opened.backend else case for operation, case, opened in work]
        # The heads of tables have what was requested, such as the largest size.
        facts = {"asked": self.requested(session)} if world.rank == 0 else {}
        return Plan(
            len(work), facts, cases=cases, ranks=ranks, nodes=len(world.hosts), rank_map=member_places(world, session.opened),
            notes=[left_out] if left_out else [],
        )  # fmt: skip

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the cases and the options that all of them share."""
        return requested_of(session.request, [row for row, _ in self.identities])

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rows by the place of their case."""
        rows = rows_by_place(run.rows, self.identities)
        return rows, len(rows) == len(self.work)

    def references(self, session: LaunchSession) -> tuple[list[Backend], list[tuple[Operation, Case]]]:
        """Return the backends and cases that are measured now."""
        missing = [item for place, item in enumerate(self.work) if place not in session.stored.done and item[2].backend]
        backends = {opened.name: opened.running for _, _, opened in missing}
        return list(backends.values()), [(operation, case) for operation, case, _ in missing]

    def measure(self, session: LaunchSession) -> None:
        """Measure the cases that are not stored yet. n/a cases take no time, so they do not count as progress."""
        session.monitor(case for _, case, opened in self.work if opened.backend)
        missing = [place for place in range(len(self.work)) if place not in session.stored.done]
        order = [missing[turn] for turn in shuffled(len(missing), session.order_seed, session.request.launch_index)]
        reasons: dict[int, Fact | None] = {}
        cases_of_backends: dict[str, BackendCases] = {}
        for name, opened in {opened.name: opened for _, _, opened in self.work}.items():
            places = [place for place, item in enumerate(self.work) if item[2].name == name]
            items = [self.work[place] for place in places]
            reasons |= zip(places, _reasons(items, session.world), strict=True)
            cases_of_backends[name] = BackendCases(session, opened, session.context_of(items, opened.backend) if opened.backend else None)
        session.lap()
        order = self._in_order(session, order, reasons)
        measurable = [place for place in order if not reasons[place]]
        times = SharedTime(session.request.budget, [self.work[place][1].size_bytes for place in measurable], ends_s=session.ends_s)
        omitted: list[Case] = []
        for done, place in enumerate(order):
            operation, case, opened = self.work[place]
            cases = cases_of_backends[opened.name]
            reason = reasons[place]
            if reason:
                row = cases.without(operation, case, reason, place)
            elif session.ends_s is not None and not session.world.broadcast(times.fits(case.size_bytes), "deciding whether time is left"):
                times.omit()
                omitted.append(case)
                continue
            else:
                session.progress(case.title(), measurable.index(place), len(measurable), times.left_s)
                began_s = time.monotonic()
                with nvtx_range(case.title()):
                    row = cases.take(operation, case, place, times.next())
                in_loop = LoopTime.of(row.evidence) if row else None
                sampled_s = in_loop.measured if in_loop else 0.0
                times.spent(case.size_bytes, time.monotonic() - began_s - sampled_s)
            stop = None
            if row:
                where = f"{row.operation} {format_bytes(row.size_bytes)} on {row.backend}"
                stop = WrongDataStop(where, len(order) - done - 1, row.wrong_detail or "")
            if session.stops(bool(row and row.wrong), stop):
                return
        if omitted:
            largest = max(omitted, key=lambda case: case.size_bytes)
            series = tuple(dict.fromkeys((case.operation, case.backend) for case in omitted))
            session.note(TimeWasOver(len(omitted), len(measurable), largest.title(), session.request.budget.wall_s or 0.0, series))

    def _in_order(self, session: LaunchSession, order: list[int], reasons: Mapping[int, Fact | None]) -> list[int]:
        """Return the shuffled places in the order of measuring. With little time left small cases come first, since they still fit."""
        is_late = session.ends_s is not None and time.monotonic() > session.ends_s - _LEAST_S
        if session.ends_s is not None and session.world.broadcast(is_late, "deciding whether time is left"):
            return sorted(order, key=lambda place: self.work[place][1].size_bytes)
        first = min((place for place in order if not reasons[place]), default=None)
        if first is None:
            return order
        is_shown = session.world.broadcast(session.listener is not None, "choosing the first case")
        if not is_shown or session.request.launches != 1:
            return order
        return [first, *(place for place in order if place != first)]  # rows are printed in order, so that the first one appears soon

    def exit_code(self, records: Sequence[Row]) -> int:
        """Return the exit code: 4 when data was wrong, or no backend starts; 2 when every case is n/a, else 0."""
        code = super().exit_code(records)
        starts_failed = code == USAGE and any(isinstance(decode_reason(row.na_fact), BackendStartFailed) for row in records)
        return FAILED if starts_failed else code


class TimeWasOver(Fact, frozen=True):
    """Cases are not measured, because the command had to end.

    omitted, cases  how many of how many; largest: the largest of them; wall_s: the seconds of the command
    series          (operation, backend) of those that are not measured, each once
    """

    omitted: int
    cases: int
    largest: str
    wall_s: float
    series: tuple[tuple[str, str], ...] = ()

    def render(self) -> str:
        """Return the sentence that users see."""
        which = self.largest if self.omitted == 1 else f"the largest: {self.largest}"
        return (
            f"{self.omitted} of {plural(self.cases, 'case')} not measured, since the {self.wall_s:g} s of the command were over ({which}): "
            "use a longer --total-time, or an idle machine"
        )


def task_of(request: TaskRequest) -> CasesTask:
    """Return the task of a launch that measures cases. The session has all of its request."""
    return CasesTask()


def check_traffic(sweep: Sweep | Sweeps, world: World) -> None:
    """Raise UsageError on all ranks if they have read different traffic files. Names of traffic contain checksums of the files."""
    if not any(operation.uneven for operation in sweep.operations):
        return
    names_of_ranks = world.allgather([part.traffic.name for part in sweep.each if part.traffic], "reading the traffic")
    texts = [", ".join(names) or "none" for names in names_of_ranks]
    differing = next((rank for rank, names in enumerate(names_of_ranks) if names != names_of_ranks[0]), None)
    if differing is not None:
        traffic = f"other traffic ({texts[differing]}) than rank 0 ({texts[0]})"
        world.refuse(f"{world.members[differing]} has {traffic}: copy the same file to every node")


def shuffled(cases: int, order_seed: int, launch_index: int) -> list[int]:
    """Return the order in which the cases are measured. It differs between launches of a seed, so that no size is always last."""
    order = list(range(cases))
    random.Random(f"{order_seed}, launch {launch_index}").shuffle(order)
    return order


def _reasons(items: list[PlannedCase], world: World) -> list[Fact | None]:
    """Return for each case None, or why it cannot be measured: the reason of the first rank that has one."""
    reasons_here = []
    for operation, case, opened in items:
        reason = opened.reason
        if not reason and opened.backend:
            reason = unsupported_reason(opened.backend, operation, placed(case, operation, opened.backend))
        reasons_here.append(None if reason is None else as_json(reason))
    all_ranks = world.allgather(reasons_here, f"asking {items[0][2].name} what it can do")
    first_reasons = [next(filter(None, reasons), None) for reasons in zip(*all_ranks, strict=True)]
    return [decode_reason(reason) if reason else None for reason in first_reasons]


@dataclass
class CaseWork(Work):
    """An operation over the groups of its case.

    groups  such as a round of pairs; None: those of the case
    """

    operation: Operation
    case: Case
    is_case = True
    groups: Groups | None = None

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the case with its buffers and calls, or the first reason of a rank."""
        return prepare(self.operation, self.case, self.context, world, self.groups)

    def verify(self, ready: PreparedCase, world: World, calls: int) -> tuple[int, Sequence[DataError] | None]:
        """Compare the data; of a barrier verify that no rank leaves before all have entered. The making of groups has no data."""
        if ready.operation.creates:
            return 0, []
        if ready.operation.is_barrier:
            return (0, []) if self.backend.virtual else left_early(ready, world, calls)
        return super().verify(ready, world, calls)

    def row(self, result: Measured, watched: MonitoredMeasurement, around: RowContext) -> tuple[Row, dict[str, Any]]:
        """Return the row with its figures, and its arrays, at rank 0."""
        return make_row(result.ready, self.backend, watched, around)


class BackendCases(msgspec.Struct):
    """The cases of one backend, with the state that they share. context: None if it is not open."""

    session: LaunchSession
    opened: OpenBackend
    context: BackendContext | None

    def without(self, operation: Operation, case: Case, reason: Fact, place: int) -> Row | None:
        """Store and return an n/a row at rank 0."""
        world = self.session.world
        api = self.context.backend.api if self.context else ""
        return self._store(row_without(operation, case, api, (self.opened.ranks(world), len(world.hosts)), reason), {}, place)

    def take(self, operation: Operation, case: Case, place: int, budget: Budget) -> Row | None:
        """Measure one case on all ranks and store its row. Return the row at rank 0, None elsewhere. Only rank 0's budget counts."""
        if self.context is None:
            return self.without(operation, case, Text(f"{self.opened.name} is not open"), place)
        backend = self.context.backend
        mode = None if case.mode in OWN_MODES else measurement_mode(case.mode)
        work = (mode.work if mode else CaseWork)(self.context, operation, placed(case, operation, backend))
        result = self.session.engine.measure(work, budget)
        if isinstance(result, Fact):
            return self.without(operation, case, result, place)
        watched = result.watched
        if watched is None or result.wrong is None:
            return None
        row, arrays = work.row(result, watched, self._around(result.ready, backend, watched))
        if self.session.folder and watched.telemetry:
            self.session.folder.event("telemetry", case=place, hosts=watched.telemetry)
        self._note_network(result.ready.case, watched)
        evidence = {**row.evidence, **result.evidence, **wrong_evidence(result.wrong)}
        row = replace(row, **check_fields(result.checked, result.wrong), evidence=evidence)
        return self._store(row, arrays, place, result.phases)

    def _note_network(self, case: Case, watched: MonitoredMeasurement) -> None:
        """Report what happened to the network while the case was measured."""
        session = self.session
        if watched.other_path:
            session.note_once(f"other path of {self.opened.name}", watched.other_path)
        disturbance = watched.disturbance(case.title(), [member.host for member in session.world.members])
        if disturbance:
            session.note(disturbance)
        for network in watched.networks:
            for port in network.port_errors:
                session.note_once(f"errors of {port.port} on {port.host}", port)

    def _around(self, ready: PreparedCase, backend: Backend, watched: MonitoredMeasurement) -> RowContext:
        directly = watched.moved.copied_directly if watched.moved else None
        limits = self.session.ceilings.of(ready.operation, ready.case, backend, ready.groups, directly)
        flags = []
        if ready.operation.pair and not ready.operation.aggregate and len(ready.groups) > 1:
            flags.append("pairs_at_once")
        return self.session.engine.context_of_row(ready, backend, watched, limits, flags=flags)

    def _store(self, row: Row, arrays: dict[str, Any], place: int, phases: Sequence[Phase] = ()) -> Row | None:
        """Store and show a row, at rank 0. Its evidence has when the case ran, and how long it took.

        "at_s"    begin and end in seconds since the run's start
        "phases"  [name, begin, end] of each phase, likewise
        "wall_s"  see `LoopTime`
        """
        session = self.session
        if session.folder is None:
            return None
        began_s, ended_s = session.lap()
        in_loop = LoopTime.of(row.evidence) or LoopTime(0.0)
        loop_time = LoopTime(in_loop.measured, ended_s - began_s - in_loop.measured).entry()
        evidence = row.evidence | loop_time | session.when(began_s, ended_s, phases)
        session.store(replace(row, evidence=evidence), CASES, place, arrays)
        return row
