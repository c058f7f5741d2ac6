"""One launch: opens the backends, measures every cell on all ranks in step, writes each row as soon as it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

from collbench.backends.backend import Backend, Group, can_do
from collbench.backends.memory import bytes_needed
from collbench.errors import FAILED, FINE, USAGE, CollbenchError, UsageError
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.operations.plan import rounding_note
from collbench.operations.program import Program
from collbench.operations.registry import operations
from collbench.results.folder import RunFolder
from collbench.results.record import Row
from collbench.runner.ceilings import Ceilings
from collbench.runner.describe import describe_run, member_places
from collbench.runner.one_cell import Ready, Stage, groups_of, prepare, time_cell, verify_cell
from collbench.runner.opening import Opened, close_backends, open_backends
from collbench.runner.request import Request
from collbench.runner.rows import Circumstances, check_fields, make_row, row_without
from collbench.timing.sync import HostSync, host_sync
from collbench.units import format_bytes, format_size
from collbench.world.world import World

Work = tuple[Operation, Cell, Opened]


class Listener(Protocol):
    """Who is told what happens, at rank 0; the room report has them."""

    def begin(self, cells: list[Cell], ranks: int, nodes: int, rank_map: list[dict[str, Any]], folder: str) -> None:
        """Everything that will be measured."""
        ...

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """A cell begins."""
        ...

    def row(self, row: Row) -> None:
        """A cell has ended."""
        ...

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        ...


@dataclass
class Launch:
    """The state of one launch, the same on all ranks but for the folder and the listener, which rank 0 alone has."""

    request: Request
    world: World
    listener: Listener | None
    folder: RunFolder | None = None
    sync: HostSync | None = None

    def note(self, sentence: str) -> None:
        """Says something once, and keeps it in events.jsonl."""
        if self.listener:
            self.listener.note(sentence)
        if self.folder:
            self.folder.event("note", text=sentence)


def run(request: Request, world: World, listener: Listener | None, ended: Callable[[int], None]) -> int:
    """Measures the request on all ranks of `world`. Returns the exit code, the same on all ranks. Raises CollbenchError.

    `ended` is told the code before the libraries are left: mpiexec may end a rank that is still leaving.
    """
    launch = Launch(request, world, listener)
    waiting: list[str] = []
    opened = open_backends(request, world, waiting.append)
    for one in opened:
        if one.backend:
            request.sweep.check_ranks(one.backend.ranks)
    work = [(operations()[cell.operation], cell, one) for one in opened for cell in request.sweep.cells(one.name, _ranks(one, world))]
    _check_memory(work, world)
    launch.folder = _create_folder(request, world, opened)
    try:
        code = _run_all(launch, opened, work, waiting)
    except BaseException as error:
        if launch.folder:
            with contextlib.suppress(CollbenchError):
                launch.folder.event("abort", text=str(error))
                launch.folder.finish(exit_code=getattr(error, "exit_code", FAILED))
        raise
    ended(code)
    close_backends(opened, world)
    if launch.sync:
        launch.sync.close()
    return code


def _run_all(launch: Launch, opened: list[Opened], work: list[Work], notes: list[str]) -> int:
    request, world = launch.request, launch.world
    backends = [one.backend for one in opened if one.backend]
    ceilings = Ceilings(request, world)
    ceilings.prepare(backends, [(operation, cell) for operation, cell, one in work if one.backend])
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if launch.listener:
        ranks = max(_ranks(one, world) for one in opened)
        where = str(launch.folder.path) if launch.folder else ""
        cells = [_placed(cell, operation, one.backend) if one.backend else cell for operation, cell, one in work]
        launch.listener.begin(cells, ranks, len(world.hosts), member_places(world), where)
    for sentence in (*notes, *_notes(launch, opened)):
        launch.note(sentence)
    rows = list(_rows(launch, work, ceilings))
    code = world.decide(exit_code(rows), "ending")
    if launch.folder:
        launch.folder.finish(exit_code=code)
    return code


def exit_code(rows: list[Row]) -> int:
    """4 when data was wrong, 2 when every cell is n/a, else 0."""
    if any(row.wrong for row in rows):
        return FAILED
    return FINE if any(row.na is None for row in rows) else USAGE


def _rows(launch: Launch, work: list[Work], ceilings: Ceilings) -> Iterator[Row]:
    """All rows, in the order of the work; at ranks other than 0 nothing is yielded, but all take part."""
    done = 0
    for _, part in groupby(work, key=lambda item: item[2].name):
        items = list(part)
        yield from _backend_rows(launch, items, ceilings, done, len(work))
        done += len(items)


def _backend_rows(launch: Launch, items: list[Work], ceilings: Ceilings, done: int, total: int) -> Iterator[Row]:
    opened = items[0][2]
    reasons = _reasons(items, launch.world)
    members = _members(items, opened.backend, launch.world)
    stage = Stage(opened.backend, members, _sync(launch, opened.backend, members)) if opened.backend else None
    turn = Turn(launch, opened, ceilings, stage)
    for index, ((operation, cell, _), reason) in enumerate(zip(items, reasons, strict=True)):
        if launch.listener:
            launch.listener.progress(cell.title(), done + index, total, None)
        row = turn.without(operation, cell, reason) if reason else turn.take(operation, cell)
        if row:
            yield row


def _reasons(items: list[Work], world: World) -> list[str | None]:
    """Per cell why it cannot be measured: the first reason that any rank has."""
    mine = [one.reason or can_do(one.backend, operation, _placed(cell, operation, one.backend)) if one.backend else one.reason
            for operation, cell, one in items]  # fmt: skip
    everyone = world.agree(mine, f"asking {items[0][2].name} what it can do")
    return [next((reason for reason in column if reason), None) for column in zip(*everyone, strict=True)]


def _placed(cell: Cell, operation: Operation, backend: Backend) -> Cell:
    """Out of place where the library has it, unless the user chose."""
    only = operation.knows_in_place_only(backend.api) and operation.name not in backend.steps
    return cell if cell.in_place is not None else cell.placed(only)


def _members(items: list[Work], backend: Backend | None, world: World) -> dict[tuple[int, ...], Group | None]:
    """The groups that the cells need, made once by all ranks in one order."""
    if backend is None:
        return {}
    needed = [ranks for operation, _, _ in items for ranks in groups_of(operation, backend.ranks)]
    needed.append(tuple(range(backend.ranks)))
    with world.watchdog.phase(f"making groups on {backend.name}"):
        return {ranks: backend.group(ranks) for ranks in dict.fromkeys(needed)}


def _sync(launch: Launch, backend: Backend | None, members: dict[tuple[int, ...], Group | None]) -> Program | None:
    """How the ranks of this backend meet before a sample: its own way, else through shared memory and sockets."""
    if backend is None:
        return None
    whole = members[tuple(range(backend.ranks))]
    program = backend.sync(whole) if whole else None
    if program is None and launch.world.size > 1 and backend.ranks == launch.world.size:
        launch.sync = launch.sync or host_sync(launch.world)
        program = launch.sync.program() if launch.sync else None
    return program


@dataclass
class Turn:
    """One backend's turn: what its cells have in common."""

    launch: Launch
    opened: Opened
    ceilings: Ceilings
    stage: Stage | None

    def without(self, operation: Operation, cell: Cell, reason: str) -> Row | None:
        """An n/a row, stored; at rank 0."""
        world = self.launch.world
        api = self.stage.backend.api if self.stage else ""
        row = row_without(operation, cell, api, (_ranks(self.opened, world), len(world.hosts)), reason)
        return _finish(self.launch, row, {})

    def take(self, operation: Operation, cell: Cell) -> Row | None:
        """Measures one cell on all ranks and stores its row; returns it at rank 0."""
        request, world, stage = self.launch.request, self.launch.world, self.stage
        if stage is None:
            return self.without(operation, cell, f"{self.opened.name} is not open")
        backend = stage.backend
        ready = prepare(operation, _placed(cell, operation, backend), stage, world)
        if isinstance(ready, str):
            return self.without(operation, cell, ready)
        measured = time_cell(ready, world, request.budget)
        mismatches = verify_cell(ready, world, request.check) if request.check else []
        if measured is None or mismatches is None:
            return None
        row, arrays = make_row(ready, backend, measured, self.around(ready, backend))
        return _finish(self.launch, replace(row, **check_fields(request.check, mismatches)), arrays)

    def around(self, ready: Ready, backend: Backend) -> Circumstances:
        """The row's ceilings, flags and evidence."""
        world = self.launch.world
        crowded = bool(world.oversubscribed) and backend.own_ceiling is None
        ceiling, bound = self.ceilings.of(ready.operation, ready.cell, backend, ready.groups)
        flags = {
            "oversubscribed": crowded, "python_loop": ready.fell_back, "simulated": backend.name == "simulated",
            "pairs_at_once": len(ready.groups) > 1,
        }  # fmt: skip
        evidence = ready.evidence | {"libraries": dict(backend.versions())}
        return Circumstances(len(world.hosts), ceiling, bound, crowded, tuple(flag for flag, on in flags.items() if on), evidence)


