"""Whether a barrier is one: no rank may leave before all have entered.

In turn some ranks enter late. All meet over the control plane, the late one then waits; every other rank notes when it left, counted
from before it came to that meeting. The late one enters at least its delay after the meeting, which cannot end before all have come:
who left within the delay has left too early, and no rank's own delays can make that up. They can hide it: where a rank came to the
barrier only when the delay had passed, the turn is repeated with a longer one.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from typing import Any

from collbench.control.world import World
from collbench.measure.one_cell import Ready, phase
from collbench.units import format_time

_MOST_LATE = 4
_ATTEMPTS = 3
_DELAY_S = 0.01
_MEETINGS = 5  # the delay is so many times as long as the slowest rank's meeting
_LONGER = 4  # and so many times as long at the next attempt
_CLOCKS = 0.98  # hosts' clocks run up to 500 millionths apart, and their timers round


@dataclass(frozen=True)
class LeftEarly:
    """A rank that left a barrier `after_s` seconds after the meeting, before rank `late` had entered, which waited `delay_s`."""

    rank: int
    late: int
    after_s: float
    delay_s: float
    wrong: int = 1

    def sentence(self) -> str:
        """For rows and errors: "rank 1 left after 210.0 µs, before rank 0 entered, which waited 10000 µs"."""
        after, delay = format_time(self.after_s), format_time(self.delay_s)
        return f"rank {self.rank} left after {after} µs, before rank {self.late} entered, which waited {delay} µs"

    def as_json(self) -> dict[str, Any]:
        """For the control plane and a row's evidence."""
        return asdict(self)


def left_early(ready: Ready, world: World, calls: int) -> tuple[int, list[LeftEarly]]:
    """(how many calls were verified, the ranks that left one early, each once), the same at all ranks, which all call.

    0 calls where it cannot be told: ranks of one process, or of a backend that makes them up, have no time of their own.
    """
    found: dict[int, LeftEarly] = {}
    told = True
    for late in _late_ranks(ready) * calls:
        seen, early = _turn(ready, world, late)
        told = told and seen
        for one in early:
            found.setdefault(one.rank, one)
    return calls if told or found else 0, [found[rank] for rank in sorted(found)]


def _late_ranks(ready: Ready) -> list[int]:
    """Who is late in turn, by the rank within each group: all up to 4, else a sample drawn by the cell's seed."""
    n = len(ready.groups[0])
    return sorted(random.Random(ready.cell.seed).sample(range(n), min(n, _MOST_LATE))) if n > 1 else []


def _turn(ready: Ready, world: World, late: int) -> tuple[bool, list[LeftEarly]]:
    """(whether every other rank came to the barrier in time to be told, who left early), after three attempts at most."""
    others, early = sum(len(ranks) - 1 for ranks in ready.groups), list[LeftEarly]()
    for attempt in range(_ATTEMPTS):
        delay_s = max(_meeting_s(ready, world) * _MEETINGS, _DELAY_S * _LONGER**attempt)
        everyone = world.agree(_attempt(ready, world, late, delay_s), _what(ready))
        early += [LeftEarly(**one) for said in everyone for one in said["early"]]
        if early or not any(said["late_itself"] for said in everyone):
            return bool(early) or sum(said["told"] for said in everyone) == others, early
    return False, early


def _meeting_s(ready: Ready, world: World) -> float:
    """How long a meeting takes the slowest rank; the same at all ranks, which come out of it close together."""
    world.agree(None, _what(ready))
    began = time.monotonic()
    world.agree(None, _what(ready))
    return max(world.agree(time.monotonic() - began, _what(ready)))


def _attempt(ready: Ready, world: World, late: int, delay_s: float) -> dict[str, Any]:
    """One barrier: who of this process's ranks left early, of how many it can be told, and whether they came too late for that."""
    waits = any(late in group.driven for group in ready.mine)
    began = time.monotonic()
    world.agree(None, _what(ready))
    if waits:
        time.sleep(delay_s)
    came_s = time.monotonic() - began
    with phase(ready, world, "verifying"):
        ready.checking.run(1, slot=0)
    left_s = time.monotonic() - began
    others = [] if waits else [(group, rank) for group in ready.mine for rank in group.driven]
    early = others if left_s < delay_s * _CLOCKS else []
    return {
        "told": len(others), "late_itself": bool(others) and came_s >= delay_s,
        "early": [LeftEarly(group.ranks[rank], group.ranks[late], left_s, delay_s).as_json() for group, rank in early],
    }  # fmt: skip


def _what(ready: Ready) -> str:
    return f"{ready.cell.title()}: verifying"
