"""One-sided accumulate between the two ranks of a pair: rank 0's elements are reduced into those that rank 1 shows.

MPI_Win_flush ends each iteration: it returns when the result is complete at the target (MPI 4.1, 12.5.4). Rank 1 calls nothing; who adds,
the library at rank 0 or that at rank 1, is the library's affair. Each call changes what the next one starts from: rank 1's memory
is filled anew before each verified call, and timed sums run on zeros (see the room backends, mpi_window).
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    if x.rank:
        return
    yield x.call("MPI_Accumulate", x.send, x.count, x.type, x.peer(1), x.there, x.count, x.type, x.redop, x.window)
    yield x.call("MPI_Win_flush", x.peer(1), x.window)


ACCUMULATE = Operation(
    name="accumulate",
    summary="one-sided: a buffer reduced into another rank's memory, until it is there",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # every byte goes one way
    pair=True,
    one_sided=True,
    reduces=True,
    cpu_model="sum",
    arrives=lambda x: [Block([0, 1], at=0, count=x.count)] if x.rank == 1 else [],
    steps={"mpi": _mpi},
)
