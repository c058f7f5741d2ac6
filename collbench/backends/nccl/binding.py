"""The binding of the operations' "nccl" steps to the ranks of a process: one program for all of them, or CUDA graphs of it."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Group, Tuning
from collbench.backends.host import Address, AnyBuffers, NativeBinding
from collbench.backends.messages import MessageSteps
from collbench.backends.nccl.library import GPU_MEMORY, REDOPS, REGISTRATIONS, WINDOW_FLAGS, NcclFailed, NcclLibrary, UniqueId, datatype
from collbench.errors import RunFailed
from collbench.operations.program import Call, NativeCall, PythonCall
from collbench.units import format_size

if TYPE_CHECKING:
    from collbench.backends.nccl.backend import RankGpu
    from collbench.device.gpu import Graph, OpenGpu


# NCCL's communicators: created with a tuning, aborted, and destroyed in order.

_OLD_DRIVER = "driver version is insufficient"  # NCCL has no error code for it


@contextmanager
def tuned(tuning: Tuning | None) -> Iterator[None]:
    """Set NCCL_ALGO and NCCL_PROTO to the tuning inside the block; NCCL reads them when it creates a communicator."""
    variables = {"NCCL_ALGO": tuning.algorithm, "NCCL_PROTO": tuning.protocol} if tuning else {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def grouped(library: NcclLibrary) -> Iterator[None]:
    """Group NCCL calls of several communicators in one thread. Without the group they would wait for one another."""
    library.call("ncclGroupStart")
    try:
        yield
    except BaseException:
        library.handle.ncclGroupEnd()  # only the first error is reported
        raise
    library.call("ncclGroupEnd")


class Communicators:
    """All communicators of this process, by address, in order of creation."""

    def __init__(self, library: NcclLibrary) -> None:
        self._library = library
        self.alive: list[int] = []
        self._taken_bytes: dict[int, int] = {}  # by communicator: how much less memory was free after its creation
        library.handle.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)

    def make(self, gpus: Sequence[OpenGpu], ranks: Sequence[int], n: int, unique_id: str, *, counted: bool = True) -> tuple[int, ...]:
        """Create a communicator of n ranks for each of `ranks`, on its GPU. All n ranks must call it. Raises NcclFailed with the remedy.

        counted: whether `most_bytes` must know its memory. Without NCCL's own count, that takes two queries of each GPU.
        """
        handles = [ctypes.c_void_p() for _ in ranks]
        identity = UniqueId.from_buffer_copy(bytes.fromhex(unique_id))
        free_before = [] if self._counts or not counted else [gpu.free_bytes() for gpu in gpus]
        try:
            with grouped(self._library):
                for gpu, rank, handle in zip(gpus, ranks, handles, strict=True):
                    with gpu.use():
                        self._library.call("ncclCommInitRank", ctypes.addressof(handle), n, identity, rank)
        except NcclFailed as error:
            raise NcclFailed(f"{error}: {_remedy(error)}", error.code, error.last_error) from error
        comms = self._added(handles)
        for comm, gpu, free_bytes in zip(comms, gpus, free_before, strict=False):
            self._taken_bytes[comm] = max(0, free_bytes - gpu.free_bytes())
        return comms

    @property
    def _counts(self) -> bool:
        return self._library.has("ncclCommMemStats")

    def most_bytes(self, comms: Sequence[int]) -> tuple[int, str] | None:
        """Return the most GPU memory that one of these communicators takes, in bytes, and its source; None if it is unknown.

        Without NCCL's own count it is what was no longer free after its creation, without buffers that NCCL allocates later. No
        difference is unknown: another process may have freed as much.
        """
        if not self._counts:
            most = max((self._taken_bytes.get(comm, 0) for comm in comms), default=0)
            return (most, "free memory at its creation") if most else None
        counts = [ctypes.c_uint64() for _ in comms]
        for comm, count in zip(comms, counts, strict=True):
            self._library.call("ncclCommMemStats", ctypes.c_void_p(comm), GPU_MEMORY, ctypes.byref(count))
        return (max(count.value for count in counts), "ncclCommMemStats") if counts else None

    def split(self, comms: Sequence[int], words: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Split communicators, each by its (color, key). All their ranks must call it. Raises NcclFailed."""
        children = [ctypes.c_void_p() for _ in comms]
        with grouped(self._library):
            for comm, (color, key), child in zip(comms, words, children, strict=True):
                self._library.call("ncclCommSplit", ctypes.c_void_p(comm), color, key, ctypes.byref(child), None)
        return self._added(children)

    def shrink(self, comms: Sequence[int], excluded: Sequence[int]) -> tuple[int, ...]:
        """Make communicators without some ranks. All other ranks must call it. Raises NcclFailed."""
        children = [ctypes.c_void_p() for _ in comms]
        excluded_ranks = (ctypes.c_int * len(excluded))(*excluded)
        with grouped(self._library):
            for comm, child in zip(comms, children, strict=True):
                words = (excluded_ranks, len(excluded), ctypes.byref(child), None, 0)  # the default config, and no abort of pending work
                self._library.call("ncclCommShrink", ctypes.c_void_p(comm), *words)
        return self._added(children)

    def finalize(self, comms: Sequence[int]) -> None:
        """Wait until all calls of these communicators have completed on all ranks. Raises NcclFailed."""
        for comm in comms:
            self._library.call("ncclCommFinalize", ctypes.c_void_p(comm))

    def _added(self, handles: Sequence[ctypes.c_void_p]) -> tuple[int, ...]:
        comms = tuple(handle.value or 0 for handle in handles)
        self.alive += comms
        return comms

    def abort(self, comms: Sequence[int]) -> None:
        """Abort these communicators and their pending work.

        All are aborted in one NCCL group before any is freed. Freeing memory may wait for the whole GPU, on which another
        communicator hangs (https://github.com/pytorch/pytorch/issues/119797).
        """
        with suppress(NcclFailed), grouped(self._library):
            for comm in self._removed(comms):
                self._library.handle.ncclCommAbort(ctypes.c_void_p(comm))

    def destroy(self, comms: Sequence[int]) -> None:
        """Destroy those of these communicators that still exist."""
        for comm in self._removed(comms):
            self._library.handle.ncclCommDestroy(ctypes.c_void_p(comm))

    def _removed(self, comms: Sequence[int]) -> list[int]:
        removed = [comm for comm in comms if comm in self.alive]
        for comm in removed:
            self._taken_bytes.pop(comm, None)
        self.alive = [comm for comm in self.alive if comm not in removed]
        return removed


