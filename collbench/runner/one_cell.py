"""One cell from allocation to row, on all ranks in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from collbench.backends.backend import Backend, Tuning
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.errors import CollbenchError
from collbench.operations.cell import Cell
from collbench.operations.check import Mismatch
from collbench.operations.layout import slots_checked, slots_for
from collbench.operations.operation import Operation
from collbench.operations.program import Program, joined
from collbench.timing.budget import Budget
from collbench.timing.loop import CallFailed, Loop, Timed, Unfinished
from collbench.timing.protocol import Measured, measure, schedule
from collbench.world.world import World

T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """A cell that every rank can run: its groups, this process's part of them, and the loop over its program.

    checking: the loop that is verified: `loop`, but where one turn of that is several iterations.
    synchronised: whether the ranks meet before each sample, not only before the first of a look.
    """

    operation: Operation
    cell: Cell
    groups: tuple[tuple[int, ...], ...]
    mine: tuple[Group, ...]
    buffers: tuple[AnyBuffers, ...]
    loop: Loop
    checking: Loop
    synchronised: bool = True

    @property
    def timed(self) -> list[int]:
        """The ranks whose time counts: of a pair the first, else all."""
        return [group[0] for group in self.groups] if self.operation.pair else list(self.groups[0])

    @property
    def evidence(self) -> dict[str, Any]:
        """What this process can say of the cell's circumstances."""
        pages = {buffers.page_bytes for buffers in self.buffers if buffers.page_bytes}
        return {"page_bytes": max(pages, default=None), "loop": "native" if self.loop.native else "python",
                "synchronised": self.synchronised}  # fmt: skip

    @property
    def fell_back(self) -> bool:
        """Whether Python times what the C loop could have timed, had it been built."""
        return not self.loop.native and self.loop.could_be_native


