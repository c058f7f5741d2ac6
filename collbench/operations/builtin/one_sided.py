"""One-sided put, get and accumulate between the two ranks of a pair: rank 0 accesses memory that rank 1 exposes, rank 1 calls nothing.

MPI_Win_flush ends each iteration: it returns when the data is complete at the target, too (MPI 4.1, 12.5.4), not only when the
send buffer can be reused. All messages of a window use the same buffers, as in p2p_bandwidth.

In accumulate, the library decides whether rank 0 or rank 1 computes the sum. Each call changes the input of the next one. So rank 1's
memory is refilled before each verified call, and timed sums use zeros (see WindowBuffers in backends/mpi.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from collbench.operations.builtin.p2p import window
from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _mpi(function: str, x: Binding, own_buffer: object, *redop: object) -> Iterator[Call]:
    if x.rank:
        return
    for _ in range(window(x.case)):
        yield x.call(function, own_buffer, x.count, x.type, x.peer(1), x.there, x.count, x.type, *redop, x.window)
    yield x.call("MPI_Win_flush", x.peer(1), x.window)


ACCUMULATE = Operation(
    name="accumulate",
    summary="one-sided: a buffer reduced into another rank's memory, until it is there",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # all bytes go in one direction
    pair=True,
    one_sided=True,
    reduces=True,
    cpu_model="sum",
    expected_blocks=lambda x: [Block([0, 1], at=0, count=x.count)] if x.rank == 1 else [],
    steps={"mpi": lambda x: _mpi("MPI_Accumulate", x, x.send, x.redop)},
)
GET_LATENCY = Operation(
    name="get_latency",
    command="get",
    summary="one-sided: a get from another rank's memory",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # all bytes go in one direction
    pair=True,
    one_sided=True,
    sends=lambda x: x.count if x.rank == 1 else 0,
    expected_blocks=lambda x: [Block([1], at=0, count=x.count)] if x.rank == 0 else [],
    steps={"mpi": lambda x: _mpi("MPI_Get", x, x.recv)},
)
GET_BANDWIDTH = replace(GET_LATENCY, name="get_bandwidth", summary="a window of gets, until the last is here", windowed=True, moves=window)
PUT_LATENCY = replace(
    GET_LATENCY,
    name="put_latency",
    command="put",
    summary="one-sided: a put into another rank's memory, until it is there",
    sends=lambda x: x.count if x.rank == 0 else 0,
    expected_blocks=lambda x: [Block([0], at=0, count=x.count)] if x.rank == 1 else [],
    steps={"mpi": lambda x: _mpi("MPI_Put", x, x.send)},
)
PUT_BANDWIDTH = replace(PUT_LATENCY, name="put_bandwidth", summary="a window of puts, until the last is there", windowed=True, moves=window)
