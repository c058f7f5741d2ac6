"""Measure test cases one after the other in shuffled order, on all ranks together, and store each row at once."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.backends.backend import Backend, CountingBackend, WitnessedBackend, unsupported_reason
from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE
from collbench.launch.mpi import BackendStartFailed
from collbench.measuring.memory import check_memory, fitting_sizes, held_resources
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.open_backends import OpenBackend, Work, ranks_by_host
from collbench.measuring.phases import Phase, Phases, nvtx_range
from collbench.measuring.prepared_case import BackendContext, DataError, PreparedCase, left_early, placed, prepare, release, verify_case
from collbench.measuring.request import Budget, SharedTime, TaskRequest
from collbench.measuring.resume import planned, requested_of, rows_by_place
from collbench.measuring.row import RowContext, check_fields, make_row, row_without, wrong_evidence
from collbench.measuring.session import LaunchSession, Plan, Task, WrongDataStop, member_places
from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.operations.sweep import OWN_MODES, Sweep, Sweeps
from collbench.operations.unsupported import as_fact, decode_reason
from collbench.plugin import measurement_mode
from collbench.reason import Fact, Text, as_json
from collbench.results.folder import CASES
from collbench.results.reader import Run
from collbench.results.row import CommunicatorBytes, HeldResources, LoopTime, Row
from collbench.units import format_bytes, plural

_LEAST_S = 2.0  # with less time for all cases only the smallest ones are measured


@dataclass
class CasesTask(Task):
    """The cases of the request's sweep on each of its backends.

    identities  for each case how its stored row names it, see `resume.planned`
    """

    work: list[Work] = field(default_factory=list)
    identities: Sequence[tuple[Row, Row]] = ()

    def plan(self, session: LaunchSession) -> Plan:
        """Return the cases. Raises UsageError, on all ranks, for cases that do not fit the ranks or their memory."""
        request, world, opened = session.request, session.world, session.opened
        check_traffic(request.sweep, world)
        for one in opened:
            if one.backend:
                request.sweep.check_ranks(one.backend.ranks)
        work = [(operations()[case.operation], case, one) for one in opened for case in session.sweep.cases(one.name, one.ranks(world))]
        if any(case.mode == "overlap" for _, case, _ in work) and not measurement_mode("overlap"):
            world.refuse("--overlap needs the plug-in 'overlap', which this installation of collbench lacks: install it again")
        ranks = max(one.ranks(world) for one in opened)
        request.slowed.check([case for _, case, _ in work], ranks)
        left_out = None
        if any(sweep.sparse for sweep in request.sweep.each):
            work, left_out = fitting_sizes(work, world)
        check_memory(work, world)
        self.work, self.identities = work, planned(work, world)
        cases = [placed(case, operation, one.backend) if one.backend else case for operation, case, one in work]
        # The heads of tables have what was requested, such as the largest size.
        facts = {"asked": self.requested(session)} if world.rank == 0 else {}
        return Plan(
            len(work), facts, cases=cases, ranks=ranks, nodes=len(world.hosts), rank_map=member_places(world, opened),
            notes=[left_out] if left_out else [],
        )  # fmt: skip

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the cases and the options that all of them share."""
        return requested_of(session.request, [row for row, _ in self.identities])

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rows by the place of their case."""
        found = rows_by_place(run.rows, self.identities)
        return found, len(found) == len(self.work)

    def references(self, session: LaunchSession) -> tuple[list[Backend], list[tuple[Operation, Case]]]:
        """Return the backends and cases that are measured now."""
        left = [item for place, item in enumerate(self.work) if place not in session.stored.done and item[2].backend]
        return list({one.name: one.running for _, _, one in left}.values()), [(operation, case) for operation, case, _ in left]

    def _is_shown(self, session: LaunchSession) -> bool:
        """Return whether rank 0 prints the rows of a single launch while it measures."""
        is_shown: bool = session.world.broadcast(session.listener is not None, "choosing the first case")
        return is_shown and session.request.launches == 1

    def measure(self, session: LaunchSession) -> None:
        """Measure the cases that are not stored yet. n/a cases take no time, so they do not count as progress."""
        session.monitor(case for _, case, one in self.work if one.backend)
        left = [place for place in range(len(self.work)) if place not in session.stored.done]
        order = [left[turn] for turn in shuffled(len(left), session.order_seed, session.request.launch_index)]
        reasons: dict[int, Fact | None] = {}
        runners: dict[str, BackendRunner] = {}
        for one in {one.name: one for _, _, one in self.work}.values():
            places = [place for place, item in enumerate(self.work) if item[2].name == one.name]
            items = [self.work[place] for place in places]
            reasons |= zip(places, _reasons(items, session.world), strict=True)
            runners[one.name] = BackendRunner(session, one, session.context_of(items, one.backend) if one.backend else None)
        session.lap()
        measurable = [place for place in order if not reasons[place]]
        is_late = session.ends_s is not None and time.monotonic() > session.ends_s - _LEAST_S
        if session.ends_s is not None and session.world.broadcast(is_late, "deciding whether time is left"):  # small cases still fit
            order.sort(key=lambda place: self.work[place][1].size_bytes)
            measurable.sort(key=lambda place: self.work[place][1].size_bytes)
        elif measurable and self._is_shown(session):
            # rows are printed in order, so that the first one appears soon
            first = min(measurable)
            for places in (order, measurable):
                places.remove(first)
                places.insert(0, first)
        times = SharedTime(session.request.budget, [self.work[place][1].size_bytes for place in measurable], ends_s=session.ends_s)
        omitted: list[Case] = []
        for done, place in enumerate(order):
            operation, case, one = self.work[place]
            runner, reason = runners[one.name], reasons[place]
            if reason:
                row = runner.without(operation, case, reason, place)
            elif session.ends_s is not None and not session.world.broadcast(times.fits(case.size_bytes), "deciding whether time is left"):
                times.omit()
                omitted.append(case)
                continue
            else:
                session.progress(case.title(), measurable.index(place), len(measurable), times.left_s)
                began_s = time.monotonic()
                with nvtx_range(case.title()):
                    row = runner.take(operation, case, place, times.next())
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

    def exit_code(self, records: Sequence[Row]) -> int:
        """Return the exit code: 4 when data was wrong, or no backend starts; 2 when every case is n/a, else 0."""
        if any(row.wrong for row in records):
            return FAILED
        if any(row.na is None for row in records):
            return FINE
        return FAILED if any(isinstance(decode_reason(row.na_fact), BackendStartFailed) for row in records) else USAGE


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
    read = world.allgather([one.traffic.name for one in sweep.each if one.traffic], "reading the traffic")
    other = next((rank for rank, names in enumerate(read) if names != read[0]), None)
    if other is not None:
        other_list, own_list = (", ".join(read[rank]) or "none" for rank in (other, 0))
        world.refuse(f"{world.members[other]} has other traffic ({other_list}) than rank 0 ({own_list}): copy the same file to every node")


def shuffled(cases: int, order_seed: int, launch_index: int) -> list[int]:
    """Return the order in which the cases are measured. It differs between launches of a seed, so that no size is always last."""
    order = list(range(cases))
    random.Random(f"{order_seed}, launch {launch_index}").shuffle(order)
    return order


def _reasons(items: list[Work], world: World) -> list[Fact | None]:
    """Return for each case None, or why it cannot be measured: the reason of the first rank that has one."""
    own = [as_fact(one.reason) or (one.backend and unsupported_reason(one.backend, operation, placed(case, operation, one.backend)))
            for operation, case, one in items]  # fmt: skip
    all_ranks = world.allgather(
        [None if reason is None else as_json(reason) for reason in own], f"asking {items[0][2].name} what it can do"
    )
    return [decode_reason(next((reason for reason in column if reason), None)) for column in zip(*all_ranks, strict=True)]


@dataclass
class BackendRunner:
    """Measures the cases of one backend, with the state that they share."""

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
        session, context = self.session, self.context
        if context is None:
            return self.without(operation, case, Text(f"{self.opened.name} is not open"), place)
        world, backend = session.world, context.backend
        phases = Phases()
        with phases.record("set-up"):
            ready = prepare(operation, placed(case, operation, backend), context, world)
        if isinstance(ready, Fact):
            return self.without(operation, case, ready, place)
        mode = None if case.mode in OWN_MODES else measurement_mode(case.mode)
        in_mode = mode.prepare(ready, context, world) if mode else None
        if isinstance(in_mode, Fact):
            release(ready, backend)
            return self.without(operation, case, in_mode, place)
        if in_mode:
            ready = in_mode.ready
        before = held_resources() if operation.creates else None
        watched = session.measured(ready, backend, budget)
        held = (self._held(before) if before else {}) | self._communicators(ready, backend)
        phases += watched.phases if watched else ()
        figures = in_mode.evaluate(watched, world) if in_mode else None
        with phases.record("verification"):
            checked, mismatches, choices = self._verified(ready)
        release(ready, backend)
        paths = self.opened.paths
        evidence = paths.evidence(world, choices, session.ceilings.machines, watched.moved if watched else None) if paths else {}
        if choices and not paths:
            evidence = {backend.name: {"choices": choices}}
        if watched is None or mismatches is None:
            return None
        around = self._row_context(ready, backend, watched)
        if in_mode and figures:
            row, arrays = in_mode.row(figures, backend, watched, around)
        else:
            row, arrays = make_row(ready, backend, watched, around)
        if session.folder and watched.telemetry:
            session.folder.event("telemetry", case=place, hosts=watched.telemetry)
        self._note_network(ready.case, watched)
        row = replace(row, **check_fields(checked, mismatches), evidence=row.evidence | held | evidence | wrong_evidence(mismatches))
        return self._store(row, arrays, place, phases if checked else phases[:-1])

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

    def _verified(self, ready: PreparedCase) -> tuple[int, Sequence[DataError] | None, list[dict[str, Any]]]:
        """Return (number of verified calls, wrong data at rank 0, the library's choices during them on this rank)."""
        calls, paths, backend = self.session.request.check, self.opened.paths, self.opened.backend
        if not calls or backend is None:
            return 0, [], []
        if ready.operation.creates:
            return 0, [], []
        if ready.operation.is_barrier:
            return (0, [], []) if backend.virtual else (*left_early(ready, self.session.world, calls), [])
        witness: AbstractContextManager[list[dict[str, Any]]] = nullcontext([])
        if paths:
            witness = paths.witness(backend, ready.case)
        elif isinstance(backend, WitnessedBackend):
            witness = backend.witness(ready.case)
        with witness as choices:
            mismatches = verify_case(ready, self.session.world, calls)
        return calls, mismatches, choices

    def _held(self, before: HeldResources) -> dict[str, Any]:
        """Return the evidence of a leak check: by how much the open files and memory of the worst rank grew meanwhile. All ranks call."""
        after = held_resources()
        own = [after.open_files - before.open_files, after.resident_bytes - before.resident_bytes]
        of_ranks = self.session.world.allgather(own, "counting open files")
        return HeldResources(*map(max, zip(*of_ranks, strict=True))).entry()

    def _communicators(self, ready: PreparedCase, backend: Backend) -> dict[str, Any]:
        """Return the evidence of the GPU memory that a communicator of the case takes, at the worst rank. All ranks call."""
        if not isinstance(backend, CountingBackend):
            return {}
        own = [found for group in ready.own_groups if (found := backend.communicator_bytes(group))]
        of_ranks = self.session.world.allgather(own, "counting the memory of communicators")
        taken = [CommunicatorBytes(*of_group) for of_rank in of_ranks for of_group in of_rank]
        return max(taken, key=lambda in_use: (in_use.bytes, in_use.source)).entry() if taken else {}

    def _row_context(self, ready: PreparedCase, backend: Backend, watched: MonitoredMeasurement) -> RowContext:
        session = self.session
        directly = watched.moved.copied_directly if watched.moved else None
        ceiling, bound = session.ceilings.of(ready.operation, ready.case, backend, ready.groups, directly)
        slowdown = session.request.slowed.of(ready.case)
        operation = ready.operation
        at_once = ["pairs_at_once"] if operation.pair and not operation.aggregate and len(ready.groups) > 1 else []
        known = ready.evidence | ({"slowed": slowdown.text} if slowdown else {}) | watched.evidence
        evidence = {"libraries": dict(backend.versions()), "conditions": session.conditions} | known
        on = (*backend.flags, *session.flags(backend, [ready.case], ready.fell_back), *at_once)
        withheld = "oversubscribed" in on or watched.other_path is not None
        began_s = session.run_began_s if session.request.trace else None
        return RowContext(ranks_by_host(backend, session.world), ceiling, bound, withheld, on, evidence, began_s)

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
        when = LoopTime(in_loop.measured, ended_s - began_s - in_loop.measured).entry()
        if at_s := session.since_start(began_s, ended_s):
            when["at_s"] = at_s
        if at_s and phases:
            when["phases"] = [[each.name, *session.since_start(each.began_s, each.ended_s)] for each in phases]
        session.store(replace(row, evidence=row.evidence | when), CASES, place, arrays)
        return row
