"""Operations that go wrong, found by the entry point that `launch` installs: each of the project's own with each fault, "dropped_reduce".

dropped   one rank's data arrives as zeros                     swapped   the halves of what one rank received change places
flipped   one bit of that rank's element 3 is another one      silent    nothing is moved at all

"other_root" is a broadcast from the wrong root, in one call, so that a library can start it.

Data is spoilt where the library's calls find or leave it: by messages of a rank to itself (MPI, NCCL), on torch's tensors, or in the
rank's memory (UCC and oneCCL, whose backends have the operations' own steps).
"""

import ctypes
from functools import partial

from msgspec.structs import replace

from collbench.native.library import address
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.alltoall import ALLTOALL, ALLTOALLV
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.gather_scatter import GATHER, SCATTER
from collbench.operations.builtin.hypercube import HYPERCUBE
from collbench.operations.builtin.reduce import REDUCE
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.builtin.scan import EXSCAN, SCAN
from collbench.operations.builtin.sendrecv import SENDRECV
from collbench.operations.builtin.vector import ALLGATHERV, GATHERV, REDUCESCATTERV, SCATTERV
from collbench.operations.operation import Operation, Place, in_place_only
from collbench.operations.program import NativeCall, PythonCall
from collbench.plugin import loaded, plugins

BAD_ELEMENT, TOP_BIT = 3, 0x80
_LIBRARIES = ("oneccl", "ucc") if "libraries" in plugins() else ()
# By library: the operations that are not defined by their own file.
OWN_STEPS = {library: loaded(f"collbench.plugins.libraries.{library}.backend:STEPS") for library in _LIBRARIES}
SPOILT = {
    one.name: one
    for one in (
        ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, ALLTOALLV, GATHER, SCATTER, SENDRECV, HYPERCUBE,
        SCAN, EXSCAN, ALLGATHERV, GATHERV, SCATTERV, REDUCESCATTERV,
    )
}  # fmt: skip


def dropped_rank(operation, root):
    """Of two ranks the one that is not the root, but the root where only that one sends."""
    return root if operation in (SCATTER, SCATTERV, BROADCAST, EXSCAN) else 1 - root


def spoilt_rank(operation, root):
    """Return the rank with corrupted received data: rank 0, or the root if only the root receives; in a scan rank 1, which has sums."""
    if operation in (SCAN, EXSCAN):
        return 1
    return root if operation in (GATHER, GATHERV, REDUCE) else 0


def _place(x):
    return Place(x.rank, x.n, x.count, x.case)


def _copied(x, api, to, source, count):
    """`count` elements from one place of this rank's memory to another."""
    if api in OWN_STEPS:
        yield PythonCall("copy", partial(ctypes.memmove, int(to), int(source), count * x.case.dtype.size))
        return
    yield from x.together()
    yield x.post_receive(x.rank, to, count)
    yield x.post_send(x.rank, source, count)
    yield x.waitall()


def _drop(x, operation, api):
    if x.rank != dropped_rank(operation, x.root):
        return
    if api == "torch":
        yield PythonCall("zero", x.send.zero_)
    else:
        count = operation.sends(_place(x))
        yield from _copied(x, api, x.send, x.array([0] * count), count)


def _swap(x, operation, api):
    if x.rank != spoilt_rank(operation, x.root):
        return
    half = operation.receives(_place(x)) // 2
    if api == "torch":
        yield PythonCall("swap", lambda: x.recv.copy_(x.recv.roll(half)))
        return
    spare = x.array([0] * half)
    yield from _copied(x, api, spare, x.recv, half)
    yield from _copied(x, api, x.recv, x.recv[half:], half)
    yield from _copied(x, api, x.recv[half:], spare, half)


def _flip(x, operation, api):
    if x.rank != spoilt_rank(operation, x.root):
        return
    if api == "torch":
        first = x.recv[BAD_ELEMENT : BAD_ELEMENT + 1].numpy().view("u1")
        yield PythonCall("flip", lambda: first.__setitem__(0, first[0] ^ TOP_BIT))
    else:  # 0x80 added to a byte flips its top bit and nothing else
        yield NativeCall("flip", address("collbench_sum_uint8"), (int(x.recv[BAD_ELEMENT:]), int(x.array([TOP_BIT])), 1))


def _nothing(*_):
    return iter(())


# By fault: what is done before and after the real calls, and by which libraries. A call of NCCL's flips no single bit.
FAULTS = {
    "dropped": (_drop, _nothing, ("mpi", "nccl", "torch", *OWN_STEPS)),
    "swapped": (_nothing, _swap, ("mpi", "nccl", "torch", *OWN_STEPS)),
    "flipped": (_nothing, _flip, ("mpi", "torch", *OWN_STEPS)),
}


def _steps_of(operation: Operation, api: str):
    return OWN_STEPS.get(api, {}).get(operation.name) or operation.steps_of(api, messages=api != "ucc")  # UCC has no messages


def _spoilt(operation: Operation, fault: str, api: str):
    """The operation's own calls with a fault around them, in the placings that the operation has."""
    steps, (before, after, _) = _steps_of(operation, api), FAULTS[fault]

    def spoilt(x):
        yield from before(x, operation, api)
        yield from steps(x)
        yield from after(x, operation, api)

    for mark in ("in_place_only", "out_of_place_only", "result_first"):
        setattr(spoilt, mark, getattr(steps, mark, False))
    return spoilt


def _faulty(operation: Operation, fault: str) -> Operation:
    steps = {api: _spoilt(operation, fault, api) for api in FAULTS[fault][2] if _steps_of(operation, api)}
    return replace(operation, name=f"{fault}_{operation.name}", steps=steps, by_messages=None, command="faulty")


globals().update({f"{fault}_{one.name}".upper(): _faulty(one, fault) for one in SPOILT.values() for fault in FAULTS})
SILENT = replace(ALLREDUCE, name="silent", steps=dict.fromkeys(("mpi", "nccl", "torch", *OWN_STEPS), _nothing), command="faulty")


def _from_the_other(call):
    """Steps of a broadcast of two ranks from the rank that is not the root, in one call."""
    return in_place_only(lambda x: [call(x, 1 - x.root)])


OTHER_ROOT = replace(
    BROADCAST,
    name="other_root",
    steps={
        "mpi": _from_the_other(lambda x, root: x.call("MPI_Bcast", x.recv, x.count, x.type, root, x.comm)),
        "nccl": lambda x: [x.call("ncclBroadcast", x.send, x.recv, x.count, x.type, 1 - x.root, x.comm, x.stream)],
        "torch": _from_the_other(lambda x, root: x.call("broadcast", x.recv, src=x.peer(root), group=x.comm)),
    },
)
