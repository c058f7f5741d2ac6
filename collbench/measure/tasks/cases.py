"""Measure test cases one after the other in shuffled order, on all ranks together, and store each row at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collbench.backends.backend import Backend, Group, unsupported_reason
from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE
from collbench.launch import signals
from collbench.measure.ceilings import Ceilings
from collbench.measure.instruments import Instruments
from collbench.measure.monitored import MonitoredMeasurement, measure_monitored, state_probe
from collbench.measure.prepared_case import (
    BackendContext,
    DataError,
    PreparedCase,
    left_early,
    make_groups,
    prepare,
    release,
    verify_case,
)
from collbench.measure.request import Budget, Request, SharedTime
from collbench.measure.resume import Stored, open_folder, placed, planned
from collbench.measure.row import RowContext, check_fields, make_row, row_without, wrong_evidence
from collbench.measure.session import (
    BackendNotMeasured,
    Launch,
    OpenBackend,
    ProgressListener,
    RunContext,
    Work,
    WrongDataStop,
    at_rank_0,
    describe_conditions,
    describe_run,
    different_software,
    member_places,
    open_backends,
    ranks_by_host,
    ranks_of,
    run_with_cleanup,
    software_of_hosts,
)
from collbench.measure.sync import host_sync
from collbench.operations.case import Case
from collbench.operations.data import bytes_needed, bytes_on_host
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation
from collbench.operations.program import Program
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep, Sweeps, rounding_note, tuning_note
from collbench.operations.unsupported import CaseFailed, as_fact, decode_reason
from collbench.reason import Fact, Text, as_json
from collbench.results.row import Row
from collbench.units import format_bytes, format_size, plural


def rows_of(launch: Launch, work: list[Work], ceilings: Ceilings, order: Sequence[int]) -> Iterator[Row]:
    """Yield the rows at rank 0, measured in `order` (indices into `work`). Other ranks take part and yield nothing."""
    reasons: dict[int, Fact | None] = {}
    turns: dict[str, BackendRunner] = {}
    for name in dict.fromkeys(one.name for _, _, one in work):
        places = [place for place, item in enumerate(work) if item[2].name == name]
        items = [work[place] for place in places]
        reasons |= zip(places, _reasons(items, launch.world), strict=True)
        turns[name] = _turn(launch, items, ceilings)
    launch.lap()
    measurable = [place for place in order if not reasons[place]]  # n/a cases take no time, so they do not count as progress
    times = SharedTime(launch.request.budget, [work[place][1].size_bytes for place in measurable])
    for done, place in enumerate(order):
        operation, case, one = work[place]
        turn, reason = turns[one.name], reasons[place]
        if launch.listener and not reason:
            launch.listener.progress(case.title(), measurable.index(place), len(measurable), times.left_s)
        row = turn.without(operation, case, reason, place) if reason else turn.take(operation, case, place, times.next())
        if row:
            yield row
        if launch.request.stop_on_wrong and _wrong(launch, row, len(order) - done - 1):
            return


def _wrong(launch: Launch, row: Row | None, left: int) -> bool:
    """Return whether a case's data was wrong, the same at all ranks.

    If so, store the fact that the launch ends there, with `left` cases unmeasured.
    """
    wrong: bool = launch.world.broadcast(bool(row and row.wrong), "deciding whether to go on")
    if wrong and row:
        where = f"{row.operation} {format_bytes(row.size_bytes)} on {row.backend}"
        launch.note(WrongDataStop(where, left, row.wrong_detail or ""))
    return wrong


def _turn(launch: Launch, items: list[Work], ceilings: Ceilings) -> BackendRunner:
    opened = items[0][2]
    return BackendRunner(launch, opened, ceilings, stage_of(launch, items, opened.backend) if opened.backend else None)


def _reasons(items: list[Work], world: World) -> list[Fact | None]:
    """Return for each case None, or why it cannot be measured: the reason of the first rank that has one."""
    own = [as_fact(one.reason) or (one.backend and unsupported_reason(one.backend, operation, placed(case, operation, one.backend)))
            for operation, case, one in items]  # fmt: skip
    all_ranks = world.allgather(
        [None if reason is None else as_json(reason) for reason in own], f"asking {items[0][2].name} what it can do"
    )
    return [decode_reason(next((reason for reason in column if reason), None)) for column in zip(*all_ranks, strict=True)]


def stage_of(launch: Launch, items: list[Work], backend: Backend) -> BackendContext:
    """Return the state that the cases of one backend share. All ranks must call it."""
    members = make_groups(backend, [(operation, case) for operation, case, _ in items], launch.world)
    return BackendContext(backend, members, _sync(launch, backend, members))


def _sync(launch: Launch, backend: Backend, members: dict[tuple[int, ...], Group | None]) -> Program | None:
    """Return the calls that synchronize this backend's ranks before a sample: its own, else over shared memory and sockets."""
    whole = members[tuple(range(backend.ranks))]
    program = backend.sync(whole) if whole else None
    if program is None and launch.world.size > 1 and not backend.virtual and backend.ranks == launch.world.size:
        launch.sync = launch.sync or host_sync(launch.world)
        program = launch.sync.program() if launch.sync else None
    return program


