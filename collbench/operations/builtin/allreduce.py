"""All-reduce: every rank ends with the reduction of all ranks' buffers."""

from __future__ import annotations

from collbench.operations.operation import Block, Operation, in_place_only

ALLREDUCE = Operation(
    name="allreduce",
    summary="every rank gets the reduction of all ranks' buffers",
    reduces=True,
    bus_factor=lambda n: 2 * (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    expected_blocks=lambda x: [Block(x.ranks, at=0, count=x.count)],
    steps={
        "mpi": lambda x: [x.call("MPI_Allreduce", x.unless_in_place(x.send), x.recv, x.count, x.type, x.redop, x.comm)],
        "nccl": lambda x: [x.call("ncclAllReduce", x.send, x.recv, x.count, x.type, x.redop, x.comm, x.stream)],
        "torch": in_place_only(lambda x: [x.call("all_reduce", x.recv, op=x.redop, group=x.comm)]),
    },
    cpu_model="allreduce",
)
