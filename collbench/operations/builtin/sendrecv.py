"""Send and receive around a ring: every rank sends its buffer to the next rank and receives that of the previous one, simultaneously.

Only MPI supports it in place, with a separate function. Messages would overwrite data that is still to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, needs_two_ranks, out_of_place_only
from collbench.operations.program import Call

_TAG = 1


def _mpi(x: Binding) -> Iterator[Call]:
    following = x.peer((x.rank + 1) % x.n)
    previous = x.peer((x.rank - 1) % x.n)
    if x.case.in_place:
        yield x.call("MPI_Sendrecv_replace", x.recv, x.count, x.type, following, _TAG, previous, _TAG, x.comm, x.status)
    else:
        yield x.call("MPI_Sendrecv", x.send, x.count, x.type, following, _TAG, x.recv, x.count, x.type, previous, _TAG, x.comm, x.status)


def _messages(x: Binding) -> Iterator[Call]:
    yield from x.together()
    yield x.post_receive((x.rank - 1) % x.n, x.recv, x.count)
    yield x.post_send((x.rank + 1) % x.n, x.send, x.count)
    yield x.waitall()


SENDRECV = Operation(
    name="sendrecv",
    summary="every rank sends to the next one of a ring",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests doc/PERFORMANCE.md; one rank has no next rank
    needs=needs_two_ranks("sendrecv"),
    expected_blocks=lambda x: [Block([(x.rank - 1) % x.n], at=0, count=x.count)],
    steps={"mpi": _mpi},
    by_messages=out_of_place_only(_messages),
)
