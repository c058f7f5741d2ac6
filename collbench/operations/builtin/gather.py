"""Gather: the root ends with all ranks' buffers, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    send = x.unless_in_place(x.send) if x.rank == x.root else x.send  # MPI knows the token at the root alone
    yield x.call("MPI_Gather", send, x.count, x.type, x.recv, x.count, x.type, x.root, x.comm)


def _nccl(x: Binding) -> Iterator[Call]:
    if x.has("ncclGather"):
        yield x.call("ncclGather", x.send, x.recv, x.count, x.type, x.root, x.comm, x.stream)
        return
    yield from x.together()
    yield x.post_send(x.root, x.send, x.count)
    for rank in range(x.n) if x.rank == x.root else ():
        yield x.post_receive(rank, x.recv[rank * x.count :], x.count)
    yield x.waitall()


def _torch(x: Binding) -> Iterator[Call]:
    parts = list(x.recv.chunk(x.n)) if x.rank == x.root else None
    yield x.call("gather", x.send, parts, dst=x.peer(x.root), group=x.comm)


GATHER = Operation(
    name="gather",
    summary="the root gets all ranks' buffers",
    rooted=True,
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    arrives=lambda x: [Block([rank], at=0, count=x.count) for rank in x.ranks] if x.rank == x.root else [],
    steps={"mpi": _mpi, "nccl": _nccl, "torch": _torch},
)
