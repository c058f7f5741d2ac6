"""Creation of communicators and process groups (`init`): the time to make one and to free it, which is what elasticity costs.

Each iteration makes the groups and frees them, so that any number of iterations needs bounded resources. torch.distributed requires
every rank to call `new_group` for every group, also for those of other ranks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from collbench.operations.operation import Binding, Operation, needs_two_ranks
from collbench.operations.program import Call, PythonCall

Colour = Callable[[int, int], int]  # (rank, ranks) -> the number that all ranks of a group share


def _whole(rank: int, n: int) -> int:
    return 0


def _half(rank: int, n: int) -> int:
    return 2 * rank // n


def _second(rank: int, n: int) -> int:
    return rank % 2


def _dup(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Comm_dup", x.comm, x.scratch)
    yield x.call("MPI_Comm_free", x.scratch)


def _first_mpi(x: Any) -> Iterator[Call]:
    """Yield the calls of a communicator, a barrier over it, and its end: a library connects the ranks with the first collective."""
    barrier = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(x.pointer("MPI_Barrier"))
    handle = (ctypes.c_int if x.handle_bytes == 4 else ctypes.c_int64).from_address(int(x.scratch))

    def meet() -> None:
        code = barrier(handle.value % 2**64)
        if code:
            raise OSError(f"MPI_Barrier returned {code}")

    yield x.call("MPI_Comm_dup", x.comm, x.scratch)
    yield PythonCall("MPI_Barrier", meet)
    yield x.call("MPI_Comm_free", x.scratch)


def _session(x: Any) -> Iterator[Call]:
    """Yield the calls of a session, of a communicator of the group's ranks made from it, and of their end (MPI 4, chapter 11).

    Each call finds the handles that earlier calls wrote.
    """
    handle_type = ctypes.c_int if x.handle_bytes == 4 else ctypes.c_int64
    session, world, group, comm = (handle_type() for _ in range(4))
    ranks = (ctypes.c_int * x.n)(*x.world_ranks)
    world_name = ctypes.create_string_buffer(b"mpi://WORLD")
    tag = ctypes.create_string_buffer(f"collbench {x.world_ranks[0]}".encode())
    info = x.constant("INFO_NULL")
    errors = x.constant("ERRORS_RETURN")
    address = ctypes.addressof
    x.keep.extend((session, world, group, comm, ranks, world_name, tag))

    def call(name: str, *words: Any) -> PythonCall:
        pointer = x.pointer(name)

        def run() -> None:
            values = [word.value if isinstance(word, handle_type) else word for word in words]
            function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(values))(pointer)
            code = function(*(value % 2**64 for value in values))
            if code:
                raise OSError(f"{name} returned {code}")

        return PythonCall(name, run)

    yield call("MPI_Session_init", info, errors, address(session))
    yield call("MPI_Group_from_session_pset", session, address(world_name), address(world))
    yield call("MPI_Group_incl", world, x.n, address(ranks), address(group))
    yield call("MPI_Comm_create_from_group", group, address(tag), info, errors, address(comm))
    yield call("MPI_Comm_free", address(comm))
    yield call("MPI_Group_free", address(group))
    yield call("MPI_Group_free", address(world))
    yield call("MPI_Session_finalize", address(session))


def _by_node(x: Any) -> Iterator[Call]:
    yield x.call("MPI_Comm_split_type", x.comm, x.constant("COMM_TYPE_SHARED"), x.rank, x.constant("INFO_NULL"), x.scratch)
    yield x.call("MPI_Comm_free", x.scratch)


def _without_last_mpi(x: Any) -> Iterator[Call]:
    """Yield the calls of the ranks that stay; the one that is left out calls nothing."""
    if x.rank < x.n - 1:
        yield x.call("MPI_Comm_create_group", x.comm, x.group_of(range(x.n - 1)), 0, x.scratch)
        yield x.call("MPI_Comm_free", x.scratch)


def _split(colour: Colour) -> Callable[[Binding], Iterator[Call]]:
    """Return MPI steps in which the ranks of a color form a group."""

    def steps(x: Binding) -> Iterator[Call]:
        yield x.call("MPI_Comm_split", x.comm, colour(x.rank, x.n), x.rank, x.scratch)
        yield x.call("MPI_Comm_free", x.scratch)

    return steps


def _torch(groups: Callable[[int], Sequence[Sequence[int]]], first: bool = False) -> Callable[[Any], Iterator[Call]]:
    """Return torch steps that make these groups of n ranks and free them.

    first: with a barrier over each, since the first collective may connect the ranks.
    """

    def steps(x: Any) -> Iterator[Call]:
        own_groups: list[Any] = []
        for members in groups(x.n):
            ranks = [x.peer(rank) for rank in members]
            make = x.call("new_group", ranks).function
            yield PythonCall("new_group", partial(_make_into, own_groups, make) if x.rank in members else make)
        if first:
            yield PythonCall("barrier", lambda: [x.call("barrier", group=group).function() for group in own_groups])

        def free() -> None:
            while own_groups:
                x.call("destroy_process_group", own_groups.pop()).function()

        yield PythonCall("destroy_process_group", free)

    return steps


def _nccl(make: Callable[[Any], Call], first: bool = False) -> Callable[[Any], Iterator[Call]]:
    """Return NCCL steps that make communicators, with an all-reduce over them if it is the `first` collective, and free them."""

    def steps(x: Any) -> Iterator[Call]:
        yield make(x)
        if first:
            yield x.first()
        yield from x.free()

    return steps


def _make_into(groups: list[Any], make: Callable[[], object]) -> None:
    groups.append(make())


def _coloured(colour: Colour) -> Callable[[int], Sequence[Sequence[int]]]:
    def groups(n: int) -> list[list[int]]:
        colours = [colour(rank, n) for rank in range(n)]
        return [[rank for rank in range(n) if colours[rank] == shared] for shared in sorted(set(colours))]

    return groups


def _operation(name: str, summary: str, **steps: Any) -> Operation:
    return Operation(
        name=f"init_{name}", command="init", summary=summary, bus_factor=lambda n: 0.0, expected_blocks=lambda x: [],
        sends=lambda x: 0, is_barrier=True, creates=True, needs=needs_two_ranks(f"init_{name}"), steps=steps,
    )  # fmt: skip


CREATE = _operation(
    "create", "make and free a group of all ranks (MPI_Comm_dup, new_group, ncclCommInitRank)", mpi=_dup,
    torch=_torch(_coloured(_whole)), nccl=_nccl(lambda x: x.join()),
)  # fmt: skip
FIRST = _operation(
    "first", "the same with a barrier over it, the first collective", mpi=_first_mpi, torch=_torch(_coloured(_whole), first=True),
    nccl=_nccl(lambda x: x.join(), first=True),
)  # fmt: skip
SESSION = _operation(
    "session", "a session, a communicator of all ranks made from it, and their end (MPI_Session_init, MPI_Comm_create_from_group)",
    mpi=_session,
)  # fmt: skip
HALVES = _operation(
    "halves", "split the ranks into two halves", mpi=_split(_half), torch=_torch(_coloured(_half)), nccl=_nccl(lambda x: x.split(_half))
)
ALTERNATE = _operation(
    "alternate", "split the ranks into even and odd ones", mpi=_split(_second), torch=_torch(_coloured(_second)),
    nccl=_nccl(lambda x: x.split(_second)),
)  # fmt: skip
NODES = _operation(
    "nodes", "split the ranks by node (MPI_Comm_split_type, ncclCommSplit)", mpi=_by_node, nccl=_nccl(lambda x: x.split(x.node_of))
)
REFORM = _operation(
    "reform", "form a group again without the last rank (MPI_Comm_create_group, new_group, ncclCommShrink)", mpi=_without_last_mpi,
    torch=_torch(lambda n: [range(n - 1)]), nccl=_nccl(lambda x: x.shrink([x.n - 1])),
)  # fmt: skip
