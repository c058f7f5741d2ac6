"""Reduce-scatter: all ranks' buffers are reduced, and every rank gets its part of the result."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, result_first
from collbench.operations.program import Call


def _torch(x: Binding) -> Iterator[Call]:
    name = "reduce_scatter_single" if x.has("reduce_scatter_single") else "reduce_scatter_tensor"  # renamed in torch 2.13
    yield x.call(name, x.recv, x.send, op=x.redop, group=x.comm)


REDUCESCATTER = Operation(
    name="reducescatter",
    summary="every rank gets its part of the reduction of all ranks' buffers",
    reduces=True,
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    sends=lambda x: x.n * x.count,
    expected_blocks=lambda x: [Block(x.ranks, at=x.rank * x.count, count=x.count)],
    steps={
        "mpi": result_first(
            lambda x: [x.call("MPI_Reduce_scatter_block", x.unless_in_place(x.send), x.recv, x.count, x.type, x.redop, x.comm)]
        ),
        "nccl": lambda x: [x.call("ncclReduceScatter", x.send, x.recv, x.count, x.type, x.redop, x.comm, x.stream)],
        "torch": _torch,
    },
    cpu_model="sum",
)
