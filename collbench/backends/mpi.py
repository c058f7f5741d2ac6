"""MPI on host memory, and on CUDA memory if the library supports it: its functions are called by pointer. Never imports torch."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, SupportsInt

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Available, Group, Settings, Unavailable, steps_of
from collbench.backends.gpu_memory import HostOrGpuBackend
from collbench.backends.host import Address, AnyBuffers, Buffers, MappedBlock, NativeBinding, free_all
from collbench.backends.messages import MessageSteps
from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, LibraryUnusable, Misconfigured, NotInstalled
from collbench.errors import RunFailed
from collbench.launch.mpi import (
    CHOSEN,
    LibraryFailed,
    NotAnMpi,
    begin_session,
    finalise,
    first_lines,
    forced,
    initialise,
    load,
    mpi_mismatch,
    size_disagrees,
)
from collbench.operations.case import Case
from collbench.operations.data import BufferExtent, Mismatch, bytes_needed, grows, stride_of
from collbench.operations.groups import group_size, groups_of
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Call, NativeCall, Program
from collbench.operations.registry import every_operation
from collbench.operations.unsupported import (
    DeviceUnsupported,
    DtypeUnsupported,
    LimitExceeded,
    PersistentUnsupported,
    RedopUnsupported,
    SharedMemoryTooSmall,
    VersionNeeded,
)
from collbench.reason import Fact
from collbench.units import format_bytes

if TYPE_CHECKING:
    from collbench.control.world import World


# The binding of the operations' "mpi" steps to an MPI library: addresses, handles, types, and large counts if they are needed.

_LARGE = 2**31
_MESSAGE, _SIGNAL = 1, 2  # tags
_STATUS_BYTES = 256  # MPI_Status of any library is smaller
_WITH_STATUS = frozenset({"MPI_Sendrecv", "MPI_Sendrecv_replace"})  # their last argument
_SAME_WIDTH = {1: "INT8_T", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T"}
_REDUCED = {
    "float64": "DOUBLE", "float32": "FLOAT", "float16": "FLOAT16_T", "bfloat16": "BFLOAT16_T",
    "int8": "INT8_T", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
}  # fmt: skip
_REDOPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


class MpiBinding(NativeBinding, MessageSteps):
    """The binding for the operations' "mpi" steps."""

    status_bytes = _STATUS_BYTES

    def __init__(self, mpi: Any, library: ctypes.CDLL, buffers: AnyBuffers, group: Group, slot: int) -> None:
        place = buffers.places[0]
        case = buffers.case
        operation = buffers.operation
        super().__init__(library, case, place.rank, group.n, place.count)
        self._mpi = mpi
        self._posted = 0
        self._large = max(operation.sends(place), operation.receives(place)) >= _LARGE and _has_large(library)
        self.integer = ctypes.c_int64 if self._large else ctypes.c_int  # MPI_Count and MPI_Aint have 64 bits
        self.send = Address(buffers.send_at(0, slot), case.dtype.size)
        self.recv = Address(buffers.recv_at(0, slot), case.dtype.size)
        self.comm = mpi._handleof(group.handle)
        self.type = mpi._handleof(getattr(mpi, _type_name(operation, case)))
        self.byte = mpi._handleof(mpi.BYTE)
        self.redop = mpi._handleof(getattr(mpi, _REDOPS[case.redop])) if case.redop else 0
        self._group = group
        self.scratch = Address(self.room(8), 1)
        self.status = self.room(_STATUS_BYTES)
        self._request_bytes = mpi._sizeof(mpi.Request)
        most_requests = 2 * max(case.window or 1, group.n)
        self.requests = self.room(most_requests * 8)
        self.statuses = self.room(most_requests * _STATUS_BYTES)

    def call(self, name: str, *words: SupportsInt) -> NativeCall:
        """Return a call of the function, or of its large-count variant if a count or displacement may need it."""
        return super().call(f"{name}_c" if self._large and self.has(f"{name}_c") else name, *words)

    def post(self, name: str, *words: SupportsInt) -> NativeCall:
        """Return a non-blocking call. Its request is stored in the array that `waitall` waits for."""
        request = self.requests + self._posted * self._request_bytes
        self._posted += 1
        return self.call(name, *words, request)

    def start(self, name: str, *words: SupportsInt) -> NativeCall | None:
        """Return the non-blocking variant, MPI_Iallreduce for MPI_Allreduce; None if the library has none. It has no status."""
        variant = f"MPI_I{name.removeprefix('MPI_').lower()}"
        if not self.has(variant):
            return None
        return self.post(variant, *words[:-1]) if name in _WITH_STATUS else self.post(variant, *words)

    def begin(self) -> None:
        """Return None: posted messages begin at once."""

    def finish(self) -> NativeCall:
        """Return a wait for everything started: MPI_Wait for one request, else MPI_Waitall."""
        if self._posted != 1:
            return self.waitall()
        self._posted = 0
        return NativeCall("MPI_Wait", self.pointer("MPI_Wait"), (self.requests, self.status))

    def waitall(self) -> NativeCall:
        """Return an MPI_Waitall for all posted requests."""
        wait = NativeCall("MPI_Waitall", self.pointer("MPI_Waitall"), (self._posted, self.requests, self.statuses))
        self._posted = 0
        return wait

    def peer(self, rank: int) -> int:
        """Return the rank within the communicator."""
        return self._group.name(rank)

    def message(self, kind: str, rank: int, part: SupportsInt, count: int, signal: bool = False) -> NativeCall:
        """Return an MPI_Send, MPI_Recv, MPI_Isend or MPI_Irecv."""
        words = (part, count, self.byte if signal else self.type, self.peer(rank), _SIGNAL if signal else _MESSAGE, self.comm)
        if kind == "post_send":
            return self.post("MPI_Isend", *words)
        if kind == "post_receive":
            return self.post("MPI_Irecv", *words)
        return self.call("MPI_Send", *words) if kind == "send" else self.call("MPI_Recv", *words, self.status)

    @property
    def handle_bytes(self) -> int:
        """Return the bytes of a communicator's handle: 4 in MPICH (a number), 8 in Open MPI (an address)."""
        return int(self._mpi._sizeof(self._mpi.Comm))

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """Return the group's ranks in MPI_COMM_WORLD."""
        return self._group.ranks

    def constant(self, name: str) -> int:
        """Return a constant of the library as a word: "COMM_TYPE_SHARED", or the handle "INFO_NULL"."""
        value = getattr(self._mpi, name)
        return value if isinstance(value, int) else int(self._mpi._handleof(value))

    def group_of(self, ranks: Sequence[int]) -> int:
        """Return the handle of an MPI_Group of these ranks of the communicator. It lives as long as the binding."""
        self._members = self._group.handle.Get_group().Incl(list(ranks))
        return int(self._mpi._handleof(self._members))

    def unless_in_place(self, address: Address) -> SupportsInt:
        """Return `address`, or MPI_IN_PLACE as this library defines it when the case is in place."""
        return int(self._mpi.IN_PLACE) if self.case.in_place else address