def _finish(launch: Launch, row: Row, arrays: dict[str, Any]) -> Row | None:
    """Stores and shows a row, at rank 0."""
    if launch.folder is None:
        return None
    row = launch.folder.append(row, arrays)
    if launch.listener:
        launch.listener.row(row)
    return row


def _create_folder(request: Request, world: World, opened: list[Opened]) -> RunFolder | None:
    """The run folder at rank 0; what goes wrong there ends every rank the same way."""
    folder, wrong = None, None
    if world.rank == 0:
        try:
            folder = RunFolder.create(request.out, request.command, describe_run(request, world, opened))
        except UsageError as error:
            wrong = str(error)
    wrong = world.decide(wrong, "creating the run folder")
    if wrong:
        raise UsageError(wrong)
    return folder


def _check_memory(work: list[Work], world: World) -> None:
    """Raises UsageError on all ranks when the largest cell does not fit some host, before anything is measured."""
    import psutil

    virtual = max([one.backend.ranks for _, _, one in work if one.backend and one.backend.ranks > world.size], default=0)
    here = virtual or len(world.on_host())
    needs = [(bytes_needed(operation, cell, _ranks(one, world)), cell) for operation, cell, one in work if one.backend]
    most, cell = max(needs, key=lambda need: need[0], default=(0, None))
    free = psutil.virtual_memory().available
    wrong = None
    if cell and most * here > free:
        wrong = (
            f"{cell.title()} needs {format_bytes(most * here)} on {world.me.host} for {here} ranks and {format_bytes(free)} is free: "
            f"choose sizes below {format_size(cell.size_bytes)}, or fewer ranks"
        )
    wrong = world.first(wrong, "looking at the memory")
    if wrong:
        raise UsageError(wrong)


def _notes(launch: Launch, opened: list[Opened]) -> Iterator[str]:
    """What a user should know before the first row."""
    request, world = launch.request, launch.world
    for one in opened:
        if one.reason:
            yield f"{one.name} is not measured: {one.reason}"
    if world.info.advice:
        yield world.info.advice
    crowded = world.oversubscribed
    if crowded and any(one.backend and one.backend.own_ceiling is None for one in opened):
        ranks, cores = len(world.on_host(crowded)), world.cores_on(crowded)
        yield (
            f"{ranks} ranks share {cores} {'core' if cores == 1 else 'cores'} on {crowded}: times are those of waiting for a core, "
            f"so no percentage is given; start at most {cores} there (or use Open MPI, which yields: MPICH spins, and 8 bytes take 10 ms)"
        )
    rounded = rounding_note(request.sweep)
    if rounded:
        yield rounded
    if any(operation.pair for operation in request.sweep.operations) and world.size % 2 and world.size > 1:
        yield f"point-to-point uses pairs: of {world.size} ranks the last one rests"


def _ranks(opened: Opened, world: World) -> int:
    return opened.backend.ranks if opened.backend else world.size