@dataclass
class BackendRunner:
    """Measures the cases of one backend, with the state that they share."""

    launch: Launch
    opened: OpenBackend
    ceilings: Ceilings
    stage: BackendContext | None

    def without(self, operation: Operation, case: Case, reason: Fact, place: int) -> Row | None:
        """Store and return an n/a row at rank 0."""
        world = self.launch.world
        api = self.stage.backend.api if self.stage else ""
        row = row_without(operation, case, api, (ranks_of(self.opened, world), len(world.hosts)), reason)
        return _finish(self.launch, row, {}, place)

    def take(self, operation: Operation, case: Case, place: int, budget: Budget) -> Row | None:
        """Measure one case on all ranks and store its row. Return the row at rank 0, None elsewhere. Only rank 0's budget counts."""
        world, stage = self.launch.world, self.stage
        if stage is None:
            return self.without(operation, case, Text(f"{self.opened.name} is not open"), place)
        backend = stage.backend
        ready = prepare(operation, placed(case, operation, backend), stage, world)
        if isinstance(ready, CaseFailed):
            return self.without(operation, case, ready, place)
        on_host = not backend.virtual and ready.case.device == "cpu"
        instruments = None if backend.virtual else self.launch.instruments
        watched = measure_monitored(ready, world, budget, self.launch.canary if on_host else None, instruments)
        checked, mismatches, choices = self._verified(ready)
        release(ready, backend)
        moved = watched.evidence.get("moved", {}) if watched else {}
        evidence = self.opened.paths.evidence(world, choices, self.ceilings.machines, moved) if self.opened.paths else {}
        if watched is None or mismatches is None:
            return None
        row, arrays = make_row(ready, backend, watched, self.around(ready, backend, watched))
        self._keep(watched, place, ready.case.title())
        row = replace(row, **check_fields(checked, mismatches), evidence=row.evidence | evidence | wrong_evidence(mismatches))
        return _finish(self.launch, row, arrays, place)

    def _verified(self, ready: PreparedCase) -> tuple[int, Sequence[DataError] | None, list[dict[str, Any]]]:
        """Return (number of verified calls, wrong data at rank 0, NCCL's choices during them on this rank)."""
        calls, paths, backend = self.launch.request.check, self.opened.paths, self.opened.backend
        if not calls or backend is None:
            return 0, [], []
        if ready.operation.is_barrier:
            return (0, [], []) if backend.virtual else (*left_early(ready, self.launch.world, calls), [])
        if not paths:
            return calls, verify_case(ready, self.launch.world, calls), []
        with paths.witness(backend, ready.case) as choices:
            mismatches = verify_case(ready, self.launch.world, calls)
        return calls, mismatches, choices

    def _keep(self, watched: MonitoredMeasurement, place: int, title: str) -> None:
        """Store evidence outside the row: telemetry, and facts about stalls and about a link that the bytes did not use."""
        if self.launch.folder and watched.telemetry:
            self.launch.folder.event("telemetry", case=place, hosts=watched.telemetry)
        if watched.other_path:
            self.launch.note_once(f"other path of {self.opened.name}", watched.other_path)
        if disturbance := watched.disturbance(title, [member.host for member in self.launch.world.members]):
            self.launch.note(disturbance)

    def around(self, ready: PreparedCase, backend: Backend, watched: MonitoredMeasurement) -> RowContext:
        """Return the row's ceilings, flags and evidence."""
        world = self.launch.world
        crowded = bool(world.oversubscribed) and not backend.virtual and ready.case.device == "cpu"
        ceiling, bound = self.ceilings.of(ready.operation, ready.case, backend, ready.groups)
        slowdown = self.launch.request.slowed.of(ready.case)
        flags = {"slowed": slowdown is not None, "oversubscribed": crowded, "python_loop": ready.fell_back,
                 "pairs_at_once": ready.operation.pair and len(ready.groups) > 1}  # fmt: skip
        known = ready.evidence | ({"slowed": slowdown.text} if slowdown else {}) | watched.evidence
        evidence = {"libraries": dict(backend.versions()), "conditions": self.launch.conditions} | known
        on = (*backend.flags, *(flag for flag, true in flags.items() if true))
        withheld = crowded or watched.other_path is not None
        return RowContext(ranks_by_host(backend, world), ceiling, bound, withheld, on, evidence)


