"""Ping-pong between the two ranks of a pair: half the round trip at the initiator is the latency."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call

_TAG = 1


def _mpi(x: Binding) -> Iterator[Call]:
    other = x.peer(1 - x.rank)
    send = x.call("MPI_Send", x.send, x.count, x.type, other, _TAG, x.comm)
    receive = x.call("MPI_Recv", x.recv, x.count, x.type, other, _TAG, x.comm, x.status)
    yield from (send, receive) if x.rank == 0 else (receive, send)


def _nccl(x: Binding) -> Iterator[Call]:
    other = x.peer(1 - x.rank)
    send = x.call("ncclSend", x.send, x.count, x.type, other, x.comm, x.stream)
    receive = x.call("ncclRecv", x.recv, x.count, x.type, other, x.comm, x.stream)
    yield from (send, receive) if x.rank == 0 else (receive, send)


def _torch(x: Binding) -> Iterator[Call]:
    other = x.peer(1 - x.rank)
    send = x.call("send", x.send, dst=other, group=x.comm)
    receive = x.call("recv", x.recv, src=other, group=x.comm)
    yield from (send, receive) if x.rank == 0 else (receive, send)


P2P_LATENCY = Operation(
    name="p2p_latency",
    command="p2p",
    summary="ping-pong between pairs of ranks: half the round trip",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    paces_itself=True,
    moves=lambda cell: 2,  # one there, one back
    arrives=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    steps={"mpi": _mpi, "nccl": _nccl, "torch": _torch},
)
