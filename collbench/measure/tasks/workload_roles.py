"""Who is a server and who a worker in asynchronous training, and what a worker exchanges with each server in a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measure.tasks.checks import free_memory
from collbench.measure.tasks.workload_plan import check_number
from collbench.operations.dtypes import DTYPES, DType, dtype_named
from collbench.units import format_bytes
from collbench.workloads.step import Step

CAPABLE = ("mpi", "gloo")
ROTATION_BYTES = 64 * 2**20  # what a worker sends from, and receives into, is larger than the caches, but need not be the whole model
Pieces = tuple[tuple[int, int], ...]  # (first element, how many) of each message


@dataclass(frozen=True)
class Roles:
    """servers, workers   ranks of the job
    pushes, pulls   by server the messages of a round: pieces of its shard
    dtype           of what is sent; `sums`: in which the server adds, of 16-bit numbers and less a wider one, as training does
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    pushes: tuple[Pieces, ...]
    pulls: tuple[Pieces, ...]
    dtype: DType

    @property
    def sums(self) -> DType:
        """Wide enough to count updates in."""
        wide = DTYPES["int64"] if self.dtype.kind == "int" else DTYPES["float32"]
        return self.dtype if self.dtype.size >= wide.size else wide

    def elements(self, server: int) -> int:
        """Of a server's shard."""
        return sum(count for _, count in self.pushes[server])

    @property
    def largest(self) -> int:
        """Elements of the largest message."""
        return max(count for shards in (self.pushes, self.pulls) for pieces in shards for _, count in pieces)

    @property
    def moved_bytes(self) -> float:
        """Of a worker in a round: what it pushes and what it pulls."""
        return 2.0 * self.dtype.size * sum(map(self.elements, range(len(self.servers))))

    def refusal(self, backend: Backend) -> str | None:
        """Why a backend cannot carry this, or None."""
        if backend.virtual:
            return f"{backend.name} makes its ranks up in one process, where none can be ahead of another: choose {' or '.join(CAPABLE)}"
        if backend.name not in CAPABLE:
            return f"a server cannot wait for whichever worker comes first on {backend.name}: choose {' or '.join(CAPABLE)}"
        return None

    def bytes_at(self, rank: int) -> int:
        """Memory that a rank needs."""
        width = self.dtype.size
        if rank in self.servers:
            return self.elements(self.servers.index(rank)) * self.sums.size + 2 * len(self.workers) * self.largest * width
        return 2 * len(self.servers) * (ROTATION_BYTES + self.largest * width)


def roles_of(step: Step, ranks: int) -> Roles:
    """From what the first worker exchanges in a round. Raises UsageError where that says no such thing, or has too many messages."""
    check_number(step)
    if not step.exchanges or any(len(group) != 2 for exchange in step.exchanges for group in exchange.groups):
        raise UsageError("asynchronous training is messages between a worker and its servers, and this step has others")
    worker, dtype = step.exchanges[0].groups[0][0], dtype_named(step.exchanges[0].dtype)
    pushes, pulls = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for exchange in step.exchanges:
        for first, second in exchange.groups:
            if worker not in (first, second):
                raise UsageError(f"{exchange.what}: a round is told of rank {worker} alone, and this is between {first} and {second}")
            to, server = (pushes, second) if first == worker else (pulls, first)
            to[server] += [exchange.size_bytes // dtype.size] * exchange.times
    servers = tuple(sorted(pushes))
    workers = tuple(rank for rank in range(ranks) if rank not in servers)
    if not workers or max(servers) >= ranks or any(sum(pushes[server]) != sum(pulls[server]) for server in servers):
        raise UsageError(f"asynchronous training needs a worker beside {len(servers)} servers, and {ranks} ranks are there: start more")
    return Roles(servers, workers, tuple(_pieces(pushes[each]) for each in servers), tuple(_pieces(pulls[each]) for each in servers), dtype)


def _pieces(counts: Sequence[int]) -> Pieces:
    """One after the other; those of no element left out."""
    return tuple((at, count) for at, count in zip(accumulate(counts, initial=0), counts, strict=False) if count)


class Needs(Protocol):
    """What knows how much memory each rank needs."""

    def bytes_at(self, rank: int) -> int:
        """Of this rank."""
        ...


def roles_too_large(title: str, roles: Needs, world: World) -> str | None:
    """Why this host has no room for its ranks' buffers; None where it has."""
    here = [member.rank for member in world.on_host()]
    need, free = sum(map(roles.bytes_at, here)), free_memory()
    if need <= free:
        return None
    return (
        f"the buffers of {title} need {format_bytes(need)} on {world.me.host} for its {len(here)} ranks there, and {format_bytes(free)} is "
        "free: choose a smaller model, or more servers"
    )