def _has_large(library: ctypes.CDLL) -> bool:
    """Return whether the library has MPI 4's functions for large counts."""
    return hasattr(library, "MPI_Allreduce_c")


def misfit(mpi: Any, library: ctypes.CDLL, operation: Operation, case: Case, ranks: int) -> Reason | None:
    """Return why the library cannot run a case, or None: averages, unsupported types, counts past 2^31 without the _c functions."""
    if case.redop and case.redop not in _REDOPS:
        return RedopUnsupported("MPI", case.redop)
    if operation.reduces and case.dtype.name not in _REDUCED:
        return DtypeUnsupported("MPI", case.dtype.name)
    if operation.name == "init_session" and not hasattr(library, "MPI_Session_init"):
        return VersionNeeded("MPI", "MPI_Session_init", "4.0", f"{'.'.join(map(str, mpi.Get_version()))} of {library_name(mpi)}")
    if getattr(mpi, _type_name(operation, case), mpi.DATATYPE_NULL) == mpi.DATATYPE_NULL:
        return DtypeUnsupported(library_name(mpi), case.dtype.name)
    largest = case.size_bytes // case.dtype.size  # count or displacement: of messages and uneven parts it can be a whole buffer
    if not operation.uneven and "mpi" in operation.steps:
        largest = operation.count(case, group_size(operation, case, ranks))
    if largest >= _LARGE and not _has_large(library):
        return LimitExceeded(library_name(mpi), "elements per call (it has no large-count functions)", _LARGE - 1)
    return None


