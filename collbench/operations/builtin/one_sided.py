"""One-sided put between the two ranks of a pair: rank 0 writes into memory that rank 1 shows, and waits until the data is there.

MPI_Win_flush ends each iteration: it returns when what was put is complete at the target, too (MPI 4.1, 12.5.4), not only when the
send buffer may be written again. Rank 1 calls nothing. All messages of a window go to the same place, as in p2p_bandwidth.
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
        yield x.call("MPI_Put", x.send, x.count, x.type, x.peer(1), x.there, x.count, x.type, x.window)
    yield x.call("MPI_Win_flush", x.peer(1), x.window)


PUT_LATENCY = Operation(
    name="put_latency",
    command="put",
    summary="one-sided: a put into another rank's memory, until it is there",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # every byte goes one way
    pair=True,
    one_sided=True,
    sends=lambda x: x.count if x.rank == 0 else 0,
    arrives=lambda x: [Block([0], at=0, count=x.count)] if x.rank == 1 else [],
    steps={"mpi": _mpi},
)
PUT_BANDWIDTH = replace(PUT_LATENCY, name="put_bandwidth", summary="a window of puts, until the last is there", windowed=True, moves=window)
