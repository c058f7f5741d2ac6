"""A pairs launch: opens a backend, plays the tournament on all ranks in step, and looks again at who seems slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from collbench.backends.backend import can_do
from collbench.backends.registry import backend_class
from collbench.errors import RunFailed, UsageError
from collbench.launch import signals
from collbench.results.folder import RunFolder
from collbench.runner.ceilings import Ceilings
from collbench.runner.checks import check_memory, notes
from collbench.runner.describe import describe_run
from collbench.runner.launch import Launch, at_rank_0, ranks_by_host
from collbench.runner.opening import Opened, missing_anywhere, open_backends
from collbench.runner.pair_match import Match, PairsListener, conclude, limits, second_look, tournament
from collbench.runner.pair_places import PairsRequest, places_of, schedule_of
from collbench.runner.pair_round import Court, ways_of
from collbench.runner.request import Request
from collbench.runner.turn import stage_of
from collbench.world.world import World


def run_pairs(asked: PairsRequest, world: World, listener: PairsListener | None, ended: Callable[[int], None]) -> int:
    """Measures all pairs on all ranks of `world`. Returns the exit code, the same on all ranks. Raises CollbenchError.

    `ended` is told the code before the libraries are left, as in `runner.run`.
    """
    request, waiting = asked.launch, list[str]()
    launch = Launch.begun(request, world)
    opened = _first_at_hand(request, world, waiting.append)
    match = _match(asked, launch, listener, opened)
    launch.folder = _create_folder(match)
    world.watchdog.witness = launch.hang
    try:
        code = _play_all(match, waiting)
    except BaseException as error:
        signals.settle()
        why = world.explained(error)
        launch.break_off(why)
        if why is error:
            raise
        raise why from error
    if listener:
        listener.end()
    launch.leave([opened], code, ended)
    return code


def _first_at_hand(request: Request, world: World, note: Callable[[str], None]) -> Opened:
    """The first of the request's backends that all ranks can open. Raises UsageError or RunFailed where there is none."""
    why: list[str] = []
    for name in request.backends:
        missing = None if name in request.asked else missing_anywhere(name, backend_class(name), world)
        if missing:
            note(f"without {name}: {missing}")
            continue
        (one,) = open_backends(replace(request, backends=(name,)), world, note)
        if one.backend:
            return one
        why.append(f"{one.reason}")
        note(f"{name} is not measured: {one.reason}")
    if why:
        raise RunFailed(why[0])
    raise UsageError("no backend is at hand: pip install 'collbench[mpich]' or 'collbench[torch]' ('collbench backends' tells more)")


def _match(asked: PairsRequest, launch: Launch, listener: PairsListener | None, opened: Opened) -> Match:
    """The places and the schedule. Raises UsageError for what does not fit the launch, or its memory."""
    world, backend = launch.world, opened.backend
    assert backend is not None
    by_host = ranks_by_host(backend, world)
    places = places_of(asked, world.hosts, by_host)
    match = Match(asked, launch, listener, opened, places, schedule_of(asked, places, by_host, launch.order_seed))
    ways = ways_of(asked, backend.name)
    refusals = [can_do(backend, way.operation, way.cell) for way in ways]
    reason = world.first(next(filter(None, refusals), None), f"asking {backend.name} what it can do")
    if reason:
        raise UsageError(f"no pair can be measured on {backend.name}: {reason}")
    match.asked.launch.slowed.check([way.cell for way in ways], backend.ranks)
    largest = max(ways, key=lambda way: way.cell.size_bytes)
    check_memory([(largest.operation, largest.cell, opened)], world)
    return match


def _create_folder(match: Match) -> RunFolder | None:
    """The run folder at rank 0; what goes wrong there ends every rank the same way."""
    request, world = match.asked.launch, match.launch.world

    def create() -> RunFolder:
        facts = {"order_seed": match.launch.order_seed, "pairs": match.about(measured=None)}
        return RunFolder.create(request.out, request.command, {**describe_run(request, world, [match.opened]), **facts})

    folder = at_rank_0(world, create, "creating the run folder")
    if folder:
        match.launch.keeps(folder, match.plan.number)
    return folder


def _play_all(match: Match, waiting: Sequence[str]) -> int:
    launch, world = match.launch, match.launch.world
    ceilings = Ceilings(launch.request, world)
    ceilings.prepare([], [])  # probes the machines, for topology.json
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if match.listener:
        match.listener.begin_pairs(match.about(measured=None), str(launch.folder.path) if launch.folder else "")
    for sentence in (*waiting, *notes(launch, [match.opened]), *limits(match)):
        match.note(sentence)
    court = _court(match)
    match.began = time.monotonic()
    if tournament(match, court):
        second_look(match, court)
    return conclude(match)


def _court(match: Match) -> Court:
    backend, world = match.backend, match.launch.world
    ways = ways_of(match.asked, backend.name)
    stage = stage_of(match.launch, [(way.operation, way.cell, match.opened) for way in ways], backend)
    crowded = bool(world.oversubscribed) and not backend.virtual and ways[0].cell.device == "cpu"
    flags = {"slowed": any(match.asked.launch.slowed.of(way.cell) for way in ways), "oversubscribed": crowded}
    on = (*backend.flags, *(flag for flag, true in flags.items() if true))
    return Court(match.asked, world, stage, match.places, ways, on)