def _type_name(operation: Operation, case: Case) -> str:
    """Return the MPI type. Operations without a reduction use an integer type of the same width."""
    return _REDUCED[case.dtype.name] if operation.reduces else _SAME_WIDTH[case.dtype.size]


def library_name(mpi: Any) -> str:
    """Return the library and its version: "MPICH 5.0.2", "Open MPI 5.0.11"."""
    name, version = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


# Whether an MPI library supports CUDA memory: always queried, since a library without support crashes on a GPU address.

_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA, MPICH's mpi.h


def why_not_cuda(library: ctypes.CDLL, name: str) -> str | None:
    """Return why this library, `name`, does not support CUDA memory, with the remedy; None if it does. Call after MPI_Init."""
    supported = None  # without a function of MPICH or Open MPI that reports it
    if hasattr(library, "MPIX_GPU_query_support"):
        reply = ctypes.c_int(0)
        supported = library.MPIX_GPU_query_support(ctypes.c_int(_CUDA), ctypes.byref(reply)) == 0 and bool(reply.value)
    elif hasattr(library, "MPIX_Query_cuda_support"):
        supported = bool(library.MPIX_Query_cuda_support())
    if supported:
        return None
    answer = "does not report whether it supports" if supported is None else "does not support"
    return f"{name} {answer} CUDA memory: load your site's CUDA-aware MPI (Open MPI or MPICH built with --with-cuda)"


# One-sided MPI: memory that rank 1 of a pair exposes in a window, and its address for rank 0.
#
# As in OSU's benchmarks the window is MPI_Win_allocate's, so that the library can choose fast memory, such as shared memory inside a
# host. Both ranks hold MPI_Win_lock_all while the window exists, so that no timed call opens an epoch. Rank 0's own buffers are in
# ordinary memory. Rank 1 orders its own accesses to the window with MPI_Win_sync (MPI 4.1, 12.5.4).

_SHARED = "/dev/shm"  # where MPICH, Intel MPI and Open MPI place the windows of a host


class Window:
    """The RMA window of a pair, with a communicator of its two ranks. It has no memory before `show`."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self.comm = comm
        self.handle: Any = None
        self.memory = np.empty(0, np.uint8)

    def show(self, n_bytes: int) -> None:
        """Create the window with `n_bytes` of this rank's memory. Both ranks must call it. Raises MemoryError."""
        try:
            self.handle = self._mpi.Win.Allocate(n_bytes, 1, comm=self.comm)
            self.handle.Lock_all()
            self.comm.Barrier()  # Open MPI's osc/rdma may still query rank 0 while rank 1 creates the window, so no rank may return before
        except self._mpi.Exception as error:
            raise MemoryError(f"no window of {format_bytes(n_bytes)}: {error}") from error
        self.memory = np.frombuffer(self.handle.tomemory(), np.uint8) if n_bytes else self.memory

    def sync(self) -> None:
        """Order this rank's own accesses to the window with those of the other rank (MPI_Win_sync)."""
        self.handle.Sync()

    def free(self) -> None:
        """Free the window and the communicator. Both ranks must call it."""
        self.memory = np.empty(0, np.uint8)  # the memory is freed with the window
        if self.handle is not None:
            self.handle.Unlock_all()
            self.handle.Free()
        self.comm.Free()


