"""All-gather: every rank ends with all ranks' buffers, in the order of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _torch(x: Binding) -> Iterator[Call]:
    name = "all_gather_single" if x.has("all_gather_single") else "all_gather_into_tensor"  # renamed in torch 2.13
    yield x.call(name, x.recv, x.send, group=x.comm)


ALLGATHER = Operation(
    name="allgather",
    summary="every rank gets all ranks' buffers",
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    expected_blocks=lambda x: [Block([rank], at=0, count=x.count) for rank in x.ranks],
    steps={
        "mpi": lambda x: [x.call("MPI_Allgather", x.unless_in_place(x.send), x.count, x.type, x.recv, x.count, x.type, x.comm)],
        "nccl": lambda x: [x.call("ncclAllGather", x.send, x.recv, x.count, x.type, x.comm, x.stream)],
        "torch": _torch,
    },
)
