"""What disturbed the ranks during a round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collbench.control.world import World
from collbench.measuring.monitored import StateProbe, flipped

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns waiting for one, number of time slices


@dataclass(frozen=True)
class Disturbance:
    """The disturbance of a rank during a round.

    cpu_wait  share of the time that its thread was ready to run and waited for a CPU; 0 if the kernel does not count it
    flipped   whether the state probe before and after the round differs
    """

    cpu_wait: float = 0.0
    flipped: bool = False


@dataclass
class RoundMonitor:
    """The disturbances of one round; `ranks` is filled at rank 0 when the round ends."""

    ranks: list[Disturbance] = field(default_factory=list)

    def of(self, ranks: Sequence[int]) -> Disturbance:
        """Return the largest disturbance of some ranks; an empty one where none is known."""
        known = [self.ranks[rank] for rank in ranks if rank < len(self.ranks)]
        return Disturbance(max((each.cpu_wait for each in known), default=0.0), any(each.flipped for each in known))


@contextmanager
def monitor_round(world: World, probe: StateProbe | None) -> Iterator[RoundMonitor]:
    """Watch all ranks of the world during the block. All ranks enter and leave it together."""
    found = RoundMonitor()
    before = probe.measure() if probe else None
    began, waited = time.monotonic_ns(), _waited_ns()
    yield found
    wall, more = time.monotonic_ns() - began, _waited_ns()
    share = (more - waited) / wall if waited is not None and more is not None and wall > 0 else 0.0
    own = [min(max(share, 0.0), 1.0), flipped(before, probe.measure() if probe else None)]
    gathered = world.gather(own, "gathering what disturbed the round")
    found.ranks = [Disturbance(float(share), bool(flip)) for share, flip in gathered or ()]


def _waited_ns() -> int | None:
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
