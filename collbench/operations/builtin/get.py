"""One-sided get between the two ranks of a pair: rank 0 reads memory that rank 1 shows. Rank 1 calls nothing.

MPI_Win_flush ends each iteration: it returns when the data is here (MPI 4.1, 12.5.4). All messages of a window come from and go to
the same places, as in p2p_bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collbench.operations.builtin.p2p_bandwidth import window
from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    if x.rank:
        return
    for _ in range(window(x.cell)):
        yield x.call("MPI_Get", x.recv, x.count, x.type, x.peer(1), x.there, x.count, x.type, x.window)
    yield x.call("MPI_Win_flush", x.peer(1), x.window)


GET_LATENCY = Operation(
    name="get_latency",
    command="get",
    summary="one-sided: a get from another rank's memory",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # every byte goes one way
    pair=True,
    one_sided=True,
    sends=lambda x: x.count if x.rank == 1 else 0,
    arrives=lambda x: [Block([1], at=0, count=x.count)] if x.rank == 0 else [],
    steps={"mpi": _mpi},
)
GET_BANDWIDTH = replace(GET_LATENCY, name="get_bandwidth", summary="a window of gets, until the last is here", windowed=True, moves=window)
