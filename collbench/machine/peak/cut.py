"""Cuts: sets of ranks, what may leave each set, and the time that an operation needs at least to cross.

All links are full duplex: what may leave a set may enter it at the same time. Times are seconds per byte of the operation's size S as
nccl-tests counts it (per rank; of allgather, reducescatter, gather and scatter the whole). With sets of g_i ranks out of N and C_i
bytes per second out of each:
    allreduce                  max(1/min C_i, 2(m-1)/sum C_i): each set gives its sum and gets the rest's, and m sums take 2(m-1) moves
    allgather, reducescatter   (1-g_i/N)/C_i: what the others hold must come in, or the sums for the others must go out
    broadcast, reduce          1/C_i
    alltoall                   g_i(N-g_i)/N/C_i
    gather, scatter            g_i/N/C_i of sets without the root, (1-g/N)/C of the root's
What all sets need together is no faster than what all can send at once, which is less than the sum of C_i where sets share NICs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Side:
    """A set of ranks: how many, what may leave it (bytes per second, infinite when unknown), and the name of the links that it leaves by.

    times      so many equal sets
    at_once    what may leave each when all sets send at once, if they share links; None: the same
    """

    ranks: int
    bytes_per_s: float
    name: str
    times: int = 1
    at_once: float | None = None

    @property
    def all_at_once(self) -> float:
        """What leaves these sets when all of them send."""
        return self.times * (self.bytes_per_s if self.at_once is None else self.at_once)


@dataclass(frozen=True, slots=True)
class Least:
    """The least time of an operation, in seconds per byte of S, and the set that needs it; 0 when nothing known limits it."""

    seconds_per_byte: float
    side: Side | None


_SHARE: Mapping[str, Callable[[int, int], float]] = {
    "allreduce": lambda g, n: 1.0,
    "allgather": lambda g, n: 1 - g / n,
    "reducescatter": lambda g, n: 1 - g / n,
    "hypercube": lambda g, n: 1 - g / n,
    "broadcast": lambda g, n: 1.0,
    "reduce": lambda g, n: 1.0,
    "alltoall": lambda g, n: g * (n - g) / n,
    "alltoallv": lambda g, n: g * (n - g) / n,
    "gather": lambda g, n: g / n,
    "scatter": lambda g, n: g / n,
}
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    **dict.fromkeys(("allgather", "reducescatter", "hypercube", "alltoall", "alltoallv", "gather", "scatter"), lambda n: (n - 1) / n),
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
ROOTED = ("gather", "scatter")
_TO_ALL = ("allgather", "reducescatter", "hypercube", "broadcast", "reduce")


def least_time(operation: str, sides: Sequence[Side], sums_in_the_network: bool = False) -> Least:
    """What this partition of the ranks costs at least; the root of gather and scatter is in the first set.

    sums_in_the_network: switches add (SHARP, NVLS), so that each set sends and receives once however many sets there are.
    """
    total, sets = sum(side.ranks * side.times for side in sides), sum(side.times for side in sides)
    if sets < 2 or total < 2:
        return Least(0.0, None)
    time, side = max(_needs(operation, sides, total), key=lambda need: need[0])
    together = sum(side.all_at_once for side in sides)
    time = max(time, _of_all(operation, sides, total, sums_in_the_network) / together if together else inf)
    return Least(time, side if time > 0 else None)


def _needs(operation: str, sides: Sequence[Side], total: int) -> list[tuple[float, Side]]:
    """The least time of each set by itself."""
    share, root = _SHARE[operation], sides[0]
    if operation not in ROOTED:
        return [(_seconds(share(side.ranks, total), side), side) for side in sides]
    others = sides if root.times > 1 else sides[1:]
    return [(_seconds(1 - root.ranks / total, root), root), *((_seconds(share(side.ranks, total), side), side) for side in others)]


def _of_all(operation: str, sides: Sequence[Side], total: int, sums_in_the_network: bool) -> float:
    """Bytes per byte of S that cross borders of sets in all, in one direction."""
    sets = sum(side.times for side in sides)
    if operation == "allreduce":
        return sets if sums_in_the_network else 2 * (sets - 1)
    if operation in _TO_ALL:
        return sets - 1
    if operation in ROOTED:
        return 1 - sides[0].ranks / total
    return sum(_SHARE[operation](side.ranks, total) * side.times for side in sides)


def _seconds(bytes_of_one: float, side: Side) -> float:
    return bytes_of_one / side.bytes_per_s if side.bytes_per_s else inf