def _finish(launch: Launch, row: Row, arrays: dict[str, Any], place: int) -> Row | None:
    """Store and show a row, at rank 0."""
    if launch.folder is None:
        return None
    row = replace(row, evidence=row.evidence | _when(launch, row.evidence))
    with signals.deferred():  # otherwise a case could be stored without being counted
        try:
            row = launch.folder.append(row, arrays)
        finally:  # count the case even if storing it failed
            if launch.listener:
                launch.listener.row(row, place)
    return row


def _when(launch: Launch, evidence: dict[str, Any]) -> dict[str, Any]:
    """Return when the case ran, and how long it took.

    "at_s"    begin and end in seconds since the run's start
    "wall_s"  seconds in the timed loop, and all other seconds since the previous row was complete, with the time to store it
    """
    began_s, ended_s = launch.lap()
    measured = evidence.get("wall_s", {}).get("measured", 0.0)
    wall_s = {"wall_s": {"measured": measured, "harness": ended_s - began_s - measured}}
    start_s = launch.run_began_s
    return wall_s if start_s is None else wall_s | {"at_s": [round(began_s - start_s, 6), round(ended_s - start_s, 6)]}


# Checks before the first case: memory, and notes for the user.

_CGROUP = Path("/sys/fs/cgroup")


def check_traffic(sweep: Sweep | Sweeps, world: World) -> None:
    """Raise UsageError on all ranks if they have read different traffic files. Names of traffic contain checksums of the files."""
    if not any(operation.uneven for operation in sweep.operations):
        return
    read = world.allgather([one.traffic.name for one in sweep.each if one.traffic], "reading the traffic")
    other = next((rank for rank, names in enumerate(read) if names != read[0]), None)
    if other is not None:
        other_list, own_list = (", ".join(read[rank]) or "none" for rank in (other, 0))
        world.refuse(f"{world.members[other]} has other traffic ({other_list}) than rank 0 ({own_list}): copy the same file to every node")


def fitting_sizes(work: list[Work], world: World) -> tuple[list[Work], Fact | None]:
    """Return the cases below the smallest size that does not fit everywhere, and a fact if there is one. All ranks must call it."""
    own = min((case.size_bytes for _, case, _ in _misfits(work, world)), default=None)
    sizes = [size for size in world.allgather(own, "looking at the memory") if size is not None]
    kept = [item for item in work if item[1].size_bytes < min(sizes)] if sizes else work
    return (kept, LargeSizesLeftOut(min(sizes))) if sizes and kept else (work, None)


class LargeSizesLeftOut(Fact, frozen=True):
    """Default sizes from this one on do not fit the free memory of some host or GPU, and are not measured."""

    size_bytes: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"sizes from {format_size(self.size_bytes)} on are left out, because they do not fit the free memory: use --sizes for others"


def check_memory(work: list[Work], world: World) -> None:
    """Raise UsageError on all ranks if the largest case does not fit the memory of some host or GPU. Call it before measuring."""
    wrong = world.first_error(_too_large(work, world), "looking at the memory")
    if wrong:
        world.refuse(wrong)


