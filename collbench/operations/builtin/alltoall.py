"""All-to-all: every rank has a part for each rank, and ends with the parts that all ranks had for it.

In place it is MPI's alone: nccl.h knows no such form, and what Gloo leaves in a buffer that it also reads differs from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, out_of_place_only
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Alltoall", x.unless_in_place(x.send), x.count, x.type, x.recv, x.count, x.type, x.comm)


def _nccl(x: Binding) -> Iterator[Call]:
    if x.has("ncclAlltoAll"):
        yield x.call("ncclAlltoAll", x.send, x.recv, x.count, x.type, x.comm, x.stream)
        return
    yield from x.together()
    for rank in range(x.n):
        yield x.post_send(rank, x.send[rank * x.count :], x.count)
        yield x.post_receive(rank, x.recv[rank * x.count :], x.count)
    yield x.waitall()


def _torch(x: Binding) -> Iterator[Call]:
    yield x.call("all_to_all_single", x.recv, x.send, group=x.comm)


ALLTOALL = Operation(
    name="alltoall",
    summary="every rank sends every rank a part of its buffer",
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    sends=lambda x: x.n * x.count,
    arrives=lambda x: [Block([rank], at=x.rank * x.count, count=x.count) for rank in x.ranks],
    steps={"mpi": _mpi, "nccl": out_of_place_only(_nccl), "torch": out_of_place_only(_torch)},
)
