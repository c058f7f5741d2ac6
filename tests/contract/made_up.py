"""Operations of tests, found by the entry point that `launch` installs: two that later issues bring for real, and four that go wrong.

dropped   leaves rank 1's share out of a sum          swapped   puts the blocks of ranks 0 and 1 into one another's place
flipped   flips one bit of rank 0's element 3         silent    moves nothing at all
"""

from __future__ import annotations

from dataclasses import replace

from collbench.operations.allreduce import ALLREDUCE
from collbench.operations.operation import Block, Operation, in_place_only
from collbench.operations.program import NativeCall, PythonCall
from collbench.timing.native import address

BAD_ELEMENT, TOP_BIT = 3, 0x80


def _dropped_mpi(x):
    send = x.array([0] * (2 * x.count)) if x.rank == 1 else x.send
    yield x.call("MPI_Allreduce", send, x.recv, x.count, x.type, x.redop, x.comm)


def _dropped_torch(x):
    if x.rank == 1:
        yield PythonCall("zero", x.recv.zero_)
    yield x.call("all_reduce", x.recv, op=x.redop, group=x.comm)


def _flipped_mpi(x):
    yield x.call("MPI_Allreduce", x.send, x.recv, x.count, x.type, x.redop, x.comm)
    if x.rank == 0:  # 0x80 added to a byte flips its top bit and nothing else
        yield NativeCall("flip", address("collbench_sum_uint8"), (int(x.recv[BAD_ELEMENT:]), int(x.array([TOP_BIT])), 1))


def _flipped_torch(x):
    yield x.call("all_reduce", x.recv, op=x.redop, group=x.comm)
    if x.rank == 0:
        first = x.recv[BAD_ELEMENT : BAD_ELEMENT + 1].numpy().view("u1")
        yield PythonCall("flip", lambda: first.__setitem__(0, first[0] ^ TOP_BIT))


def _gather_mpi(x):
    yield x.call("MPI_Allgather", x.unless_in_place(x.send), x.count, x.type, x.recv, x.count, x.type, x.comm)


def _gather_torch(x):
    yield x.call("all_gather", list(x.recv.chunk(x.n)), x.send, group=x.comm)


def _swapped_mpi(x):
    places = x.array([x.count, 0, *range(2 * x.count, x.n * x.count, x.count)])
    yield x.call("MPI_Allgatherv", x.send, x.count, x.type, x.recv, x.array([x.count] * x.n), places, x.type, x.comm)


def _swapped_torch(x):
    first, second, *rest = x.recv.chunk(x.n)
    yield x.call("all_gather", [second, first, *rest], x.send, group=x.comm)


def _gather_nccl(x):
    """Sends and receives of one group."""
    yield x.call("ncclGroupStart")
    for rank in range(x.n):
        yield x.call("ncclSend", x.send, x.count, x.type, x.peer(rank), x.comm, x.stream)
        yield x.call("ncclRecv", x.recv[rank * x.count :], x.count, x.type, x.peer(rank), x.comm, x.stream)
    yield x.call("ncclGroupEnd")


def _swapped_nccl(x):
    yield x.call("ncclGroupStart")
    for rank, place in enumerate([1, 0, *range(2, x.n)]):
        yield x.call("ncclSend", x.send, x.count, x.type, x.peer(rank), x.comm, x.stream)
        yield x.call("ncclRecv", x.recv[place * x.count :], x.count, x.type, x.peer(rank), x.comm, x.stream)
    yield x.call("ncclGroupEnd")


def _dropped_nccl(x):
    yield x.call("ncclBroadcast", x.send, x.recv, x.count, x.type, 0, x.comm, x.stream)


def _scatter_nccl(x):
    yield x.call("ncclReduceScatter", x.send, x.recv, x.count, x.type, x.redop, x.comm, x.stream)


def _scatter_mpi(x):
    yield x.call("MPI_Reduce_scatter_block", x.unless_in_place(x.send), x.recv, x.count, x.type, x.redop, x.comm)


def _silent(x):
    return iter(())


ALLGATHER = Operation(
    "test_allgather", lambda n: (n - 1) / n, lambda x: [Block([rank], 0, x.count) for rank in x.ranks],
    {"mpi": _gather_mpi, "nccl": _gather_nccl, "torch": _gather_torch}, parts=lambda n: n,
)  # fmt: skip
REDUCESCATTER = Operation(
    "test_reducescatter", lambda n: (n - 1) / n, lambda x: [Block(x.ranks, x.rank * x.count, x.count)],
    {"mpi": _scatter_mpi, "nccl": _scatter_nccl}, reduces=True, sends=lambda x: x.n * x.count, parts=lambda n: n,
)  # fmt: skip
DROPPED = replace(
    ALLREDUCE, name="dropped", steps={"mpi": _dropped_mpi, "nccl": _dropped_nccl, "torch": in_place_only(_dropped_torch)}, command="faulty"
)
FLIPPED = replace(ALLREDUCE, name="flipped", steps={"mpi": _flipped_mpi, "torch": in_place_only(_flipped_torch)}, command="faulty")
SWAPPED = replace(ALLGATHER, name="swapped", steps={"mpi": _swapped_mpi, "nccl": _swapped_nccl, "torch": _swapped_torch}, command="faulty")
SILENT = replace(
    ALLREDUCE, name="silent", steps={"mpi": _silent, "nccl": _silent, "torch": in_place_only(lambda x: iter(()))}, command="faulty"
)
