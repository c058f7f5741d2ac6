"""The binding of the "nccl" steps of `init`: communicators that each iteration makes and frees, by calls of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from collbench.backends.backend import Group
from collbench.backends.nccl.binding import Communicators, grouped
from collbench.backends.nccl.library import DATATYPES, REDOPS, NcclLibrary
from collbench.operations.program import PythonCall

if TYPE_CHECKING:
    from collbench.backends.nccl.backend import RankGpu


class HostCalls(msgspec.Struct, frozen=True):
    """What `GroupCreation` needs of its backend.

    unique_id   returns the unique id of a new communicator, the same on all ranks; all ranks must call it
    wait        waits until the streams of this process are empty
    host_of     by rank of the job the index of its host
    """

    unique_id: Callable[[], str]
    wait: Callable[[], None]
    host_of: Sequence[int]


class GroupCreation:
    """The argument `x` of the "nccl" steps of `init`, for all ranks of a group that this process drives.

    Each method that returns a call makes communicators from the group's own ones, or frees them. The calls of one iteration must free
    what they make.
    """

    def __init__(self, library: NcclLibrary, communicators: Communicators, group: Group, ranks: Sequence[RankGpu], host: HostCalls) -> None:
        self.n = group.n
        self._library = library
        self._communicators = communicators
        self._group = group
        self._ranks = ranks
        self._host = host
        self._made: list[tuple[RankGpu, int]] = []

    def node_of(self, rank: int, _n: int) -> int:
        """Return the index of a rank's host, as the color of a split."""
        return self._host.host_of[self._group.ranks[rank]]

    def join(self) -> PythonCall:
        """Return a call that makes a communicator of all ranks of the group, after the exchange of its unique id."""

        def make() -> None:
            gpus = [rank.gpu for rank in self._ranks]
            self._keep(self._ranks, self._communicators.make(gpus, self._group.driven, self.n, self._host.unique_id(), counted=False))

        return PythonCall("ncclCommInitRank", make)

    def split(self, color: Callable[[int, int], int]) -> PythonCall:
        """Return a call that splits the group's communicator by color, a function of (rank, ranks)."""
        words = [(color(rank, self.n), rank) for rank in self._group.driven]

        def make() -> None:
            self._keep(self._ranks, self._communicators.split(self._group.handle, words))

        return PythonCall("ncclCommSplit", make)

    def shrink(self, excluded: Sequence[int]) -> PythonCall:
        """Return a call that makes a communicator without these ranks of the group. They call nothing."""
        stay = [place for place, rank in enumerate(self._group.driven) if rank not in excluded]

        def make() -> None:
            comms = [self._group.handle[place] for place in stay]
            self._keep([self._ranks[place] for place in stay], self._communicators.shrink(comms, excluded))

        return PythonCall("ncclCommShrink", make)

    def first(self) -> PythonCall:
        """Return a call that runs an all-reduce of one element on what was made, and waits for it."""

        def run() -> None:
            words = (ctypes.c_size_t(1), DATATYPES["int32"].number, REDOPS["sum"].number)
            with grouped(self._library):
                for rank, comm in self._made:
                    scratch = ctypes.c_void_p(rank.scratch.address)
                    stream = ctypes.c_void_p(rank.stream.address)
                    self._library.call("ncclAllReduce", scratch, scratch, *words, ctypes.c_void_p(comm), stream)
            self._host.wait()

        return PythonCall("ncclAllReduce", run)

    def free(self) -> Iterator[PythonCall]:
        """Yield the calls that free what was made: a process with several ranks leaves the first one, which waits, to the second."""
        if self._library.has("ncclCommFinalize") and len(self._ranks) == 1:
            yield PythonCall("ncclCommFinalize", lambda: self._communicators.finalize([comm for _, comm in self._made]))

        def destroy() -> None:
            comms = [comm for _, comm in self._made]
            self._made = []
            self._communicators.destroy(comms)

        yield PythonCall("ncclCommDestroy", destroy)

    def _keep(self, ranks: Sequence[RankGpu], comms: Sequence[int]) -> None:
        self._made = list(zip(ranks, comms, strict=True))
