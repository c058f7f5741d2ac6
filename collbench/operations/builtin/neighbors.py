"""Neighborhood all-to-all: every rank of a ring exchanges one part with the previous rank and one with the next. Also all-gather.

The ring is periodic, in rank order. With two ranks, each is both neighbors of the other. Data sent to the next rank then arrives as
that of the previous one (MPI 4.1, 8.6). Libraries before MPI 4.0 exchanged these two parts (mpi-forum/mpi-issues 153), so their rows of two
ranks are wrong. The size S is what each rank sends and receives: S/2 per neighbor, so busbw equals algbw. MPI has no in-place form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.operations.operation import Binding, Block, Operation, Place, needs_two_ranks, out_of_place_only
from collbench.operations.program import Call

# Neighborhood all-gather: every rank of a ring gets the buffers of the previous and the next rank.
#
# The size S is what each rank receives, and also what it sends: S/2 to each neighbor. So busbw, the rate of a rank in each direction,
# equals algbw.


def _mpi_neighbor_allgather(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Neighbor_allgather", x.send, x.count, x.type, x.recv, x.count, x.type, x.comm)


def _from_both_neighbor_allgather(x: Place) -> Sequence[Block]:
    return [Block([rank % x.n], at=0, count=x.count) for rank in (x.rank - 1, x.rank + 1)]


NEIGHBOR_ALLGATHER = Operation(
    name="neighbor_allgather",
    command="neighbor-allgather",
    summary="every rank of a ring gets both neighbours' buffers",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    parts=lambda n: min(n, 2),
    needs=needs_two_ranks("neighbor_allgather"),
    neighbours=True,
    expected_blocks=_from_both_neighbor_allgather,
    steps={"mpi": out_of_place_only(_mpi_neighbor_allgather)},
)


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Neighbor_alltoall", x.send, x.count, x.type, x.recv, x.count, x.type, x.comm)


def _from_both(x: Place) -> Sequence[Block]:
    """Return the blocks: the previous rank's second part, and the next rank's first part."""
    return [Block([(x.rank - 1) % x.n], at=x.count, count=x.count), Block([(x.rank + 1) % x.n], at=0, count=x.count)]


NEIGHBOR_ALLTOALL = Operation(
    name="neighbor_alltoall",
    command="neighbor-alltoall",
    summary="every rank of a ring sends each neighbour a part of its buffer",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    parts=lambda n: min(n, 2),
    needs=needs_two_ranks("neighbor_alltoall"),
    sends=lambda x: 2 * x.count,
    neighbours=True,
    expected_blocks=_from_both,
    steps={"mpi": out_of_place_only(_mpi)},
)