class _WindowBlock(MappedBlock):
    """Rank 1's memory in the window."""

    page_bytes = 0  # the library allocates the memory

    def __init__(self, window: Window, bytes_per_slot: int, slots: int) -> None:
        self._window = window
        self._length = bytes_per_slot
        self._stride = stride_of(bytes_per_slot, slots, "cpu")

    def slot(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of one slot."""
        start = index * self._stride
        return self._window.memory[start : start + self._length]


class WindowBuffers(Buffers):
    """Buffers of a one-sided pair: rank 0's in ordinary memory, rank 1's in the window."""

    def __init__(self, operation: Operation, case: Case, group: Group, slots: int) -> None:
        self._window: Window = group.handle
        super().__init__(operation, case, group, slots)

    def _block(self, bytes_per_slot: int) -> MappedBlock:
        if self.places[0].rank != 1:
            self._window.show(0)
            return super()._block(bytes_per_slot)
        self._window.show(stride_of(bytes_per_slot, self.slots, "cpu") * self.slots)
        return _WindowBlock(self._window, bytes_per_slot, self.slots)

    def there(self, slot: int) -> int:
        """Return the offset in bytes of rank 1's elements of a slot in the window.

        These are the elements that rank 1 receives if there are any, else those that rank 0 reads.
        """
        width = self.case.dtype.size
        extent = BufferExtent.of(self.operation, replace(self.places[0], rank=1))
        element = extent.recv_at if extent.recv else extent.send_at
        return slot * stride_of(extent.total * width, self.slots, "cpu") + element * width

    def fill(self, slot: int, for_check: bool) -> None:
        """Write the inputs of a slot. For reductions, rank 1's own elements are also the target.

        Timed sums use zeros, and products use ones.
        """
        super().fill(slot, for_check)
        if self.operation.reduces:
            send = self.send(0, slot)
            if not for_check and grows(self.case.placed(in_place=True)):
                send[:] = 1 if self.case.redop == "prod" else 0
            if self.places[0].rank == 1:
                self.recv(0, slot)[:] = send
        self._window.sync()

    def check(self, slot: int) -> list[Mismatch | None]:
        """Return the errors in the received elements in a slot, or None."""
        self._window.sync()
        return super().check(slot)


class WindowBinding(MpiBinding):
    """The binding for the "mpi" steps of one-sided operations."""

    def __init__(self, mpi: Any, library: ctypes.CDLL, buffers: WindowBuffers, group: Group, slot: int) -> None:
        super().__init__(mpi, library, buffers, dataclasses.replace(group, handle=group.handle.comm), slot)
        self.window = mpi._handleof(group.handle.handle)
        self.there = buffers.there(slot)


def no_window(operation: Operation, case: Case, hosts: Sequence[str], rank: int) -> Reason | None:
    """Return why a window cannot be created, or None. Without this check MPICH is killed, and Open MPI waits forever.

    hosts: the host of each rank of the job; rank: this rank.
    """
    if case.device != "cpu":
        return DeviceUnsupported("one-sided mpi", case.device, ("cpu",))
    windows = sum(hosts[a] == hosts[b] == hosts[rank] for a, b in groups_of(operation, case, len(hosts)))
    needed_bytes = windows * bytes_needed(operation, case, 2)
    try:
        free_bytes = shutil.disk_usage(_SHARED).free
    except OSError:
        return None
    return SharedMemoryTooSmall(_SHARED, windows, needed_bytes, free_bytes) if needed_bytes > free_bytes else None


def load_mpi() -> Any:
    """Return mpi4py's MPI module, not initialized. Raises MpiNotFound that names the remedy."""
    try:
        return load()
    except NotAnMpi as error:
        raise MpiNotFound(Misconfigured(CHOSEN, error.problem, error.fix)) from error
    except (ImportError, RuntimeError) as error:
        problem = first_lines(error)
        setting = forced(os.environ)
        if setting:
            raise MpiNotFound(DoesNotLoad(setting, problem, "correct or unset it")) from error
        remedy = "pip install 'collbench[mpich]', or load your site's MPI module"
        raise MpiNotFound(LibraryNotFound("MPI", problem, remedy)) from error


_PROGRESS = {"MPICH": "MPICH_ASYNC_PROGRESS", "Intel MPI": "I_MPI_ASYNC_PROGRESS"}
_YES = frozenset({"1", "on", "t", "true", "y", "yes", "enable"})


class MpiNotFound(LibraryUnusable):
    """mpi4py is installed, but cannot find an MPI library."""


class MpiBackend(HostOrGpuBackend):
    """The backend mpi: the MPI library that mpi4py loads."""

    name = api = "mpi"
    local_path = "memory"
    passes_messages = True
    _rings: dict[tuple[int, ...], Any]
    _hosts: Sequence[str] = ()

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether mpi4py and a library are installed. Loads the library without initializing it."""
        if find_spec("mpi4py") is None:
            install = "pip install 'collbench[mpich]' (includes MPICH) or 'collbench[mpi]' (uses your site's MPI)"
            return Unavailable.because(NotInstalled("mpi4py", install))
        try:
            return Available(library_name(load_mpi()))
        except MpiNotFound as error:
            return Unavailable.because(error.obstacle)

    def open(self, world: World, settings: Settings) -> None:
        """Call MPI_Init if the launcher started all ranks in one MPI job. Raises RunFailed with the remedy."""
        self._mpi = mpi = load_mpi()
        own_mismatch = mpi_mismatch(mpi.Get_library_version(), world.info, os.environ)
        mismatch = world.first_error(own_mismatch, "opening mpi: comparing library and launcher")
        if mismatch:
            raise RunFailed(mismatch)
        problem = world.first_error(begin_session(mpi), "opening mpi: starting the library")  # MPI_Init would wait for that rank
        if problem:
            raise LibraryFailed(problem)
        initialise(mpi)
        disagrees = size_disagrees(mpi.COMM_WORLD.Get_size(), world.info)
        if disagrees:
            raise RunFailed(disagrees)
        self._library = ctypes.CDLL(mpi.__file__)
        self.explain = mpi.Get_error_string
        self.rank = world.rank
        self.ranks = world.size
        self._rings = {}
        self._hosts = [member.host for member in world.members]
        self.look_for_gpus(world, lambda: why_not_cuda(self._library, library_name(mpi)))

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return COMM_WORLD for all ranks, else a communicator that only its members create."""
        world = self._mpi.COMM_WORLD
        if len(ranks) == self.ranks or self.rank not in ranks:
            return world
        return world.Create_group(world.Get_group().Incl(list(ranks)))

    def pair(self, whole: Group | None, ranks: Sequence[int], case: Case) -> Group | None:
        """Return the pair within the communicator of all ranks. One-sided operations get their own communicator and window."""
        pair = super().pair(whole, ranks, case)
        if pair is None or not every_operation()[case.operation].one_sided:
            return pair
        world = self._mpi.COMM_WORLD
        comm = world.Create_group(world.Get_group().Incl(list(pair.ranks)))
        return Group(pair.ranks, pair.driven, Window(self._mpi, comm))

    def release(self, group: Group) -> None:
        """Free a pair's window and communicator."""
        if isinstance(group.handle, Window):
            group.handle.free()

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> AnyBuffers:
        """Return buffers in host, GPU or window memory. All ranks of the group must call it, since windows and rings are created here."""
        if operation.one_sided:
            return WindowBuffers(operation, case, group, slots)
        return super().allocate(operation, case, self._along_ring(operation, group), slots)

    @property
    def progress(self) -> Literal["threads", "calls"]:
        """Return what makes progress: calls, or a thread of the library for each rank if its variable in `_PROGRESS` asks for one."""
        variable = _PROGRESS.get(self._mpi.get_vendor()[0], "")
        return "threads" if os.environ.get(variable, "").lower() in _YES else "calls"

    def test_calls(self, wait: Program) -> Program:
        """Return an MPI_Test for each MPI_Wait, and an MPI_Testall for each MPI_Waitall."""
        flag = ctypes.c_int(0)

        def test(call: Call) -> Call:
            assert isinstance(call, NativeCall), "MPI's calls are native"
            *requests, status = call.args
            name = "MPI_Testall" if len(requests) > 1 else "MPI_Test"  # several: their number and their address
            pointer = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
            return NativeCall(name, pointer, (*requests, ctypes.addressof(flag), status))

        return Program(tuple(tuple(map(test, slot)) for slot in wait.slots), keep=(wait, flag), explain=wait.explain)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MpiBinding:
        """Return the binding with addresses and handles for one slot."""
        if isinstance(buffers, WindowBuffers):
            return WindowBinding(self._mpi, self._library, buffers, group, slot)
        return MpiBinding(self._mpi, self._library, buffers, self._along_ring(buffers.operation, group), slot)

    def bind_persistent(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
        """Return the program that starts persistent requests and waits for them, or why the library has none. All ranks must call it."""
        from collbench.backends.persistent import NoPersistentCall, PersistentBinding, persistent_calls

        if operation.one_sided:
            return PersistentUnsupported("MPI", operation.name)
        steps = steps_of(self, operation)
        assert steps is not None, "excluded by unsupported_reason"
        group = self._along_ring(operation, group)
        bindings = [PersistentBinding(self._mpi, self._library, buffers, group, slot) for slot in range(buffers.slots)]
        free = partial(free_all, bindings)
        try:
            slots = tuple(tuple(persistent_calls(steps, binding)) for binding in bindings)
        except NoPersistentCall as lacking:
            free()
            return PersistentUnsupported(library_name(self._mpi), operation.name, str(lacking))
        except RunFailed:
            free()
            raise
        return Program(slots, keep=(buffers, bindings), explain=self.explain, free=free)

    def _along_ring(self, operation: Operation, group: Group) -> Group:
        """Return the group; for neighbours with its periodic Cartesian communicator, which the first call of all its ranks creates."""
        if not operation.neighbours:
            return group
        if group.ranks not in self._rings:
            self._rings[group.ranks] = group.handle.Create_cart([group.n], periods=[True], reorder=False)
        return dataclasses.replace(group, handle=self._rings[group.ranks])

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why the library has no handle, function or window for the case, else None."""
        reason = misfit(self._mpi, self._library, operation, case, max(self.ranks, 1))
        if reason is None and operation.one_sided:
            return no_window(operation, case, self._hosts, self.rank)
        return reason

    def sync(self, group: Group) -> Program | None:
        """Return a program with MPI_Barrier on the group."""
        pointer = ctypes.cast(self._library.MPI_Barrier, ctypes.c_void_p).value or 0
        call = NativeCall("MPI_Barrier", pointer, (self._mpi._handleof(group.handle),))
        return Program(((call,),), explain=self._mpi.Get_error_string)

    def abort(self, why: str) -> None:
        """Call MPI_Abort, so that the launcher ends every rank."""
        if self._mpi.Is_initialized() and not self._mpi.Is_finalized():
            self._mpi.COMM_WORLD.Abort(4)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the library and of mpi4py, and the thread level in use."""
        import mpi4py

        names = ("single", "funneled", "serialized", "multiple")
        levels = {getattr(self._mpi, f"THREAD_{name.upper()}"): name for name in names}
        level = levels.get(self._mpi.Query_thread(), "unknown")
        return {"mpi": library_name(self._mpi), "mpi4py": mpi4py.__version__, "mpi_thread_level": level}

    def close(self) -> None:
        """Call MPI_Finalize."""
        finalise(self._mpi)
