"""A hunt's launch: opens a backend, measures what is asked for on all ranks in step, and ends with the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collbench.control.world import World
from collbench.measure.ceilings import Ceilings
from collbench.measure.guarded import Playing, create_folder, guarded
from collbench.measure.launch import Launch, at_rank_0, ranks_by_host
from collbench.measure.one_backend import first_at_hand
from collbench.measure.opening import Opened
from collbench.measure.tasks.checks import notes
from collbench.measure.tasks.hunt_asked import HuntRequest
from collbench.measure.tasks.hunt_groups import group_cell, no_groups
from collbench.measure.tasks.hunt_nics import Rails, Streaming, rails_of
from collbench.measure.tasks.hunt_play import Hunting, HuntListener, conclude, play_all
from collbench.measure.tasks.hunt_rounds import Field
from collbench.measure.tasks.pair_court import check_pairs, court_of
from collbench.measure.tasks.pair_places import Places, places_of
from collbench.measure.tasks.pair_round import Court, ways_of
from collbench.operations.builtin.allreduce import ALLREDUCE


def run_hunt(asked: HuntRequest, world: World, listener: HuntListener | None, ended: Callable[[int], None]) -> int:
    """Hunts on all ranks of `world`. Returns the exit code, the same on all ranks: 1 where somebody is confirmed. Raises CollbenchError.

    `ended` is told the code before the libraries are left, as in `runner.run`.
    """
    request, waiting = asked.pairs.launch, list[str]()
    launch = Launch.begun(request, world)
    opened = first_at_hand(request, world, waiting.append)
    assert opened.backend is not None
    places = places_of(asked.pairs, world.hosts, ranks_by_host(opened.backend, world))
    lacking = no_groups(asked.pairs, opened.backend, world)
    others = [] if lacking else [(ALLREDUCE, group_cell(asked.pairs, opened.backend), opened)]
    check_pairs(asked.pairs, launch, opened, others)
    rails = {} if opened.backend.virtual else rails_of(world, places)
    about = _about(asked, opened, places, rails, lacking) | {"nodes": _nodes(asked, world)}
    about |= _planned(about, world, listener)
    hunting = Hunting(asked, launch, listener, about)
    launch.folder = create_folder(launch, [opened], {"hunt": about}, about["promised"])
    return guarded(Playing(launch, [opened], listener, ended), lambda: _hunt(hunting, opened, places, (rails, lacking), waiting))


def _about(asked: HuntRequest, opened: Opened, places: Places, rails: Rails, lacking: str | None) -> dict[str, Any]:
    """run.json's "hunt", before anything is measured."""
    backend, pairs = opened.backend, asked.pairs
    assert backend is not None
    cell = ways_of(pairs, backend.name)[1].cell
    return {
        "places": list(places.names), "by": places.by, "backend": backend.name, "virtual": backend.virtual, "size_bytes": pairs.size_bytes,
        "latency_size_bytes": pairs.latency_size_bytes, "window": cell.window, "ranks_per_place": places.width, "method": asked.method,
        "most_rounds": asked.rounds, "growing": asked.growing, "isolate": asked.isolate, "no_groups": lacking, "nics": list(rails),
        "max_time_s": pairs.launch.budget.max_time_s, "budget_s": pairs.budget_s, "rounds": None, "ceiling": None, "verdict": None,
    }  # fmt: skip


def _planned(about: Mapping[str, Any], world: World, listener: HuntListener | None) -> dict[str, Any]:
    """What the listener says of the plan, at all ranks. Raises UsageError on all where it refuses."""
    mine = at_rank_0(world, lambda: dict(listener.plan(about)) if listener else None, "planning the hunt")
    agreed: dict[str, Any] = world.decide(mine or {}, "planning the hunt")
    return agreed


def _nodes(asked: HuntRequest, world: World) -> list[tuple[str, str]]:
    """[host, what its manager calls the node] of all ranks that were told it, each once; at rank 0."""
    told = world.gather((world.me.host, asked.node or ""), "asking for the nodes' names") or []
    return sorted({(host, node) for host, node in told if node})


def _hunt(hunting: Hunting, opened: Opened, places: Places, known: tuple[Rails, str | None], waiting: Sequence[str]) -> int:
    launch, (rails, lacking) = hunting.launch, known
    ceilings = Ceilings(launch.request, launch.world)
    ceilings.prepare([], [])  # probes the machines, for their links; memory is no ceiling of messages, far below which nobody is ill
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if hunting.listener:
        hunting.listener.begin_hunt(hunting.about, str(launch.folder.path) if launch.folder else "")
    for sentence in filter(None, (*waiting, *notes(launch, [opened]), places.resting)):
        hunting.note(sentence)
    court = court_of(hunting.asked.pairs, launch, opened, places)
    streaming = Streaming(launch.world, places, rails, launch.request.budget.max_time_s)
    play_all(hunting, Field(court, streaming, lacking))
    return conclude(hunting, _ceiling(hunting, ceilings, court))


def _ceiling(hunting: Hunting, ceilings: Ceilings, court: Court) -> dict[str, Any] | None:
    """What a group of the first round could reach at most, at rank 0; None where it is not known.

    Of pairs that of one pair of ranks, times the ranks of a place: so many messages pass at once, and share what limits them.
    """
    first = next(iter(hunting.rounds), None)
    if first is None or "oversubscribed" in court.flags:  # times of waiting for a core say nothing of a link
        return None
    backend, places = court.stage.backend, court.places
    if first.kind == "pairs":
        way, groups = court.ways[1], places.groups([(group[0], group[1]) for group in first.groups])
        ceiling, _ = ceilings.of(way.operation, way.cell, backend, groups)
        many = places.width
    else:
        ranks = tuple(tuple(rank for place in group for rank in places.ranks[place]) for group in first.groups)
        ceiling, _ = ceilings.of(ALLREDUCE, group_cell(court.asked, backend), backend, ranks)
        many = 1
    if ceiling.bytes_per_s is None:
        return None
    return {"bytes_per_s": ceiling.bytes_per_s * many, "limited_by": ceiling.limited_by, "source": ceiling.source, "kind": ceiling.kind}
