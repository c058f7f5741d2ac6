"""The cells one after the other, in shuffled order, each measured on all ranks in step and stored at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.backends.backend import Backend, Group, can_do, in_place_only
from collbench.control.world import World
from collbench.launch import signals
from collbench.measure.ceilings import Ceilings
from collbench.measure.launch import Launch, Work, ranks_by_host, ranks_of
from collbench.measure.meeting import left_early
from collbench.measure.one_cell import Ready, Stage, Wrong, make_groups, prepare, release, verify_cell
from collbench.measure.opening import Opened
from collbench.measure.row import Circumstances, check_fields, make_row, row_without, wrong_evidence
from collbench.measure.sync import host_sync
from collbench.measure.watched import Watched, watch
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.operations.program import Program
from collbench.results.row import Row
from collbench.units import format_bytes


def rows_of(launch: Launch, work: list[Work], ceilings: Ceilings, order: Sequence[int]) -> Iterator[Row]:
    """All rows, measured in `order` (places in `work`); at ranks other than 0 nothing is yielded, but all take part."""
    reasons: dict[int, str | None] = {}
    turns: dict[str, Turn] = {}
    for name in dict.fromkeys(one.name for _, _, one in work):
        places = [place for place, item in enumerate(work) if item[2].name == name]
        items = [work[place] for place in places]
        reasons |= zip(places, _reasons(items, launch.world), strict=True)
        turns[name] = _turn(launch, items, ceilings)
    launch.lap()
    measurable = [place for place in order if not reasons[place]]  # what is n/a takes no time: it is not progress
    for done, place in enumerate(order):
        operation, cell, one = work[place]
        turn, reason = turns[one.name], reasons[place]
        if launch.listener and not reason:
            launch.listener.progress(cell.title(), measurable.index(place), len(measurable), None)
        row = turn.without(operation, cell, reason, place) if reason else turn.take(operation, cell, place)
        if row:
            yield row
        if launch.request.stop_on_wrong and _wrong(launch, row, len(order) - done - 1):
            return


def _wrong(launch: Launch, row: Row | None, left: int) -> bool:
    """Whether a cell's data was wrong, the same at all ranks; says that the launch ends there, with so many cells `left`."""
    wrong: bool = launch.world.decide(bool(row and row.wrong), "deciding whether to go on")
    if wrong and row:
        rest = f", {left} {'cell is' if left == 1 else 'cells are'} not measured" if left else ""
        where = f"{row.operation} {format_bytes(row.size_bytes)} on {row.backend}"
        launch.note(f"stopped after wrong data in {where}{rest} (--stop-on-wrong): {row.wrong_detail}")
    return wrong


def _turn(launch: Launch, items: list[Work], ceilings: Ceilings) -> Turn:
    opened = items[0][2]
    return Turn(launch, opened, ceilings, stage_of(launch, items, opened.backend) if opened.backend else None)


def _reasons(items: list[Work], world: World) -> list[str | None]:
    """Per cell why it cannot be measured: the first reason that any rank has."""
    mine = [one.reason or can_do(one.backend, operation, placed(cell, operation, one.backend)) if one.backend else one.reason
            for operation, cell, one in items]  # fmt: skip
    everyone = world.agree(mine, f"asking {items[0][2].name} what it can do")
    return [next((reason for reason in column if reason), None) for column in zip(*everyone, strict=True)]


def placed(cell: Cell, operation: Operation, backend: Backend) -> Cell:
    """Out of place where the library has it, unless the user chose."""
    return cell if cell.in_place is not None else cell.placed(in_place_only(backend, operation))


def stage_of(launch: Launch, items: list[Work], backend: Backend) -> Stage:
    """What these cells of a backend have in common; all ranks make it together."""
    members = make_groups(backend, [(operation, cell) for operation, cell, _ in items], launch.world)
    return Stage(backend, members, _sync(launch, backend, members))


