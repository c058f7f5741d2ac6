"""Windowed bandwidth between the two ranks of a pair: W messages in flight, acknowledged.

All messages of a window use the same buffers, as OSU's benchmark does: a window of 64 MiB messages would not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from collbench.operations.cell import Cell
from collbench.operations.operation import Binding, Block, Operation, Place, Steps
from collbench.operations.program import Call

_TAG, _ACKNOWLEDGE = 1, 2
Directed = Callable[[Binding, bool, bool], Iterator[Call]]  # binding, whether this rank sends, whether it receives


def _mpi(x: Binding, sends: bool, receives: bool) -> Iterator[Call]:
    other, ack = x.peer(1 - x.rank), x.scratch
    for _ in range(window(x.cell)):
        if receives:
            yield x.post("MPI_Irecv", x.recv, x.count, x.type, other, _TAG, x.comm)
        if sends:
            yield x.post("MPI_Isend", x.send, x.count, x.type, other, _TAG, x.comm)
    yield x.waitall()
    send = x.call("MPI_Send", ack, 1, x.byte, other, _ACKNOWLEDGE, x.comm)
    receive = x.call("MPI_Recv", ack, 1, x.byte, other, _ACKNOWLEDGE, x.comm, x.status)
    yield receive if x.rank == 0 else send


def _nccl(x: Binding, sends: bool, receives: bool) -> Iterator[Call]:
    other, ack = x.peer(1 - x.rank), x.scratch
    yield x.call("ncclGroupStart")
    for _ in range(window(x.cell)):
        if receives:
            yield x.post("ncclRecv", x.recv, x.count, x.type, other, x.comm, x.stream)
        if sends:
            yield x.post("ncclSend", x.send, x.count, x.type, other, x.comm, x.stream)
    yield x.waitall()
    yield x.call("ncclRecv" if x.rank == 0 else "ncclSend", ack, 1, x.byte, other, x.comm, x.stream)


def _torch(x: Binding, sends: bool, receives: bool) -> Iterator[Call]:
    other, ack = x.peer(1 - x.rank), x.scratch
    for _ in range(window(x.cell)):
        if receives:
            yield x.post("irecv", x.recv, src=other, group=x.comm, tag=_TAG)
        if sends:
            yield x.post("isend", x.send, dst=other, group=x.comm, tag=_TAG)
    yield x.waitall()
    send = x.call("send", ack, dst=other, group=x.comm, tag=_ACKNOWLEDGE)
    receive = x.call("recv", ack, src=other, group=x.comm, tag=_ACKNOWLEDGE)
    yield receive if x.rank == 0 else send


def window(cell: Cell) -> int:
    """Messages in flight."""
    return cell.window or 1


WINDOWED: Mapping[str, Directed] = {"mpi": _mpi, "nccl": _nccl, "torch": _torch}


def directed(sends: Callable[[int], bool], receives: Callable[[int], bool]) -> dict[str, Steps]:
    """The windowed steps of every api, where a rank of the pair sends and receives as these say."""
    return {api: partial(_of_rank, steps, sends, receives) for api, steps in WINDOWED.items()}


def _of_rank(steps: Directed, sends: Callable[[int], bool], receives: Callable[[int], bool], x: Binding) -> Iterator[Call]:
    return steps(x, sends(x.rank), receives(x.rank))


def _at_the_receiver(x: Place) -> Sequence[Block]:
    return [Block([0], at=0, count=x.count)] if x.rank == 1 else []


P2P_BANDWIDTH = Operation(
    name="p2p_bandwidth",
    command="p2p",
    summary="a window of messages one way between pairs of ranks",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    moves=window,
    sends=lambda x: x.count if x.rank == 0 else 0,
    arrives=_at_the_receiver,
    steps=directed(sends=lambda rank: rank == 0, receives=lambda rank: rank == 1),
)
