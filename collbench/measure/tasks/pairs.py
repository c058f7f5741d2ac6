"""A pairs launch: opens a backend, plays the tournament on all ranks in step, and measures suspects again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from collbench.control.world import World
from collbench.measure.ceilings import Ceilings
from collbench.measure.guarded import Playing, create_folder, guarded
from collbench.measure.launch import Launch, ranks_by_host
from collbench.measure.one_backend import first_at_hand
from collbench.measure.opening import Opened
from collbench.measure.tasks.checks import notes
from collbench.measure.tasks.pair_court import check_pairs, court_of
from collbench.measure.tasks.pair_match import Match, PairsListener, conclude, limits, measure_again, tournament
from collbench.measure.tasks.pair_places import PairsRequest, places_of, schedule_of
from collbench.measure.tasks.pair_tools import beside, tools_of
from collbench.measure.wire import Tools


def run_pairs(asked: PairsRequest, world: World, listener: PairsListener | None, ended: Callable[[int], None]) -> int:
    """Measures all pairs on all ranks of `world`. Returns the exit code, the same on all ranks. Raises CollbenchError.

    `ended` is told the code before the libraries are left, as in `runner.run`.
    """
    request, waiting = asked.launch, list[str]()
    launch = Launch.begun(request, world)
    opened = first_at_hand(request, world, waiting.append)
    match = _match(asked, launch, listener, opened)
    tools = tools_of(match)
    launch.folder = create_folder(launch, [opened], {"pairs": match.about(measured=None)}, match.plan.number)
    return guarded(Playing(launch, [opened], listener, ended), lambda: _play_all(match, tools, waiting))


def _match(asked: PairsRequest, launch: Launch, listener: PairsListener | None, opened: Opened) -> Match:
    """The places and the schedule. Raises UsageError for what does not fit the launch, or its memory."""
    world, backend = launch.world, opened.backend
    assert backend is not None
    by_host = ranks_by_host(backend, world)
    places = places_of(asked, world.hosts, by_host)
    match = Match(asked, launch, listener, opened, places, schedule_of(asked, places, by_host, launch.order_seed))
    check_pairs(asked, launch, opened)
    return match


def _play_all(match: Match, tools: Tools, waiting: Sequence[str]) -> int:
    launch, world = match.launch, match.launch.world
    ceilings = Ceilings(launch.request, world)
    ceilings.prepare([], [])  # probes the machines, for topology.json
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if match.listener:
        match.listener.begin_pairs(match.about(measured=None), str(launch.folder.path) if launch.folder else "")
    for sentence in (*waiting, *notes(launch, [match.opened]), *limits(match)):
        match.note(sentence)
    court = court_of(match.asked, launch, match.opened, match.places)
    match.began = time.monotonic()
    if tournament(match, court):
        measure_again(match, court)
        beside(match, tools)
    return conclude(match)
