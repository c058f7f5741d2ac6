"""One launch: opens the backends, measures every cell on all ranks in step, writes each row as soon as it is there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE
from collbench.measure.canary import canary
from collbench.measure.ceilings import Ceilings
from collbench.measure.describe import describe_conditions, describe_run, member_places, software_of_hosts
from collbench.measure.guarded import Playing, different_software, guarded
from collbench.measure.instruments import Instruments
from collbench.measure.launch import Launch, Listener, Work, at_rank_0, ranks_of
from collbench.measure.opening import Opened, open_backends
from collbench.measure.request import Request
from collbench.measure.resume import Stored, open_folder
from collbench.measure.same_run import planned
from collbench.measure.tasks.checks import check_memory, check_traffic, notes
from collbench.measure.tasks.turn import placed, rows_of
from collbench.operations.registry import operations
from collbench.results.row import Row


def run(request: Request, world: World, listener: Listener | None, ended: Callable[[int], None]) -> int:
    """Measures the request on all ranks of `world`. Returns the exit code, the same on all ranks. Raises CollbenchError.

    `ended` is told the code before the libraries are left: one that crashes there changes nothing of what was measured.
    """
    launch, waiting = Launch.begun(request, world, listener), list[str]()
    check_traffic(request.sweep, world)
    opened = open_backends(request, world, waiting.append)
    for one in opened:
        if one.backend:
            request.sweep.check_ranks(one.backend.ranks)
    work = [(operations()[cell.operation], cell, one) for one in opened for cell in request.sweep.cells(one.name, ranks_of(one, world))]
    request.slowed.check([cell for _, cell, _ in work], max(ranks_of(one, world) for one in opened))
    check_memory(work, world)
    of_hosts = software_of_hosts(world, opened)
    waiting += different_software(of_hosts)
    stored = _folder(launch, opened, work, of_hosts)
    playing = Playing(launch, opened, listener, ended, lambda: _let_go(launch, opened, stored))
    return guarded(playing, lambda: _run_all(launch, opened, work, stored, waiting))


def _run_all(launch: Launch, opened: list[Opened], work: list[Work], stored: Stored, waiting: list[str]) -> int:
    """Measures what is not stored yet. `waiting`: sentences for the listener."""
    world = launch.world
    left = [place for place in range(len(work)) if place not in stored.done]
    ceilings = Ceilings(launch.request, world)
    if left:
        _look_around(launch, stored, ceilings, [work[place] for place in left])
    else:
        launch.folder = stored.complete(exit_code(list(stored.rows.values())))
    if launch.listener:
        _begin(launch.listener, launch.world, opened, work, stored)
    for sentence in (*waiting, *stored.notes(len(work)), *notes(launch, opened)):
        launch.note(sentence)
    rows = [*stored.rows.values(), *(_measured(launch, work, ceilings, left) if left else ())]
    code = world.decide(exit_code(rows), "ending")
    _end(launch, opened, rows, code)
    return code


def _look_around(launch: Launch, stored: Stored, ceilings: Ceilings, work: list[Work]) -> None:
    """Probes the hosts and measures their references. Raises UsageError, on all ranks, where a resumed run had other machines."""
    backends = list({one.name: one.backend for _, _, one in work if one.backend}.values())
    ceilings.prepare(backends, [(operation, cell) for operation, cell, one in work if one.backend])
    at_rank_0(launch.world, lambda: stored.go_on(ceilings.topology()), "comparing the machines")
    launch.folder = stored.folder


def _begin(listener: Listener, world: World, opened: list[Opened], work: list[Work], stored: Stored) -> None:
    """Tells the listener what there is to measure, and what is there already."""
    ranks = max(ranks_of(one, world) for one in opened)
    where = str(stored.folder.path) if stored.folder else ""
    cells = [placed(cell, operation, one.backend) if one.backend else cell for operation, cell, one in work]
    listener.begin(cells, ranks, len(world.hosts), member_places(world, opened), where)
    for place, row in stored.rows.items():
        listener.row(row, place)


def _measured(launch: Launch, work: list[Work], ceilings: Ceilings, left: list[int]) -> list[Row]:
    """The rows of the cells that are left, measured in shuffled order; at rank 0."""
    launch.canary = canary(launch.world)
    launch.instruments = _instruments(launch, work)
    launch.conditions = describe_conditions(launch.world)
    try:
        order = shuffled(len(left), launch.order_seed, launch.request.launch_index)
        return list(rows_of(launch, work, ceilings, [left[turn] for turn in order]))
    finally:
        if launch.instruments:
            launch.instruments.close()


def _end(launch: Launch, opened: list[Opened], rows: list[Row], code: int) -> None:
    """Complete the folder."""
    launch.remark()
    if launch.folder:
        launch.folder.finish(exit_code=code, **_paths(opened))


def _let_go(launch: Launch, opened: list[Opened], stored: Stored) -> None:
    """Of a run that ends early; a folder that is not gone on with stays as it was."""
    for one in opened:
        if one.paths:
            one.paths.close()
    if stored.folder and not launch.folder:
        stored.folder.give_up()


def _instruments(launch: Launch, work: list[Work]) -> Instruments | None:
    """What reads this host's counters around each cell, unless the user wants none of it."""
    if launch.request.evidence == "off":
        return None
    cuda = any(one.backend and cell.device == "cuda" for _, cell, one in work)
    return Instruments.ready(launch.world, cuda, launch.request.telemetry_hz)


def _paths(opened: list[Opened]) -> dict[str, Any]:
    """What NCCL's logs say of the launch, by backend; nothing where none is measured."""
    facts = {one.name: one.paths.facts for one in opened if one.paths and one.paths.facts}
    return {"nccl_log": facts} if facts else {}


def shuffled(cells: int, order_seed: int, launch_index: int) -> list[int]:
    """The order in which the cells are measured: another one in each launch of a seed, so that no size is always the last."""
    order = list(range(cells))
    random.Random(f"{order_seed}, launch {launch_index}").shuffle(order)
    return order


def exit_code(rows: list[Row]) -> int:
    """4 when data was wrong, 2 when every cell is n/a, else 0."""
    if any(row.wrong for row in rows):
        return FAILED
    return FINE if any(row.na is None for row in rows) else USAGE


def _folder(launch: Launch, opened: list[Opened], work: list[Work], of_hosts: list[dict[str, Any]]) -> Stored:
    """The run folder at rank 0, new or resumed; what goes wrong there ends every rank the same way."""
    request, world = launch.request, launch.world

    def opening() -> Stored:
        info = {**describe_run(request, world, opened, of_hosts), "order_seed": launch.order_seed}
        return open_folder(request, info, planned(work, world))

    stored = at_rank_0(world, opening, "opening the run folder") or Stored(resumed=request.resume is not None)
    stored.done = frozenset(world.decide(sorted(stored.rows), "looking at what is stored"))
    launch.folder = None if stored.resumed else stored.folder
    if stored.folder:
        launch.keeps(stored.folder, len(work))
    return stored