def _sync(launch: Launch, backend: Backend, members: dict[tuple[int, ...], Group | None]) -> Program | None:
    """How the ranks of this backend meet before a sample: its own way, else through shared memory and sockets."""
    whole = members[tuple(range(backend.ranks))]
    program = backend.sync(whole) if whole else None
    if program is None and launch.world.size > 1 and not backend.virtual and backend.ranks == launch.world.size:
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

    def without(self, operation: Operation, cell: Cell, reason: str, place: int) -> Row | None:
        """An n/a row, stored; at rank 0."""
        world = self.launch.world
        api = self.stage.backend.api if self.stage else ""
        row = row_without(operation, cell, api, (ranks_of(self.opened, world), len(world.hosts)), reason)
        return _finish(self.launch, row, {}, place)

    def take(self, operation: Operation, cell: Cell, place: int) -> Row | None:
        """Measures one cell on all ranks and stores its row; returns it at rank 0."""
        request, world, stage = self.launch.request, self.launch.world, self.stage
        if stage is None:
            return self.without(operation, cell, f"{self.opened.name} is not open", place)
        backend = stage.backend
        ready = prepare(operation, placed(cell, operation, backend), stage, world)
        if isinstance(ready, str):
            return self.without(operation, cell, ready, place)
        on_host = not backend.virtual and ready.cell.device == "cpu"
        instruments = None if backend.virtual else self.launch.instruments
        watched = watch(ready, world, request.budget, self.launch.canary if on_host else None, instruments)
        checked, mismatches, choices = self._verified(ready)
        release(ready, backend)
        moved = watched.evidence.get("moved", {}) if watched else {}
        evidence = self.opened.paths.evidence(world, choices, self.ceilings.machines, moved) if self.opened.paths else {}
        if watched is None or mismatches is None:
            return None
        row, arrays = make_row(ready, backend, watched, self.around(ready, backend, watched))
        self._keep(watched, place, ready.cell.title())
        row = replace(row, **check_fields(checked, mismatches), evidence=row.evidence | evidence | wrong_evidence(mismatches))
        return _finish(self.launch, row, arrays, place)

    def _verified(self, ready: Ready) -> tuple[int, Sequence[Wrong] | None, list[dict[str, Any]]]:
        """(calls verified, what arrived wrongly, at rank 0), and what NCCL chose meanwhile, on this rank."""
        calls, paths, backend = self.launch.request.check, self.opened.paths, self.opened.backend
        if not calls or backend is None:
            return 0, [], []
        if ready.operation.meets:
            return (0, [], []) if backend.virtual else (*left_early(ready, self.launch.world, calls), [])
        if not paths:
            return calls, verify_cell(ready, self.launch.world, calls), []
        with paths.witness(backend, ready.cell) as choices:
            mismatches = verify_cell(ready, self.launch.world, calls)
        return calls, mismatches, choices

    def _keep(self, watched: Watched, place: int, title: str) -> None:
        """Keep what does not go onto the row: telemetry, and sentences about a path that the bytes did not take and about stalls."""
        if self.launch.folder and watched.telemetry:
            self.launch.folder.event("telemetry", cell=place, hosts=watched.telemetry)
        if watched.other_path:
            self.launch.note_once(f"other path of {self.opened.name}", watched.other_path)
        if disturbance := watched.disturbance(title, [member.host for member in self.launch.world.members]):
            self.launch.note(disturbance)

    def around(self, ready: Ready, backend: Backend, watched: Watched) -> Circumstances:
        """The row's ceilings, flags and evidence."""
        world = self.launch.world
        crowded = bool(world.oversubscribed) and not backend.virtual and ready.cell.device == "cpu"
        ceiling, bound = self.ceilings.of(ready.operation, ready.cell, backend, ready.groups)
        slowdown = self.launch.request.slowed.of(ready.cell)
        flags = {"slowed": slowdown is not None, "oversubscribed": crowded, "python_loop": ready.fell_back,
                 "pairs_at_once": ready.operation.pair and len(ready.groups) > 1}  # fmt: skip
        told = ready.evidence | ({"slowed": slowdown.text} if slowdown else {}) | watched.evidence
        evidence = {"libraries": dict(backend.versions()), "conditions": self.launch.conditions} | told
        on = (*backend.flags, *(flag for flag, true in flags.items() if true))
        withheld = crowded or watched.other_path is not None
        return Circumstances(ranks_by_host(backend, world), ceiling, bound, withheld, on, evidence)


def _finish(launch: Launch, row: Row, arrays: dict[str, Any], place: int) -> Row | None:
    """Stores and shows a row, at rank 0."""
    if launch.folder is None:
        return None
    row = replace(row, evidence=row.evidence | _when(launch, row.evidence))
    with signals.deferred():  # else a cell could be stored and not counted
        try:
            row = launch.folder.append(row, arrays)
        finally:  # what cannot be stored was measured all the same
            if launch.listener:
                launch.listener.row(row, place)
    return row


def _when(launch: Launch, evidence: dict[str, Any]) -> dict[str, Any]:
    """What the cell took ("wall_s"): in its loop, and all the rest since the row before was complete, so that row's storing is in it.

    And when that was ("at_s"): its begin and its end in seconds since the run's start.
    """
    began_s, ended_s = launch.lap()
    measured = evidence.get("wall_s", {}).get("measured", 0.0)
    wall_s = {"wall_s": {"measured": measured, "harness": ended_s - began_s - measured}}
    start_s = launch.run_began_s
    return wall_s if start_s is None else wall_s | {"at_s": [round(began_s - start_s, 6), round(ended_s - start_s, 6)]}
