"""All-to-all with uneven parts: every rank sends every rank as many elements as the cell's traffic says, which may be none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from collbench.operations.operation import Binding, Block, Operation, Place
from collbench.operations.program import Call
from collbench.operations.traffic import elements


def _parts(x: Binding | Place) -> tuple[list[int], list[int]]:
    """(elements to, elements from) each rank."""
    of_all = elements(x.cell.traffic, x.n, x.count)
    return of_all[x.rank].tolist(), of_all[:, x.rank].tolist()


def _starts(parts: Sequence[int]) -> list[int]:
    return list(accumulate(parts, initial=0))[:-1]


def _arrives(x: Place) -> list[Block]:
    """Blocks of the senders; rank r's block stands behind what it sends to the ranks before this one."""
    of_all = elements(x.cell.traffic, x.n, x.count)
    starts = of_all[:, : x.rank].sum(axis=1).tolist()
    return [Block([rank], at, count) for rank, (at, count) in enumerate(zip(starts, _parts(x)[1], strict=True)) if count]


def _mpi(x: Binding) -> Iterator[Call]:
    there, here = ((x.array(parts), x.array(_starts(parts)), x.type) for parts in _parts(x))
    yield x.call("MPI_Alltoallv", x.send, *there, x.recv, *here, x.comm)


def _torch(x: Binding) -> Iterator[Call]:
    there, here = _parts(x)
    yield x.call("all_to_all_single", x.recv, x.send, here, there, group=x.comm)


def _messages(x: Binding) -> Iterator[Call]:
    there, here = _parts(x)
    yield from x.together()
    for post, memory, parts in ((x.post_receive, x.recv, here), (x.post_send, x.send, there)):
        for rank, (at, count) in enumerate(zip(_starts(parts), parts, strict=True)):
            if count:
                yield post(rank, memory[at:], count)
    yield x.waitall()


ALLTOALLV = Operation(
    name="alltoallv",
    summary="every rank sends every rank a part of its own size (--skew, --traffic)",
    bus_factor=lambda n: (n - 1) / n,  # nccl-tests doc/PERFORMANCE.md
    sends=lambda x: sum(_parts(x)[0]),
    arrives=_arrives,
    needs=lambda n, cell: "alltoallv has no in-place form" if cell.in_place else None,
    steps={"mpi": _mpi, "torch": _torch},
    by_messages=_messages,
    uneven=True,
)
