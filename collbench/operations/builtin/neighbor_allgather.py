"""Neighbourhood all-gather: every rank of a ring gets the buffers of the rank before it and of the next one.

The ring is periodic, in the order of the ranks; of two ranks each is both neighbours of the other. A size is what each rank receives,
S, and all that it sends: S/2 to each neighbour, so busbw is algbw: what a rank moves in each direction. MPI has no in-place form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.operations.operation import Binding, Block, Operation, Place, out_of_place_only
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Neighbor_allgather", x.send, x.count, x.type, x.recv, x.count, x.type, x.comm)


def _from_both(x: Place) -> Sequence[Block]:
    return [Block([rank % x.n], at=0, count=x.count) for rank in (x.rank - 1, x.rank + 1)]


NEIGHBOR_ALLGATHER = Operation(
    name="neighbor_allgather",
    command="neighbor-allgather",
    summary="every rank of a ring gets both neighbours' buffers",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    parts=lambda n: min(n, 2),
    needs=lambda n, cell: None if n > 1 else "neighbor_allgather needs 2 ranks",
    neighbours=True,
    arrives=_from_both,
    steps={"mpi": out_of_place_only(_mpi)},
)