def _misfits(work: list[Work], world: World) -> list[tuple[int, Case, str]]:
    """Return the cases that do not fit this host: (missing bytes, case, error text without the remedy)."""
    virtual = max([one.backend.ranks for _, _, one in work if one.backend and one.backend.virtual], default=0)
    here, host = virtual or len(world.on_host()), free_memory()
    missing: list[tuple[int, Case, str]] = []
    for operation, case_requested, one in work:
        if one.backend is None:
            continue
        case = placed(case_requested, operation, one.backend)
        ranks, device = ranks_of(one, world), one.backend.free_bytes(case)
        n = group_size(operation, case, ranks)
        need, free = bytes_needed(operation, case, n), device
        if free is None:
            need, free = bytes_on_host(operation, case, n, here, max(1, ranks // n)), host
        if need > free:
            subject = f"for its {plural(here, 'rank')}" if device is None else "on each GPU"
            missing.append((need - free, case, f"{format_bytes(need)} on {world.me.host} {subject}, but only {format_bytes(free)} is free"))
    return missing


def _too_large(work: list[Work], world: World) -> str | None:
    """Return the error text for the case that exceeds this host's free memory the most, or None if all fit."""
    missing = _misfits(work, world)
    if not missing:
        return None
    _, case, why = max(missing, key=lambda one: one[0])
    smallest = min(misfit.size_bytes for _, misfit, _ in missing)
    # the largest size that fits with every requested operation and type
    fits = max((each.size_bytes for _, each, one in work if one.backend and each.size_bytes < smallest), default=0)
    remedy = f"the largest of these sizes that fits is {format_size(fits)}" if fits else "use smaller sizes"
    return f"{case.title()} needs {why}: {remedy}"


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Return the bytes of free memory on this host, or in the container of this process if that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return free
    return min(free, max(0, limit - used))


class CoresShared(Fact, frozen=True):
    """A host has more ranks than cores. Times then include the wait for a core."""

    host: str
    ranks: int
    cores: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return (
            f"{self.ranks} ranks share {plural(self.cores, 'core')} on {self.host}: times include the wait for a core, so no percentage is "
            f"shown; start at most {plural(self.cores, 'rank')} there (or use Open MPI: its ranks yield, but MPICH spins and takes "
            "10 ms for 8 bytes)"
        )


class IdleRank(Fact, frozen=True):
    """One rank does not take part: point-to-point operations use pairs, and the number of ranks is odd."""

    ranks: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"point-to-point operations use pairs: the last of {self.ranks} ranks is idle"


def notes(launch: Launch, opened: list[OpenBackend]) -> Iterator[Fact]:
    """Yield the notes for the user before the first row."""
    request, world = launch.request, launch.world
    for one in opened:
        if one.reason:
            yield BackendNotMeasured(one.name, one.reason)
    yield from world.info.advice
    crowded = world.oversubscribed
    if crowded and any(one.backend and not one.backend.virtual and "cpu" in one.backend.devices for one in opened):
        yield CoresShared(crowded, len(world.on_host(crowded)), world.cores_on(crowded))
    for note in (rounding_note(request.sweep), tuning_note(request.sweep, [one.name for one in opened])):
        if note:
            yield note
    if any(operation.pair for operation in request.sweep.operations) and world.size % 2 and world.size > 1:
        yield IdleRank(world.size)


# One launch: open the backends, measure every case on all ranks together, store each row at once.


def run(request: Request, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
    """Measure the request on all ranks of `world` and return the exit code, the same on all ranks. Raises CollbenchError.

    `ended` receives the exit code before the libraries are closed, so that a crash there does not affect the results.
    """
    launch, waiting = Launch.begun(request, world, listener), list[Fact]()
    check_traffic(request.sweep, world)
    launch.status(f"opening {', '.join(request.backends)} on {plural(world.size, 'rank')}…")
    opened = open_backends(request, world, waiting.append)
    for one in opened:
        if one.backend:
            request.sweep.check_ranks(one.backend.ranks)
    work = [(operations()[case.operation], case, one) for one in opened for case in request.sweep.cases(one.name, ranks_of(one, world))]
    request.slowed.check([case for _, case, _ in work], max(ranks_of(one, world) for one in opened))
    if any(sweep.sparse for sweep in request.sweep.each):
        work, left_out = fitting_sizes(work, world)
        waiting += [left_out] if left_out else []
    check_memory(work, world)
    of_hosts = software_of_hosts(world, opened)
    waiting += different_software(of_hosts)
    stored = _folder(launch, opened, work, of_hosts)
    playing = RunContext(launch, opened, listener, ended, lambda: _let_go(launch, opened, stored))
    return run_with_cleanup(playing, lambda: _run_all(launch, opened, work, stored, waiting))


def _run_all(launch: Launch, opened: list[OpenBackend], work: list[Work], stored: Stored, waiting: list[Fact]) -> int:
    """Measure the cases that are not stored yet. waiting: facts for the listener."""
    world = launch.world
    left = [place for place in range(len(work)) if place not in stored.done]
    ceilings = Ceilings(launch.request, world, status=launch.status)
    if left:
        _look_around(launch, stored, ceilings, [work[place] for place in left])
    else:
        launch.folder = stored.complete(exit_code(list(stored.rows.values())))
    if launch.listener:
        _begin(launch.listener, launch.world, opened, work, stored)
    for fact in (*waiting, *stored.notes(len(work)), *notes(launch, opened)):
        launch.note(fact)
    rows = [*stored.rows.values(), *(_measured(launch, work, ceilings, left) if left else ())]
    code = world.broadcast(exit_code(rows), "ending")
    _end(launch, opened, rows, code)
    return code


def _look_around(launch: Launch, stored: Stored, ceilings: Ceilings, work: list[Work]) -> None:
    """Probe the hosts and measure their references. Raises UsageError, on all ranks, if a resumed run had other machines."""
    backends = list({one.name: one.backend for _, _, one in work if one.backend}.values())
    ceilings.prepare(backends, [(operation, case) for operation, case, one in work if one.backend])
    at_rank_0(launch.world, lambda: stored.go_on(ceilings.topology()), "comparing the machines")
    launch.folder = stored.folder


def _begin(listener: ProgressListener, world: World, opened: list[OpenBackend], work: list[Work], stored: Stored) -> None:
    """Pass the cases to measure, and those already stored, to the listener."""
    ranks = max(ranks_of(one, world) for one in opened)
    where = str(stored.folder.path) if stored.folder else ""
    cases = [placed(case, operation, one.backend) if one.backend else case for operation, case, one in work]
    listener.begin(cases, ranks, len(world.hosts), member_places(world, opened), where)
    for place, row in stored.rows.items():
        listener.row(row, place)


def _measured(launch: Launch, work: list[Work], ceilings: Ceilings, left: list[int]) -> list[Row]:
    """Return the rows of the remaining cases at rank 0, measured in shuffled order."""
    launch.canary = state_probe(launch.world)
    launch.instruments = _instruments(launch, work)
    launch.conditions = describe_conditions(launch.world)
    try:
        order = shuffled(len(left), launch.order_seed, launch.request.launch_index)
        return list(rows_of(launch, work, ceilings, [left[turn] for turn in order]))
    finally:
        if launch.instruments:
            launch.instruments.close()


def _end(launch: Launch, opened: list[OpenBackend], rows: list[Row], code: int) -> None:
    """Complete the run folder."""
    launch.remark()
    if launch.folder:
        launch.folder.finish(exit_code=code, **_paths(opened))


def _let_go(launch: Launch, opened: list[OpenBackend], stored: Stored) -> None:
    """Close a run that ends early. The folder of a run that was not yet resumed stays unchanged."""
    for one in opened:
        if one.paths:
            one.paths.close()
    if stored.folder and not launch.folder:
        stored.folder.give_up()


def _instruments(launch: Launch, work: list[Work]) -> Instruments | None:
    """Return the instruments that read this host's counters around each case; None if the user turned evidence off."""
    if launch.request.evidence == "off":
        return None
    cuda = any(one.backend and case.device == "cuda" for _, case, one in work)
    return Instruments.ready(launch.world, cuda, launch.request.telemetry_hz)


def _paths(opened: list[OpenBackend]) -> dict[str, Any]:
    """Return the facts in NCCL's logs of the launch, by backend; empty if no backend uses NCCL."""
    facts = {one.name: one.paths.facts for one in opened if one.paths and one.paths.facts}
    return {"nccl_log": facts} if facts else {}


def shuffled(cases: int, order_seed: int, launch_index: int) -> list[int]:
    """Return the order in which the cases are measured. It differs between launches of a seed, so that no size is always last."""
    order = list(range(cases))
    random.Random(f"{order_seed}, launch {launch_index}").shuffle(order)
    return order


def exit_code(rows: list[Row]) -> int:
    """Return the exit code: 4 when data was wrong, 2 when every case is n/a, else 0."""
    if any(row.wrong for row in rows):
        return FAILED
    return FINE if any(row.na is None for row in rows) else USAGE


def _folder(launch: Launch, opened: list[OpenBackend], work: list[Work], of_hosts: list[dict[str, Any]]) -> Stored:
    """Return the run folder at rank 0, new or resumed. An error there ends every rank in the same way."""
    request, world = launch.request, launch.world

    def opening() -> Stored:
        info = {**describe_run(request, world, opened, of_hosts), "order_seed": launch.order_seed}
        return open_folder(request, info, planned(work, world))

    stored = at_rank_0(world, opening, "opening the run folder") or Stored(resumed=request.resume is not None)
    stored.done = frozenset(world.broadcast(sorted(stored.rows), "looking at what is stored"))
    launch.folder = None if stored.resumed else stored.folder
    if stored.folder:
        launch.keeps(stored.folder, len(work))
    return stored
