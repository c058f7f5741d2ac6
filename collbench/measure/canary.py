"""The canary: a short measurement of the machine itself, before and after each cell.

A cache line that two cores pass back and forth takes 65 or 260 ns on the same machine, and flips by itself; every latency
below some microseconds flips with it. Where a rank has no partner on its host, or ranks share cores, a fixed piece of work
takes the ball's place: it sees the clock rate and what the hypervisor takes, not the cache.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.measure.shared import shared_page
from collbench.native.library import CanaryStruct, library

FLIP = 1.25  # canaries further apart than this ratio mean another state; in one state they stay within 1.15
_BLOCKS = 15
_ROUNDS = 40  # round trips of a block: 3 to 18 µs; of 6,000 neighbours in one state (440 ns) all were within 1.12, with 100 all but 2
_STEPS = 10_000  # multiplications of a block: about 10 µs
_DEADLINE_S = 0.02
_LINE_BYTES = 128  # two lines: the next one is fetched along


class Canary:
    """Made by all ranks of the world together; `sing` is called by all of them at the same moment."""

    def __init__(self, world: World) -> None:
        mates = [member.rank for member in world.on_host()]
        paired = all(len(world.on_host(host)) > 1 for host in world.hosts) and not world.oversubscribed
        self.kind = "cache line" if paired else "work"
        self._ball: CanaryStruct | None = None
        if paired:
            self._page = shared_page(world, _LINE_BYTES * len(mates))
            here, place = ctypes.addressof(ctypes.c_char.from_buffer(self._page)), mates.index(world.rank)
            if place < len(mates) // 2 * 2:  # the odd one out only listens
                line = here + place // 2 * _LINE_BYTES
                self._ball = CanaryStruct(line=line, first=place % 2 == 0, base=0, rounds=_ROUNDS, deadline_ns=int(_DEADLINE_S * 1e9))

    def sing(self) -> float | None:
        """Seconds of a round trip or of the piece of work: the median of some blocks. None where it could not be measured."""
        native, elapsed = library(), np.zeros(_BLOCKS, np.int64)
        if native is None or (self.kind == "cache line" and self._ball is None):
            return None
        out = ctypes.c_void_p(elapsed.ctypes.data)
        if self._ball is None:
            native.collbench_work(ctypes.c_int64(_BLOCKS), ctypes.c_int64(_STEPS), out)
            return _middle(elapsed) * 1e-9
        failed = native.collbench_ping_pong(ctypes.byref(self._ball), ctypes.c_int64(_BLOCKS), out)
        return None if failed else _middle(elapsed) * 1e-9 / _ROUNDS


def _middle(elapsed: NDArray[np.int64]) -> float:
    """The median of an odd number of values."""
    return float(sorted(elapsed.tolist())[len(elapsed) // 2])


def canary(world: World) -> Canary | None:
    """A canary, or None where the native loop was not built at some rank."""
    lacking = world.first(None if library() else "no native loop", "looking for a canary")
    return None if lacking else Canary(world)


def flipped(before: float | None, after: float | None) -> bool:
    """Whether the machine changed its state between the two."""
    return bool(before and after and max(before, after) > FLIP * min(before, after))
