"""Whether other work disturbed a round: how long its ranks waited for a CPU, and whether the machine changed its state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collbench.control.world import World
from collbench.measure.canary import Canary, flipped

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns that it waited for one, number of time slices


@dataclass(frozen=True)
class Disturbance:
    """What disturbed a rank during a round.

    cpu_wait  share of the time that its thread was ready to run and waited for a CPU; 0 where the kernel does not count it
    flipped   whether the state probe before and after the round differs
    """

    cpu_wait: float = 0.0
    flipped: bool = False


@dataclass
class Watch:
    """The disturbances of one round; `ranks` is filled at rank 0 when the round ends."""

    ranks: list[Disturbance] = field(default_factory=list)

    def of(self, ranks: Sequence[int]) -> Disturbance:
        """The worst of some ranks; nothing where none is known."""
        known = [self.ranks[rank] for rank in ranks if rank < len(self.ranks)]
        return Disturbance(max((each.cpu_wait for each in known), default=0.0), any(each.flipped for each in known))


@contextmanager
def watched(world: World, probe: Canary | None) -> Iterator[Watch]:
    """Watch all ranks of the world during the block; they all enter and leave it together."""
    found = Watch()
    before = probe.sing() if probe else None
    began, waited = time.monotonic_ns(), _waited_ns()
    yield found
    wall, more = time.monotonic_ns() - began, _waited_ns()
    share = (more - waited) / wall if waited is not None and more is not None and wall > 0 else 0.0
    mine = [min(max(share, 0.0), 1.0), flipped(before, probe.sing() if probe else None)]
    gathered = world.gather(mine, "gathering what disturbed the round")
    found.ranks = [Disturbance(float(share), bool(flip)) for share, flip in gathered or ()]


def _waited_ns() -> int | None:
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
