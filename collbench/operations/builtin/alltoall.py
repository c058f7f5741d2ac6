"""All-to-all: every rank has one part for each rank, and ends with the parts for it from all ranks. Also alltoallv, with uneven parts.

Only MPI supports it in place: nccl.h has no such form, and Gloo's result in a buffer that it also reads varies between calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from collbench.operations.operation import Binding, Block, Operation, Place, needs_out_of_place, out_of_place_only
from collbench.operations.program import Call
from collbench.operations.traffic import elements

# All-to-all with uneven parts: every rank sends every other rank the number of elements in the case's traffic, which may be 0.


def _parts(x: Binding | Place) -> tuple[list[int], list[int]]:
    """Return (elements to, elements from) each rank."""
    of_all = elements(x.case.traffic, x.n, x.count)
    return of_all[x.rank].tolist(), of_all[:, x.rank].tolist()


def _starts(parts: Sequence[int]) -> list[int]:
    return list(accumulate(parts, initial=0))[:-1]


def _expected(x: Place) -> list[Block]:
    """Return the blocks by sender. A sender's part for this rank follows its parts for lower ranks."""
    of_all = elements(x.case.traffic, x.n, x.count)
    starts = of_all[:, : x.rank].sum(axis=1).tolist()
    return [Block([rank], at, count) for rank, (at, count) in enumerate(zip(starts, _parts(x)[1], strict=True)) if count]


def _mpi_alltoallv(x: Binding) -> Iterator[Call]:
    sent, received = ((x.array(parts), x.array(_starts(parts)), x.type) for parts in _parts(x))
    yield x.call("MPI_Alltoallv", x.send, *sent, x.recv, *received, x.comm)


def _messages(x: Binding) -> Iterator[Call]:
    sent, received = _parts(x)
    yield from x.together()
    for post, memory, parts in ((x.post_receive, x.recv, received), (x.post_send, x.send, sent)):
        for rank, (at, count) in enumerate(zip(_starts(parts), parts, strict=True)):
            if count:
                yield post(rank, memory[at:], count)
    yield x.waitall()


ALLTOALLV = Operation(
    name="alltoallv",
    summary="every rank sends every rank a part of its own size (--skew, --traffic)",
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    sends=lambda x: sum(_parts(x)[0]),
    expected_blocks=_expected,
    needs=needs_out_of_place("alltoallv"),
    steps={"mpi": _mpi_alltoallv, "torch": lambda x: [x.call("all_to_all_single", x.recv, x.send, *reversed(_parts(x)), group=x.comm)]},
    by_messages=_messages,
    uneven=True,
)


def _nccl(x: Binding) -> Iterator[Call]:
    if x.has("ncclAlltoAll"):
        yield x.call("ncclAlltoAll", x.send, x.recv, x.count, x.type, x.comm, x.stream)
        return
    yield from x.together()
    for rank in range(x.n):
        yield x.post_send(rank, x.send[rank * x.count :], x.count)
        yield x.post_receive(rank, x.recv[rank * x.count :], x.count)
    yield x.waitall()


ALLTOALL = Operation(
    name="alltoall",
    summary="every rank sends every rank a part of its buffer",
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    parts=lambda n: n,
    sends=lambda x: x.n * x.count,
    expected_blocks=lambda x: [Block([rank], at=x.rank * x.count, count=x.count) for rank in x.ranks],
    steps={
        "mpi": lambda x: [x.call("MPI_Alltoall", x.unless_in_place(x.send), x.count, x.type, x.recv, x.count, x.type, x.comm)],
        "nccl": out_of_place_only(_nccl),
        "torch": out_of_place_only(lambda x: [x.call("all_to_all_single", x.recv, x.send, group=x.comm)]),
    },
)
