"""One backend's turn: its cells one after the other, each measured on all ranks in step and stored at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from collbench.backends.backend import Backend, can_do
from collbench.backends.group import Group
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.operations.program import Program
from collbench.results.record import Row
from collbench.runner.ceilings import Ceilings
from collbench.runner.launch import Launch, Work, ranks_of
from collbench.runner.one_cell import Ready, Stage, groups_of, prepare, time_cell, verify_cell
from collbench.runner.opening import Opened
from collbench.runner.rows import Circumstances, check_fields, make_row, row_without
from collbench.timing.sync import host_sync
from collbench.world.world import World


def rows_of(launch: Launch, work: list[Work], ceilings: Ceilings) -> Iterator[Row]:
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
    mine = [one.reason or can_do(one.backend, operation, placed(cell, operation, one.backend)) if one.backend else one.reason
            for operation, cell, one in items]  # fmt: skip
    everyone = world.agree(mine, f"asking {items[0][2].name} what it can do")
    return [next((reason for reason in column if reason), None) for column in zip(*everyone, strict=True)]


def placed(cell: Cell, operation: Operation, backend: Backend) -> Cell:
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
        row = row_without(operation, cell, api, (ranks_of(self.opened, world), len(world.hosts)), reason)
        return _finish(self.launch, row, {})

    def take(self, operation: Operation, cell: Cell) -> Row | None:
        """Measures one cell on all ranks and stores its row; returns it at rank 0."""
        request, world, stage = self.launch.request, self.launch.world, self.stage
        if stage is None:
            return self.without(operation, cell, f"{self.opened.name} is not open")
        backend = stage.backend
        ready = prepare(operation, placed(cell, operation, backend), stage, world)
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