def groups_of(operation: Operation, n: int) -> tuple[tuple[int, ...], ...]:
    """All n ranks, or for pairs (i, i + n/2): across hosts with the usual block placement. The odd rank out rests."""
    if not operation.pair:
        return (tuple(range(n)),)
    return tuple((i, i + n // 2) for i in range(n // 2))


def make_groups(backend: Backend, wanted: Sequence[Operation], world: World) -> dict[tuple[int, ...], Group | None]:
    """The groups that these operations need, and that of all ranks, made once by all ranks in one order."""
    needed = [ranks for operation in wanted for ranks in groups_of(operation, backend.ranks)]
    needed.append(tuple(range(backend.ranks)))
    with world.watchdog.phase(f"making groups on {backend.name}"):
        return {ranks: backend.group(ranks) for ranks in dict.fromkeys(needed)}


@dataclass(frozen=True)
class Stage:
    """What all cells of a backend have in common: the backend, its groups by their ranks, and how ranks meet before a sample."""

    backend: Backend
    members: dict[tuple[int, ...], Group | None]
    sync: Program | None


def prepare(operation: Operation, cell: Cell, stage: Stage, world: World) -> Ready | str:
    """Allocates, binds and tries once on all ranks. A reason of any rank is the answer on all of them.

    A cell with a tuning gets groups of its own, made here and to be released with the cell.
    """
    backend, groups = stage.backend, groups_of(operation, stage.backend.ranks)
    mine = _tuned(cell, backend, groups) if _is_tuned(cell) else tuple(_members(stage, groups))
    reason = world.first(mine if isinstance(mine, str) else None, f"{cell.title()}: making its groups")
    if reason or isinstance(mine, str):
        return reason or str(mine)
    ready = _bound(operation, cell, stage, mine, world)
    if isinstance(ready, str):
        _release(cell, backend, mine)
    return ready


def _bound(operation: Operation, cell: Cell, stage: Stage, mine: tuple[Group, ...], world: World) -> Ready | str:
    """Nobody binds before all have memory: a call that is captured into a graph connects the ranks, and waits for those that fail."""
    buffers = _try(lambda: _filled(operation, cell, stage.backend, mine))
    reason = world.first(buffers if isinstance(buffers, str) else None, f"{cell.title()}: allocating")
    if reason or isinstance(buffers, str):
        return reason or str(buffers)
    program = _try(lambda: _program(operation, cell, stage.backend, mine, buffers))
    reason = world.first(program if isinstance(program, str) else None, f"{cell.title()}: binding its calls")
    if reason or isinstance(program, str):
        return reason or str(program)
    ready = _looped(operation, cell, stage, (mine, buffers, program), world)
    return world.first(_trial(ready, world), f"{cell.title()}: the first call") or ready


def _is_tuned(cell: Cell) -> bool:
    return bool(cell.algorithm or cell.protocol)


def _members(stage: Stage, groups: Sequence[tuple[int, ...]]) -> Iterator[Group]:
    return (group for ranks in groups if (group := stage.members[ranks]))


def _tuned(cell: Cell, backend: Backend, groups: Sequence[tuple[int, ...]]) -> tuple[Group, ...] | str:
    """This process's groups, made under the cell's tuning; or why the library refuses it. All ranks call."""
    tuning = Tuning(cell.algorithm, cell.protocol)
    made = _try(lambda: [backend.group(ranks, tuning) for ranks in groups])
    return made if isinstance(made, str) else tuple(group for group in made if group)


def _looped(
    operation: Operation, cell: Cell, stage: Stage, made: tuple[tuple[Group, ...], tuple[AnyBuffers, ...], Program], world: World
) -> Ready:
    """The loops over a program."""
    (mine, buffers, program), groups = made, groups_of(operation, stage.backend.ranks)
    each = cell.mode != "pipelined" and not (operation.paces_itself and len(groups) == 1)  # several pairs are to run at once
    before, meeting = (stage.sync, None) if each else (None, stage.sync)
    timed = Timed(program, before, stage.backend.clock(), world.watchdog.progress, meeting)
    loop = Loop(timed)
    checking = Loop(replace(timed, program=program.once)) if program.once else loop
    return Ready(operation, cell, groups, mine, buffers, loop, checking, synchronised=each)


def release(ready: Ready, backend: Backend) -> None:
    """Frees the groups that were made for this cell alone."""
    _release(ready.cell, backend, ready.mine)


def _release(cell: Cell, backend: Backend, mine: Sequence[Group]) -> None:
    for group in mine if _is_tuned(cell) else ():
        backend.release(group)


@contextmanager
def _phase(ready: Ready, world: World, what: str) -> Iterator[None]:
    """Under the watchdog's eyes; work that does not end is told with its cell."""
    try:
        with world.watchdog.phase(f"{ready.cell.title()}: {what}"):
            yield
    except Unfinished as error:
        raise Unfinished(f"{ready.cell.title()}: {error}") from None


def _trial(ready: Ready, world: World) -> str | None:
    """One call that is not timed: what the library refuses at once, it cannot do. Only the library knows every such case."""
    try:
        with _phase(ready, world, "the first call"):
            ready.checking.run(1, slot=0)
    except CallFailed as error:
        return str(error)
    return None


def _filled(operation: Operation, cell: Cell, backend: Backend, mine: tuple[Group, ...]) -> tuple[AnyBuffers, ...]:
    slots = slots_for(cell)
    buffers = tuple(backend.allocate(operation, cell, group, slots) for group in mine)
    for each in buffers:
        for slot in range(slots):
            each.fill(slot, for_check=False)
    return buffers


def _program(operation: Operation, cell: Cell, backend: Backend, mine: tuple[Group, ...], buffers: tuple[AnyBuffers, ...]) -> Program:
    programs = [backend.bind(operation, cell, group, part) for group, part in zip(mine, buffers, strict=True)]
    return joined(programs) if programs else Program(((),))


def _try(make: Callable[[], T]) -> T | str:
    try:
        return make()
    except (CollbenchError, AttributeError) as error:
        return str(error)
    except MemoryError as error:
        return str(error) or "not enough memory"


def time_cell(ready: Ready, world: World, budget: Budget) -> Measured | None:
    """Runs the protocol on all ranks; the result is at rank 0."""
    cell, each = ready.cell, ready.loop.iterations
    plan = schedule(budget, cell.size_bytes, cell.mode, ready.timed, iterations=each) if world.rank == 0 else None
    with _phase(ready, world, "measuring"), world.patient(budget.max_time_s):
        return measure(ready.loop, world, plan, cell.title())


def verify_cell(ready: Ready, world: World, calls: int) -> list[Mismatch] | None:
    """Refills the timed buffers, runs the timed program once more per slot and compares; at rank 0 what was found wrong."""
    found: list[dict[str, Any]] = []
    with _phase(ready, world, "verifying"):
        for _ in range(calls):
            for slot in slots_checked(ready.cell):
                for buffers in ready.buffers:
                    buffers.fill(slot, for_check=True)
                ready.checking.run(1, slot=slot)
                found += _mismatches(ready, slot)
    everyone = world.gather(found, f"{ready.cell.title()}: verifying")
    return None if everyone is None else [Mismatch(**one) for part in everyone for one in part]


def _mismatches(ready: Ready, slot: int) -> list[dict[str, Any]]:
    """What this process's ranks received wrong in a slot; ranks are told by their rank in the job."""
    found: list[dict[str, Any]] = []
    for group, buffers in zip(ready.mine, ready.buffers, strict=True):
        wrong = [mismatch for mismatch in buffers.check(slot) if mismatch]
        found += [replace(mismatch, rank=group.ranks[mismatch.rank]).as_json() for mismatch in wrong]
    return found
