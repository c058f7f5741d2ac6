"""Neighborhood all-gather and all-to-all: every rank of a ring exchanges data with the previous rank and the next one.

The ring is periodic, in rank order. With two ranks, each is both neighbors of the other. In the all-to-all, data sent to the next rank
then arrives as that of the previous one (MPI 4.1, 8.6). Libraries before MPI 4.0 exchanged these two parts (mpi-forum/mpi-issues 153), so
their rows of two ranks are wrong. The size S is what each rank receives, S/2 per neighbor, and also what it sends. So busbw, the rate of a
rank in each direction, equals algbw. MPI has no in-place form.
"""

from __future__ import annotations

from msgspec.structs import replace

from collbench.operations.operation import Block, Operation, needs_two_ranks, out_of_place_only

NEIGHBOR_ALLGATHER = Operation(
    name="neighbor_allgather",
    command="neighbor-allgather",
    summary="every rank of a ring gets both neighbours' buffers",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    parts=lambda n: min(n, 2),
    needs=needs_two_ranks("neighbor_allgather"),
    neighbours=True,
    expected_blocks=lambda x: [Block([rank % x.n], at=0, count=x.count) for rank in (x.rank - 1, x.rank + 1)],
    steps={
        "mpi": out_of_place_only(lambda x: [x.call("MPI_Neighbor_allgather", x.send, x.count, x.type, x.recv, x.count, x.type, x.comm)])
    },
)
NEIGHBOR_ALLTOALL = replace(
    NEIGHBOR_ALLGATHER,
    name="neighbor_alltoall",
    command="neighbor-alltoall",
    summary="every rank of a ring sends each neighbour a part of its buffer",
    needs=needs_two_ranks("neighbor_alltoall"),
    sends=lambda x: 2 * x.count,
    # the previous rank's second part, and the next rank's first part
    expected_blocks=lambda x: [Block([(x.rank - 1) % x.n], at=x.count, count=x.count), Block([(x.rank + 1) % x.n], at=0, count=x.count)],
    steps={"mpi": out_of_place_only(lambda x: [x.call("MPI_Neighbor_alltoall", x.send, x.count, x.type, x.recv, x.count, x.type, x.comm)])},
)
