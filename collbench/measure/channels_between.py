"""What the channels between two hosts have in common: which pairs there are, and how both ends act at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import CollbenchError

PATIENCE_S = 15.0  # for a connection: what is blocked in between is told, not waited for
COUNTED = 0.9  # of the payload: what a port or an interface counted must be this much of it, to be the way it took
Told = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """The first ranks of two hosts, or of one host twice where there is no other."""

    source: Member
    target: Member

    @property
    def inside(self) -> bool:
        """Both ends are one process."""
        return self.source == self.target


def pairs(world: World) -> list[Pair]:
    """Each host to the next one, the last to the first; the only one to itself."""
    leaders = [world.on_host(host)[0] for host in world.hosts]
    return [Pair(leader, leaders[(place + 1) % len(leaders)]) for place, leader in enumerate(leaders)]


def patience(world: World) -> float:
    """Seconds to wait for the other end."""
    return min(world.timeout_s, PATIENCE_S)


def attempt(task: Callable[[], Any]) -> Told:
    """What the task gave, or why it failed: {"value": ...} or {"why": ...}, to be told to the others."""
    try:
        return {"value": task()}
    except (CollbenchError, MemoryError) as error:
        return {"why": str(error)}
    except OSError as error:
        return {"why": error.strerror or str(error) or type(error).__name__}


def in_turn(world: World, rank: int, what: str, task: Callable[[], Any], honest_s: float) -> Told:
    """One rank does the task, which keeps a deadline of its own, and all learn what it gave or why it failed. All ranks call."""
    with world.patient(honest_s):
        mine = attempt(task) if rank == world.rank else None
        return world.agree(mine, what)[rank] or {}
