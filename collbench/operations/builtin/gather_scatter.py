"""Gather: the root ends with all ranks' buffers, in rank order. Scatter: every rank gets its part of the root's buffer."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call

# MPI accepts its constant for in-place calls only at the root, for the root's own part.


def _mpi_gather(x: Binding) -> Iterator[Call]:
    send = x.unless_in_place(x.send) if x.rank == x.root else x.send
    yield x.call("MPI_Gather", send, x.count, x.type, x.recv, x.count, x.type, x.root, x.comm)


def _nccl_gather(x: Binding) -> Iterator[Call]:
    if x.has("ncclGather"):
        yield x.call("ncclGather", x.send, x.recv, x.count, x.type, x.root, x.comm, x.stream)
        return
    yield from x.together()
    yield x.post_send(x.root, x.send, x.count)
    for rank in range(x.n) if x.rank == x.root else ():
        yield x.post_receive(rank, x.recv[rank * x.count :], x.count)
    yield x.waitall()


def _mpi_scatter(x: Binding) -> Iterator[Call]:
    recv = x.unless_in_place(x.recv) if x.rank == x.root else x.recv
    yield x.call("MPI_Scatter", x.send, x.count, x.type, recv, x.count, x.type, x.root, x.comm)


def _nccl_scatter(x: Binding) -> Iterator[Call]:
    if x.has("ncclScatter"):
        yield x.call("ncclScatter", x.send, x.recv, x.count, x.type, x.root, x.comm, x.stream)
        return
    yield from x.together()
    for rank in range(x.n) if x.rank == x.root else ():
        yield x.post_send(rank, x.send[rank * x.count :], x.count)
    yield x.post_receive(x.root, x.recv, x.count)
    yield x.waitall()


def _tensors(x: Binding, whole: object) -> list[object] | None:
    """Return torch's list of the parts of all ranks, which only the root gives."""
    return list(whole.chunk(x.n)) if x.rank == x.root else None  # type: ignore[attr-defined]


GATHER = Operation(
    name="gather",
    summary="the root gets all ranks' buffers",
    rooted=True,
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    expected_blocks=lambda x: [Block([rank], at=0, count=x.count) for rank in x.ranks] if x.rank == x.root else [],
    steps={
        "mpi": _mpi_gather,
        "nccl": _nccl_gather,
        "torch": lambda x: [x.call("gather", x.send, _tensors(x, x.recv), dst=x.peer(x.root), group=x.comm)],
    },
)
SCATTER = Operation(
    name="scatter",
    summary="every rank gets its part of the root's buffer",
    rooted=True,
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    sends=lambda x: x.n * x.count if x.rank == x.root else 0,
    expected_blocks=lambda x: [Block([x.root], at=x.rank * x.count, count=x.count)],
    steps={
        "mpi": _mpi_scatter,
        "nccl": _nccl_scatter,
        "torch": lambda x: [x.call("scatter", x.recv, _tensors(x, x.send), src=x.peer(x.root), group=x.comm)],
    },
)