def _remedy(error: NcclFailed) -> str:
    if _OLD_DRIVER in error.last_error:
        return "update the driver, which is too old for the CUDA version of this NCCL, or install nvidia-nccl-cu12"
    return "run again with NCCL_DEBUG=INFO for NCCL's log, and run `collbench doctor` to check the machine"


# GPU memory of NCCL's allocator that a communicator knows: registered, or as a symmetric window.

_FORGET = {"registered": "ncclCommDeregister", "window": "ncclCommWindowDeregister", "symmetric": "ncclCommWindowDeregister"}
# Both functions return success and a null handle if they do nothing (register.cc, dev_runtime.cc).
_NOTHING_DONE = {
    "registered": "NCCL registers nothing here: GPUs that reach one another by copies only, or NCCL_LOCAL_REGISTER=0",
    "window": "NCCL has no windows between these GPUs: they need P2P, and NCCL_CUMEM_ENABLE not 0",
    "symmetric": "NCCL has no symmetric memory between these GPUs: it needs P2P between all of them, and NCCL_CUMEM_ENABLE not 0",
}


class NcclMemory:
    """Memory of ncclMemAlloc. It is freed with its last reference, after it was deregistered from every existing communicator.

    address, n_bytes   as requested; NCCL rounds up
    known              by communicator: NCCL's handle of the memory, and the function that deregisters it
    """

    def __init__(self, library: NcclLibrary, communicators: Communicators, gpu: OpenGpu, n_bytes: int) -> None:
        pointer = ctypes.c_void_p()
        try:
            with gpu.use():
                library.call("ncclMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
        except NcclFailed as error:
            raise MemoryError(f"NCCL cannot allocate {format_size(n_bytes)} on GPU {gpu.index} ({gpu.name}): {error}") from error
        self.address = pointer.value or 0
        self.n_bytes = n_bytes
        self.known: dict[int, tuple[int, str]] = {}
        end = weakref.finalize(self, _free, library, communicators, gpu, self.address, self.known)
        end.atexit = False  # at the end of the process the system frees it, and CUDA may be unloaded before


def register(library: NcclLibrary, memories: Sequence[NcclMemory], comms: Sequence[int], kind: str) -> None:
    """Register each memory with the communicator of its rank, as one of REGISTRATIONS. Windows need a call on all ranks.

    Raises NcclFailed if NCCL returns an error or the call has no effect.
    """
    function, _ = REGISTRATIONS[kind]
    handles = [ctypes.c_void_p() for _ in memories]
    flags = (ctypes.c_int(WINDOW_FLAGS[kind]),) if kind in WINDOW_FLAGS else ()
    with grouped(library):
        for memory, comm, handle in zip(memories, comms, handles, strict=True):
            size = ctypes.c_size_t(memory.n_bytes)
            library.call(function, ctypes.c_void_p(comm), ctypes.c_void_p(memory.address), size, ctypes.byref(handle), *flags)
    for memory, comm, handle in zip(memories, comms, handles, strict=True):
        if not handle.value:
            raise NcclFailed(_NOTHING_DONE[kind])
        memory.known[comm] = (handle.value, _FORGET[kind])


def forget(library: NcclLibrary, registered: dict[int, tuple[int, str]], comms: Sequence[int]) -> None:
    """Deregister a memory from those of these communicators that know it: `registered` is its attribute `known`."""
    for comm in [comm for comm in registered if comm in comms]:
        handle, function = registered.pop(comm)
        getattr(library.handle, function)(ctypes.c_void_p(comm), ctypes.c_void_p(handle))


def _free(library: NcclLibrary, communicators: Communicators, gpu: OpenGpu, address: int, registered: dict[int, tuple[int, str]]) -> None:
    forget(library, registered, communicators.alive)
    with suppress(RunFailed), gpu.use():  # on a failed GPU nothing can be freed
        library.handle.ncclMemFree(ctypes.c_void_p(address))


GRAPH_ITERATIONS = 20  # nccl-tests' default of iterations; its graphs contain all of them
_START, _END = "ncclGroupStart", "ncclGroupEnd"


class NcclBinding(NativeBinding, MessageSteps):
    """The binding for the operations' "nccl" steps, for one driven rank and slot. `stream` is the rank's own.

    Calls that must overlap are placed between `x.call("ncclGroupStart")` and `x.call("ncclGroupEnd")`; NCCL has no tags or requests.
    """

    def __init__(self, library: NcclLibrary, buffers: AnyBuffers, group: Group, driven: RankGpu, turn: tuple[int, int]) -> None:
        index, slot = turn
        case = buffers.case
        place = buffers.places[index]
        super().__init__(library.handle, case, place.rank, group.n, place.count)
        self._nccl = library
        self._group = group
        width = case.dtype.size
        self.send = Address(buffers.send_at(index, slot), width)
        self.recv = Address(buffers.recv_at(index, slot), width)
        self.scratch = Address(driven.scratch.address, 1)
        self.comm = group.handle[index]
        self.stream = driven.stream.address
        self.status = 0
        self.type = datatype(case.dtype.name, width, library.version, buffers.operation.reduces, library.dialect.datatypes) or 0
        self.byte = datatype("uint8", 1, library.version, reduces=False) or 0
        self.redop = REDOPS[case.redop].number if case.redop else 0

    def has(self, name: str) -> bool:
        """Return whether the library has a function `name`, under this or its own name."""
        return self._nccl.has(name)

    def pointer(self, name: str) -> int:
        """Return the address of the library's function `name`."""
        return self._nccl.address(name)

    def peer(self, rank: int) -> int:
        """Return the rank within the communicator."""
        return self._group.name(rank)

    def message(self, kind: str, rank: int, part: Address, count: int, signal: bool = False) -> NativeCall:
        """Return an ncclSend or ncclRecv. None waits inside a group."""
        name = "ncclSend" if kind.endswith("send") else "ncclRecv"
        return self.call(name, part, count, self.byte if signal else self.type, self.peer(rank), self.comm, self.stream)

    def together(self) -> Iterator[NativeCall]:
        """Yield the start of a group."""
        yield self.call(_START)

    def post(self, name: str, *words: Any) -> NativeCall:
        """Return a call. Inside a group no call waits for another one."""
        return self.call(name, *words)

    def waitall(self) -> NativeCall:
        """Return the end of the group, which starts all posted calls. Work enqueued later runs after it."""
        return self.call(_END)

    def unless_in_place(self, address: Address) -> Address:
        """Return `address`: NCCL detects in-place calls by equal addresses."""
        return address


def together(steps: Sequence[Sequence[Call]], library: NcclLibrary) -> tuple[Call, ...]:
    """Return the calls of several ranks that one thread drives. Calls at the same position are issued as one group.

    A ping-pong remains one: its message and its reply are in different groups.
    """
    if len(steps) == 1:
        return tuple(steps[0])
    start, end = (NativeCall(name, library.address(name), ()) for name in (_START, _END))
    columns = zip_longest(*(_phases(calls) for calls in steps), fillvalue=())
    return tuple(call for column in columns for call in (start, *(call for phase in column for call in phase), end))


def _phases(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield single calls, and groups from their start to their end."""
    phase: list[Call] = []
    depth = 0
    for call in calls:
        phase.append(call)
        depth += {_START: 1, _END: -1}.get(call.name, 0)
        if depth == 0:
            yield phase
            phase = []
    if phase:
        yield phase


class Graphs:
    """Captured CUDA graphs of calls on these communicators, kept until `free`. `explain` returns the text of NCCL's error codes."""

    def __init__(self, comms: Sequence[int], explain: Callable[[int], str]) -> None:
        self._comms = frozenset(comms)
        self._explain = explain
        self._graphs: list[Graph] = []

    def capture(self, ranks: Sequence[RankGpu], calls: Sequence[Call], launch: tuple[str, int]) -> tuple[NativeCall, ...]:
        """Return the launch of a graph of these calls per driven rank. `launch`: (name, address) of the function that launches one.

        Raises NcclFailed if a call cannot be captured.
        """
        with ExitStack() as stack:
            graphs = [stack.enter_context(rank.gpu.capture(rank.stream)) for rank in ranks]
            for call in calls:
                if isinstance(call, PythonCall):
                    raise NcclFailed(f"{call.name} is a call of Python's, which no graph can hold")
                code = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(call.args))(call.pointer)(*call.args)
                if code:
                    raise NcclFailed(f"{call.name} cannot be captured into a graph: {self._explain(code)}", code)
        self._graphs += graphs
        pairs = zip(graphs, ranks, strict=True)
        return tuple(NativeCall(*launch, (graph.address, rank.stream.address)) for graph, rank in pairs)

    def free(self, comms: Sequence[int]) -> None:
        """Destroy the graphs if they use one of these communicators."""
        if self._comms & set(comms):
            self._graphs.clear()


def rotation(slots: int, graph: int) -> list[int]:
    """Return the buffer slots that the iterations of graph number `graph` use: all slots in turn, over several graphs."""
    return [(graph * GRAPH_ITERATIONS + i) % slots for i in range(GRAPH_ITERATIONS)]
