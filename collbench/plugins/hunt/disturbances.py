"""What disturbed the ranks during a round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from collbench.control.world import World
from collbench.measuring.monitored import StateProbe, flipped

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a CPU, ns waiting for one, number of time slices


class Disturbance(msgspec.Struct, frozen=True):
    """The disturbance of a rank during a round.

    cpu_wait  share of the time that its thread was ready to run and waited for a CPU; 0 if the kernel does not count it
    flipped   whether the state probe before and after the round differs
    """

    cpu_wait: float = 0.0
    flipped: bool = False


def largest(disturbances: Sequence[Disturbance], ranks: Sequence[int]) -> Disturbance:
    """Return the largest disturbance of some ranks; an empty one where none is known."""
    recorded = [disturbances[rank] for rank in ranks if rank < len(disturbances)]
    cpu_wait = max((disturbance.cpu_wait for disturbance in recorded), default=0.0)
    return Disturbance(cpu_wait, any(disturbance.flipped for disturbance in recorded))


@contextmanager
def monitor_round(world: World, probe: StateProbe | None) -> Iterator[list[Disturbance]]:
    """Watch all ranks of the world during the block, which all enter and leave together. At rank 0 the list has them after it, by rank."""
    disturbances: list[Disturbance] = []
    state_before = probe.measure() if probe else None
    begin_ns = time.monotonic_ns()
    waited_before_ns = _waited_ns()
    yield disturbances
    wall_ns = time.monotonic_ns() - begin_ns
    waited_after_ns = _waited_ns()
    cpu_wait = 0.0
    if waited_before_ns is not None and waited_after_ns is not None and wall_ns > 0:
        cpu_wait = min(max((waited_after_ns - waited_before_ns) / wall_ns, 0.0), 1.0)
    state_flipped = flipped(state_before, probe.measure() if probe else None)
    gathered = world.gather([cpu_wait, state_flipped], "gathering what disturbed the round") or ()
    disturbances.extend(Disturbance(float(share), bool(flip)) for share, flip in gathered)


def _waited_ns() -> int | None:
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
