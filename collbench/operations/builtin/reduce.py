"""Reduce: the root gets the reduction of all ranks' buffers."""

from __future__ import annotations

from collbench.operations.operation import Block, Operation, in_place_only

REDUCE = Operation(
    name="reduce",
    summary="the root gets the reduction of all ranks' buffers",
    reduces=True,
    rooted=True,
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests doc/PERFORMANCE.md; one rank moves nothing
    expected_blocks=lambda x: [Block(x.ranks, at=0, count=x.count)] if x.rank == x.root else [],
    steps={
        "mpi": lambda x: [
            # MPI accepts the constant only at the root
            x.call(
                "MPI_Reduce", x.unless_in_place(x.send) if x.rank == x.root else x.send, x.recv, x.count, x.type, x.redop, x.root, x.comm
            )
        ],
        "nccl": lambda x: [x.call("ncclReduce", x.send, x.recv, x.count, x.type, x.redop, x.root, x.comm, x.stream)],
        "torch": in_place_only(lambda x: [x.call("reduce", x.send, dst=x.peer(x.root), op=x.redop, group=x.comm)]),
    },
    cpu_model="reduce",
)
