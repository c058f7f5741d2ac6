"""Windowed bandwidth between the two ranks of a pair: W messages in flight, acknowledged; one way, or both at once.

All messages of a window use the same buffers, as OSU's benchmark does: a window of 64 MiB messages would not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from collbench.operations.cell import Cell
from collbench.operations.operation import Binding, Block, Operation, Place, Steps
from collbench.operations.program import Call

_TAG, _ACKNOWLEDGE = 1, 2
_Directed = Callable[[Binding, bool, bool], Iterator[Call]]  # binding, whether this rank sends, whether it receives


def _mpi(x: Binding, sends: bool, receives: bool) -> Iterator[Call]:
    other, ack = x.peer(1 - x.rank), x.scratch
    for _ in range(_window(x.cell)):
        if receives:
            yield x.post("MPI_Irecv", x.recv, x.count, x.type, other, _TAG, x.comm)
        if sends:
            yield x.post("MPI_Isend", x.send, x.count, x.type, other, _TAG, x.comm)
    yield x.waitall()
    send = x.call("MPI_Send", ack, 1, x.byte, other, _ACKNOWLEDGE, x.comm)
    receive = x.call("MPI_Recv", ack, 1, x.byte, other, _ACKNOWLEDGE, x.comm, x.status)
    yield receive if x.rank == 0 else send


def _torch(x: Binding, sends: bool, receives: bool) -> Iterator[Call]:
    other, ack = x.peer(1 - x.rank), x.scratch
    for _ in range(_window(x.cell)):
        if receives:
            yield x.post("irecv", x.recv, src=other, group=x.comm, tag=_TAG)
        if sends:
            yield x.post("isend", x.send, dst=other, group=x.comm, tag=_TAG)
    yield x.waitall()
    send = x.call("send", ack, dst=other, group=x.comm, tag=_ACKNOWLEDGE)
    receive = x.call("recv", ack, src=other, group=x.comm, tag=_ACKNOWLEDGE)
    yield receive if x.rank == 0 else send


def _window(cell: Cell) -> int:
    return cell.window or 1


def _one_way(steps: _Directed) -> Steps:
    return lambda x: steps(x, x.rank == 0, x.rank == 1)


def _both_ways(steps: _Directed) -> Steps:
    return lambda x: steps(x, True, True)


def _at_the_receiver(x: Place) -> Sequence[Block]:
    return [Block([0], at=0, count=x.count)] if x.rank == 1 else []


P2P_BANDWIDTH = Operation(
    name="p2p_bandwidth",
    command="p2p",
    summary="a window of messages one way between pairs of ranks",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    moves=_window,
    sends=lambda x: x.count if x.rank == 0 else 0,
    arrives=_at_the_receiver,
    steps={"mpi": _one_way(_mpi), "torch": _one_way(_torch)},
)

P2P_BIDIRECTIONAL = Operation(
    name="p2p_bidirectional",
    command="p2p",
    summary="a window of messages both ways at once; busbw is per direction",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    both_ways=True,
    moves=_window,
    arrives=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    steps={"mpi": _both_ways(_mpi), "torch": _both_ways(_torch)},
)
