"""Reduce: the root gets the reduction of all ranks' buffers."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, in_place_only
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    send = x.unless_in_place(x.send) if x.rank == x.root else x.send  # MPI accepts the constant only at the root
    yield x.call("MPI_Reduce", send, x.recv, x.count, x.type, x.redop, x.root, x.comm)


def _nccl(x: Binding) -> Iterator[Call]:
    yield x.call("ncclReduce", x.send, x.recv, x.count, x.type, x.redop, x.root, x.comm, x.stream)


def _torch(x: Binding) -> Iterator[Call]:
    yield x.call("reduce", x.send, dst=x.peer(x.root), op=x.redop, group=x.comm)


REDUCE = Operation(
    name="reduce",
    summary="the root gets the reduction of all ranks' buffers",
    reduces=True,
    rooted=True,
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests doc/PERFORMANCE.md; one rank moves nothing
    expected_blocks=lambda x: [Block(x.ranks, at=0, count=x.count)] if x.rank == x.root else [],
    steps={"mpi": _mpi, "nccl": _nccl, "torch": in_place_only(_torch)},
    cpu_model="reduce",
)
