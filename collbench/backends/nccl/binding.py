"""Binds an operation's "nccl" steps to the ranks that a process drives: one program for all of them, or graphs of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.native_binding import Address, NativeBinding
from collbench.backends.nccl.library import NcclFailed, NcclLibrary
from collbench.backends.nccl.table import REDOPS, datatype
from collbench.operations.program import Call, NativeCall, PythonCall

if TYPE_CHECKING:
    from collbench.backends.nccl.opening import Driven
    from collbench.device.gpu import Graph

GRAPH_ITERATIONS = 20  # nccl-tests' default of iterations, all of which its graphs hold
_START, _END = "ncclGroupStart", "ncclGroupEnd"


class NcclBinding(NativeBinding):
    """x as the operations' "nccl" steps see it, for one driven rank and slot. `stream` is the rank's own.

    Calls that must overlap stand between `x.call("ncclGroupStart")` and `x.call("ncclGroupEnd")`; NCCL has no tags, and no requests.
    """

    def __init__(self, library: NcclLibrary, buffers: AnyBuffers, group: Group, driven: Driven, turn: tuple[int, int]) -> None:
        (index, slot), cell = turn, buffers.cell
        place, width, version = buffers.places[index], cell.dtype.size, library.version
        super().__init__(library.handle, cell, place.rank, group.n, place.count)
        self._group = group
        self.send, self.recv = Address(buffers.send_at(index, slot), width), Address(buffers.recv_at(index, slot), width)
        self.scratch = Address(driven.scratch.address, 1)
        self.comm, self.stream, self.status = group.handle[index], driven.stream.address, 0
        self.type = datatype(cell.dtype.name, width, version, buffers.operation.reduces) or 0
        self.byte = datatype("uint8", 1, version, reduces=False) or 0
        self.redop = REDOPS[cell.redop].number if cell.redop else 0

    def peer(self, rank: int) -> int:
        """NCCL names ranks by their rank within the communicator."""
        return self._group.name(rank)

    def send_to(self, rank: int, part: Address, count: int) -> NativeCall:
        """ncclSend."""
        return self.call("ncclSend", part, count, self.type, self.peer(rank), self.comm, self.stream)

    def receive_from(self, rank: int, part: Address, count: int) -> NativeCall:
        """ncclRecv."""
        return self.call("ncclRecv", part, count, self.type, self.peer(rank), self.comm, self.stream)

    def together(self) -> Iterator[NativeCall]:
        """The start of a group."""
        yield self.call(_START)

    post_send, post_receive = send_to, receive_from

    def signal_to(self, rank: int) -> NativeCall:
        """A byte sent."""
        return self.call("ncclSend", self.scratch, 1, self.byte, self.peer(rank), self.comm, self.stream)

    def signal_from(self, rank: int) -> NativeCall:
        """A byte received."""
        return self.call("ncclRecv", self.scratch, 1, self.byte, self.peer(rank), self.comm, self.stream)

    def post(self, name: str, *words: Any) -> NativeCall:
        """Inside a group no call waits for another one."""
        return self.call(name, *words)

    def waitall(self) -> NativeCall:
        """The end of the group sends everything posted since its start on its way; what is enqueued next comes after it."""
        return self.call(_END)

    def unless_in_place(self, address: Address) -> Address:
        """NCCL knows a call in place by its equal addresses."""
        return address


def together(steps: Sequence[Sequence[Call]], library: NcclLibrary) -> tuple[Call, ...]:
    """The steps of several ranks that one thread drives: what stands at the same place of each goes out as one group.

    A ping-pong so stays a ping-pong: its first message is in another group than the answer.
    """
    if len(steps) == 1:
        return tuple(steps[0])
    start, end = (NativeCall(name, library.address(name), ()) for name in (_START, _END))
    columns = zip_longest(*(_phases(calls) for calls in steps), fillvalue=())
    return tuple(call for column in columns for call in (start, *(call for phase in column for call in phase), end))


def _phases(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Single calls, and groups from their start to their end."""
    phase, depth = list[Call](), 0
    for call in calls:
        phase.append(call)
        depth += {_START: 1, _END: -1}.get(call.name, 0)
        if depth == 0:
            yield phase
            phase = []
    if phase:
        yield phase


class Graphs:
    """Captured graphs of calls on these communicators, which they hold until `free`. `explain` puts NCCL's codes into words."""

    def __init__(self, comms: Sequence[int], explain: Callable[[int], str]) -> None:
        self._comms, self._explain = frozenset(comms), explain
        self._held: list[Graph] = []

    def capture(self, ranks: Sequence[Driven], calls: Sequence[Call], launch: int) -> tuple[NativeCall, ...]:
        """A graph of these calls per driven rank; its launch is all that is left to do. `launch` is cuGraphLaunch's address.

        Raises NcclFailed where a call cannot be captured.
        """
        with ExitStack() as stack:
            graphs = [stack.enter_context(rank.gpu.capture(rank.stream)) for rank in ranks]
            for call in calls:
                self._record(call)
        self._held += graphs
        pairs = zip(graphs, ranks, strict=True)
        return tuple(NativeCall("cuGraphLaunch", launch, (graph.address, rank.stream.address)) for graph, rank in pairs)

    def _record(self, call: Call) -> None:
        if isinstance(call, PythonCall):
            raise NcclFailed(f"{call.name} is a call of Python's, which no graph can hold")
        code = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(call.words))(call.pointer)(*call.words)
        if code:
            raise NcclFailed(f"{call.name} cannot be captured into a graph: {self._explain(code)}", code)

    def free(self, comms: Sequence[int]) -> None:
        """Destroys them if they hold one of these communicators."""
        if self._comms & set(comms):
            self._held.clear()


def rotation(slots: int, graph: int) -> list[int]:
    """Which buffer slots the iterations of the `graph`th graph use: all slots in turn, over as many graphs as that takes."""
    return [(graph * GRAPH_ITERATIONS + i) % slots for i in range(GRAPH_ITERATIONS)]
