"""All-reduce: every rank ends with the reduction of all ranks' buffers."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, in_place_only
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Allreduce", x.unless_in_place(x.send), x.recv, x.count, x.type, x.redop, x.comm)


def _nccl(x: Binding) -> Iterator[Call]:
    yield x.call("ncclAllReduce", x.send, x.recv, x.count, x.type, x.redop, x.comm, x.stream)


def _torch(x: Binding) -> Iterator[Call]:
    yield x.call("all_reduce", x.recv, op=x.redop, group=x.comm)


ALLREDUCE = Operation(
    name="allreduce",
    summary="every rank gets the reduction of all ranks' buffers",
    reduces=True,
    bus_factor=lambda n: 2 * (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    expected_blocks=lambda x: [Block(x.ranks, at=0, count=x.count)],
    steps={"mpi": _mpi, "nccl": _nccl, "torch": in_place_only(_torch)},
    cpu_model="allreduce",
)
