"""All-gather, gather, scatter and reduce-scatter with a part of its own size for each rank (--skew, --traffic). A part may be empty.

The size is that of all parts together, as for the operations with even parts. torch.distributed over Gloo rejects tensors of different
sizes, so these operations consist of messages there, and in NCCL, which has no such calls. A message of a rank to itself is left out
in place, the only form that every library of messages supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from collbench.operations.operation import Binding, Block, Operation, Place, in_place_only, result_first
from collbench.operations.program import Call
from collbench.operations.traffic import elements_by_rank


def _parts(x: Binding | Place) -> tuple[int, ...]:
    return elements_by_rank(x.case.traffic, x.n, x.count)


def _starts(x: Binding | Place) -> list[int]:
    """Return the first element of each rank's part in a buffer of all parts."""
    return list(accumulate(_parts(x), initial=0))[:-1]


def _own_count(x: Binding | Place) -> int:
    return _parts(x)[x.rank]


def _blocks(x: Place) -> list[Block]:
    """Return the parts of all ranks, in rank order."""
    return [Block([rank], at=0, count=count) for rank, count in enumerate(_parts(x))]


# MPI: counts and displacements of all parts. The constant for in-place calls is accepted at the root only, for the root's own part.


def _arrays(x: Binding) -> Iterator[object]:
    return iter((x.array(_parts(x)), x.array(_starts(x)), x.type))


def _received(x: Binding) -> object:
    """Return the receive buffer. Out of place, an empty one has the address of the sent elements, which MPICH rejects."""
    return x.recv if _own_count(x) or x.case.in_place else x.scratch


def _mpi_gatherv(x: Binding) -> Iterator[Call]:
    send = x.unless_in_place(x.send) if x.rank == x.root else x.send
    yield x.call("MPI_Gatherv", send, _own_count(x), x.type, x.recv, *_arrays(x), x.root, x.comm)


def _mpi_scatterv(x: Binding) -> Iterator[Call]:
    recv = x.unless_in_place(_received(x)) if x.rank == x.root else _received(x)
    yield x.call("MPI_Scatterv", x.send, *_arrays(x), recv, _own_count(x), x.type, x.root, x.comm)


# Messages, posted together. `itself`: whether a rank sends its own part to itself, out of place.


def _gathered(x: Binding, receivers: range | tuple[int], itself: bool) -> Iterator[Call]:
    """Send this rank's part to the receivers; a receiver receives all parts."""
    yield from x.together()
    if x.rank in receivers:
        for rank, (at, count) in enumerate(zip(_starts(x), _parts(x), strict=True)):
            if count and (itself or rank != x.rank):
                yield x.post_receive(rank, x.recv[at:], count)
    for rank in receivers if _own_count(x) else ():
        if itself or rank != x.rank:
            yield x.post_send(rank, x.send, _own_count(x))
    yield x.waitall()


def _scattered(x: Binding, itself: bool) -> Iterator[Call]:
    """Receive this rank's part from the root, which sends all parts."""
    yield from x.together()
    if _own_count(x) and (itself or x.rank != x.root):
        yield x.post_receive(x.root, x.recv, _own_count(x))
    if x.rank == x.root:
        for rank, (at, count) in enumerate(zip(_starts(x), _parts(x), strict=True)):
            if count and (itself or rank != x.rank):
                yield x.post_send(rank, x.send[at:], count)
    yield x.waitall()


ALLGATHERV = Operation(
    name="allgatherv",
    summary="every rank gets all ranks' buffers, each of its own size (--skew, --traffic)",
    bus_factor=lambda n: (n - 1) / n,  # as nccl-tests' all-gather, doc/PERFORMANCE.md; exact for even parts
    sends=_own_count,
    expected_blocks=_blocks,
    steps={
        "mpi": lambda x: [x.call("MPI_Allgatherv", x.unless_in_place(x.send), _own_count(x), x.type, x.recv, *_arrays(x), x.comm)],
        "nccl": lambda x: _gathered(x, range(x.n), itself=not x.case.in_place),
    },
    by_messages=in_place_only(lambda x: _gathered(x, range(x.n), itself=False)),
    uneven=True,
    by_rank=True,
)
GATHERV = Operation(
    name="gatherv",
    summary="the root gets all ranks' buffers, each of its own size (--skew, --traffic)",
    rooted=True,
    bus_factor=lambda n: (n - 1) / n,  # as nccl-tests' gather, doc/PERFORMANCE.md; exact for even parts
    sends=_own_count,
    expected_blocks=lambda x: _blocks(x) if x.rank == x.root else [],
    steps={"mpi": _mpi_gatherv, "nccl": lambda x: _gathered(x, (x.root,), itself=not x.case.in_place)},
    by_messages=in_place_only(lambda x: _gathered(x, (x.root,), itself=False)),
    uneven=True,
    by_rank=True,
)
SCATTERV = Operation(
    name="scatterv",
    summary="every rank gets its part of the root's buffer, each of its own size (--skew, --traffic)",
    rooted=True,
    bus_factor=lambda n: (n - 1) / n,  # as nccl-tests' scatter, doc/PERFORMANCE.md; exact for even parts
    sends=lambda x: x.count if x.rank == x.root else 0,
    expected_blocks=lambda x: [Block([x.root], at=_starts(x)[x.rank], count=_own_count(x))],
    steps={"mpi": _mpi_scatterv, "nccl": lambda x: _scattered(x, itself=not x.case.in_place)},
    by_messages=in_place_only(lambda x: _scattered(x, itself=False)),
    uneven=True,
    by_rank=True,
)
REDUCESCATTERV = Operation(
    name="reducescatterv",
    summary="every rank gets its part of the reduction of all ranks' buffers, each of its own size (--skew, --traffic)",
    reduces=True,
    bus_factor=lambda n: (n - 1) / n,  # as nccl-tests' reduce-scatter, doc/PERFORMANCE.md; exact for even parts
    sends=lambda x: x.count,
    expected_blocks=lambda x: [Block(x.ranks, at=_starts(x)[x.rank], count=_own_count(x))],
    steps={
        "mpi": result_first(
            lambda x: [x.call("MPI_Reduce_scatter", x.unless_in_place(x.send), _received(x), x.array(_parts(x)), x.type, x.redop, x.comm)]
        ),
    },
    uneven=True,
    by_rank=True,
    cpu_model="sum",
)
