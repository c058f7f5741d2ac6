"""Where pairs are played: the stage of a launch whose rounds of pairs run on one backend, and what does not fit it."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.backends.backend import can_do
from collbench.measure.canary import canary
from collbench.measure.launch import Launch, Work
from collbench.measure.opening import Opened
from collbench.measure.tasks.checks import check_memory
from collbench.measure.tasks.pair_places import PairsRequest, Places
from collbench.measure.tasks.pair_round import Court, ways_of
from collbench.measure.tasks.turn import stage_of


def check_pairs(asked: PairsRequest, launch: Launch, opened: Opened, others: Sequence[Work] = ()) -> None:
    """Raises UsageError on all ranks for messages that the backend cannot do or the memory has no room for, and a --slowed that means none.

    others: what is measured beside the messages.
    """
    backend, world = opened.backend, launch.world
    assert backend is not None
    ways = ways_of(asked, backend.name)
    refusals = [can_do(backend, way.operation, way.cell) for way in ways]
    reason = world.first(next(filter(None, refusals), None), f"asking {backend.name} what it can do")
    if reason:
        world.refuse(f"no pair can be measured on {backend.name}: {reason}")
    asked.launch.slowed.check([*(way.cell for way in ways), *(cell for _, cell, _ in others)], backend.ranks)
    largest = max(ways, key=lambda way: way.cell.size_bytes)
    check_memory([(largest.operation, largest.cell, opened), *others], world)


def court_of(asked: PairsRequest, launch: Launch, opened: Opened, places: Places) -> Court:
    """The court; all ranks make it together."""
    backend, world = opened.backend, launch.world
    assert backend is not None
    ways = ways_of(asked, backend.name)
    stage = stage_of(launch, [(way.operation, way.cell, opened) for way in ways], backend)
    crowded = bool(world.oversubscribed) and not backend.virtual and ways[0].cell.device == "cpu"
    flags = {"slowed": any(asked.launch.slowed.of(way.cell) for way in ways), "oversubscribed": crowded}
    on = (*backend.flags, *(flag for flag, true in flags.items() if true))
    return Court(asked, world, stage, places, ways, on, None if backend.virtual else canary(world))
