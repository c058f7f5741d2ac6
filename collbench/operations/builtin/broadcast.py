"""Broadcast: the root's buffer arrives at every rank."""

from __future__ import annotations

from collbench.operations.operation import Block, Operation, in_place_only

BROADCAST = Operation(
    name="broadcast",
    summary="the root's buffer arrives at every rank",
    rooted=True,
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests doc/PERFORMANCE.md; one rank moves nothing
    sends=lambda x: x.count if x.rank == x.root else 0,
    expected_blocks=lambda x: [Block([x.root], at=0, count=x.count)],
    steps={
        "mpi": in_place_only(lambda x: [x.call("MPI_Bcast", x.recv, x.count, x.type, x.root, x.comm)]),
        "nccl": lambda x: [x.call("ncclBroadcast", x.send, x.recv, x.count, x.type, x.root, x.comm, x.stream)],
        "torch": in_place_only(lambda x: [x.call("broadcast", x.recv, src=x.peer(x.root), group=x.comm)]),
    },
)
