"""The base of backends on host memory: one rank per process, blocking calls, collbench's buffers, CLOCK_MONOTONIC.

A plug-in derives from `HostBackend` and implements `probe`, `open`, `communicator`, `binding`, `supports` and `versions`.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, SupportsInt

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import BackendBase, Group, Tuning
from collbench.backends.clock import Clock, DeviceClock, MonotonicClock
from collbench.backends.nonblocking import busy, divided
from collbench.operations.case import Case
from collbench.operations.data import Mismatch, SlottedBuffers, compare, grows, poison, seeded, stride_of, write_digits
from collbench.operations.operation import Operation, Place, Steps
from collbench.operations.program import Call, NativeCall, NonBlocking, Program
from collbench.operations.unsupported import StartUnsupported
from collbench.reason import Fact

# Host buffers: page-aligned, written before use, with several slots. The page size depends on the buffer's size, and is stored in the row.

_HUGE_FROM = 4 * 2**20  # bytes, numpy's threshold; smaller buffers have ordinary pages, as in most programs
Elements = NDArray[Any]


class AnyBuffers(Protocol):
    """The interface of buffers, on the host (`Buffers`) or on a GPU (`device.buffers.DeviceBuffers`).

    operation, case   the test case
    places      the ranks that this process drives, in the order of `Group.driven`
    slots       number of buffers of each rank; iterations use them in turn
    page_bytes  the page size in bytes; None on a GPU

    `driven` in the methods is an index into `places`.
    """

    operation: Operation
    case: Case
    places: list[Place]
    slots: int
    page_bytes: int | None

    def send_at(self, driven: int, slot: int) -> int:
        """Return the address of a rank's send elements in a slot."""

    def recv_at(self, driven: int, slot: int) -> int:
        """Return the address of a rank's receive elements in a slot."""

    def fill(self, slot: int, for_check: bool) -> None:
        """Write the inputs of all driven ranks into a slot. For a check, first overwrite the slot, so that missing data is detected."""

    def check(self, slot: int) -> list[Mismatch | None]:
        """Return for each driven rank the errors in its received elements in a slot, or None."""


class Buffers(SlottedBuffers):
    """Buffers in host memory, of the ranks that this process drives. Attributes and methods: see `AnyBuffers`."""

    def __init__(self, operation: Operation, case: Case, group: Group, slots: int) -> None:
        super().__init__(operation, case, group.n, group.driven, slots)
        self._memory = [self._block(extent.total * case.dtype.size) for extent in self._extents]
        self.page_bytes: int | None = max((memory.page_bytes for memory in self._memory), default=0)

    def _block(self, bytes_per_slot: int) -> MappedBlock:
        """Return the memory of one driven rank. Raises MemoryError."""
        return MappedBlock(bytes_per_slot, self.slots)

    def send(self, driven: int, slot: int) -> Elements:
        """Return a rank's send elements in a slot, as an array of the case's data type."""
        return self._part(driven, slot, self._extents[driven].send_at, self._extents[driven].send)

    def recv(self, driven: int, slot: int) -> Elements:
        """Return a rank's receive elements in a slot, as an array of the case's data type."""
        return self._part(driven, slot, self._extents[driven].recv_at, self._extents[driven].recv)

    def send_at(self, driven: int, slot: int) -> int:
        """Return the address of a rank's send elements in a slot."""
        return int(self.send(driven, slot).ctypes.data)

    def recv_at(self, driven: int, slot: int) -> int:
        """Return the address of a rank's receive elements in a slot."""
        return int(self.recv(driven, slot).ctypes.data)

    def _part(self, driven: int, slot: int, start: int, count: int) -> Elements:
        width = self.case.dtype.size
        slot_bytes = self._memory[driven].slot(self._first + slot)
        return slot_bytes[start * width : (start + count) * width].view(self.case.dtype.numpy)

    def fill(self, slot: int, for_check: bool) -> None:
        """Write the inputs of all driven ranks into a slot. For a check, first overwrite the slot, so that missing data is detected.

        Timed in-place sums use zeros, and products use ones. Other values would grow with each call (float16 overflows after 16).
        """
        for driven, place in enumerate(self.places):
            if for_check:
                poison(self._memory[driven].slot(self._first + slot))
            send = self.send(driven, slot)
            if not for_check and grows(place.case):
                send[:] = 1 if place.case.redop == "prod" else 0
            else:
                write_digits(send, seeded(place, slot))

    def check(self, slot: int) -> list[Mismatch | None]:
        """Return for each driven rank the errors in its received elements in a slot, or None."""
        return [compare(self.operation, seeded(place, slot), self.recv(driven, slot)) for driven, place in enumerate(self.places)]


class MappedBlock:
    """An anonymous memory mapping of `slots` equal parts, page-aligned and touched. Raises MemoryError."""

    def __init__(self, bytes_per_slot: int, slots: int) -> None:
        self._stride = stride_of(bytes_per_slot, slots, "cpu")
        total = self._stride * slots
        self.huge = total >= _HUGE_FROM
        try:
            self._map = mmap.mmap(-1, total + (_huge_page() if self.huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for {total} bytes") from error
        with suppress(OSError):  # fails on a kernel without huge pages; `page_bytes` returns the actual size
            self._map.madvise(mmap.MADV_HUGEPAGE if self.huge else mmap.MADV_NOHUGEPAGE)
        mapped = np.frombuffer(self._map, np.uint8)
        start = -mapped.ctypes.data % _huge_page() if self.huge else 0
        self._bytes = mapped[start : start + total]
        self._bytes[:] = 0
        self._length = bytes_per_slot

    def slot(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of one slot."""
        start = index % (len(self._bytes) // self._stride) * self._stride
        return self._bytes[start : start + self._length]

    @property
    def page_bytes(self) -> int:
        """The page size in bytes: that of huge pages if most of the mapping consists of them, else the ordinary one."""
        if not self.huge:
            return mmap.PAGESIZE
        return _huge_page() if _huge_bytes_at(self._bytes.ctypes.data) * 2 > len(self._bytes) else mmap.PAGESIZE


def _huge_page() -> int:
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 2 * 2**20


def _huge_bytes_at(address: int) -> int:
    """Return AnonHugePages of the mapping that contains `address`, in bytes, from /proc/self/smaps; 0 if it cannot be read."""
    inside = False
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


class Address:
    """An address of elements of `width` bytes: `address[k:]` is the address of element k."""

    def __init__(self, base: int, width: int) -> None:
        self._base = base
        self._width = width

    def __getitem__(self, part: slice) -> Address:
        return Address(self._base + (part.start or 0) * self._width, self._width)

    def __int__(self) -> int:
        return self._base


class NativeBinding:
    """The base of bindings (`operations.operation.Binding`) for C libraries. A backend adds type, redop, comm, status etc.

    integer   the C type of the library's arrays of counts and displacements

    `call` and `pointer` raise AttributeError for a function that the library does not have; check with `has` first.
    """

    integer: type[ctypes.c_int] | type[ctypes.c_int64] = ctypes.c_int

    def __init__(self, library: ctypes.CDLL, case: Case, rank: int, n: int, count: int) -> None:
        self.library = library
        self.case = case
        self.rank = rank
        self.n = n
        self.count = count
        self.root = case.root or 0
        self.keep: list[object] = []

    def call(self, name: str, *args: SupportsInt) -> NativeCall:
        """Return a call of the library's function `name` with word-sized arguments: integers, addresses, handles."""
        return NativeCall(name, self.pointer(name), tuple(int(arg) for arg in args))

    def pointer(self, name: str) -> int:
        """Return the address of the library's function `name`."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Return whether the library has a function `name`."""
        return hasattr(self.library, name)

    def array(self, values: Sequence[int]) -> Address:
        """Return a C array of counts or displacements that lives as long as the program."""
        array = (self.integer * len(values))(*values)
        self.keep.append(array)
        return Address(ctypes.addressof(array), ctypes.sizeof(self.integer))

    def room(self, n_bytes: int) -> int:
        """Return the address of zeroed memory that lives as long as the program, for statuses and requests."""
        memory = ctypes.create_string_buffer(n_bytes)
        self.keep.append(memory)
        return ctypes.addressof(memory)

    def free(self) -> None:
        """Free what the library holds for the calls, which must be complete."""
        return


def free_all(bindings: Sequence[Any]) -> None:
    """Free what libraries hold for the calls of these bindings; those that are not native hold nothing."""
    for binding in bindings:
        if isinstance(binding, NativeBinding):
            binding.free()


class HostBackend(BackendBase, ABC):
    """A backend on host memory with blocking calls, one rank per process. Methods without a default here: see `Backend`.

    explain   returns the library's text for an error code of a native call
    """

    name = api = ""
    devices = frozenset({"cpu"})
    rank = 0
    explain: Callable[[int], str] = staticmethod("error code {}".format)

    @abstractmethod
    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return the library's handle of a group of ranks. All ranks must call it; the result is ignored on ranks outside the group."""

    @abstractmethod
    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> Any:
        """Return the argument of step functions (`operations.operation.Binding`) for one slot of the buffers."""

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """Return a group of these ranks of the job; None on ranks outside it. `tuning` is ignored."""
        handle = self.communicator(ranks)
        return Group(tuple(ranks), (list(ranks).index(self.rank),), handle) if self.rank in ranks else None

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> AnyBuffers:
        """Return buffers in host memory. Raises MemoryError."""
        return Buffers(operation, case, group, slots)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return the program of the backend's own steps, else of the operation's for this api."""
        steps, bindings = self._steps_and_bindings(operation, group, buffers)
        slots = tuple(tuple(steps(binding)) for binding in bindings)
        return Program(slots, keep=(buffers, bindings), explain=self.explain, free=partial(free_all, bindings))

    def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
        """Return the programs to start the operation and to wait for it, or why the library cannot start it."""
        steps, bindings = self._steps_and_bindings(operation, group, buffers)
        slots = list(filter(None, (divided(steps, binding) for binding in bindings)))
        if len(slots) < len(bindings):
            free_all(bindings)
            return StartUnsupported(self.name, operation.name)
        starts, waits = zip(*slots, strict=True)
        start = Program(starts, keep=(buffers, bindings), explain=self.explain, free=partial(free_all, bindings))
        return NonBlocking(start, Program(waits, keep=(buffers, bindings), explain=self.explain))

    def _steps_and_bindings(self, operation: Operation, group: Group, buffers: AnyBuffers) -> tuple[Steps, list[Any]]:
        """Return the steps of the operation, and a binding for each slot of the buffers."""
        steps = self.steps.get(operation.name) or operation.steps_of(self.api, self.passes_messages)
        assert steps is not None, "excluded by unsupported_reason"
        return steps, [self.binding(group, buffers, slot) for slot in range(buffers.slots)]

    def compute(self, seconds: float) -> Call:
        """Return a call that keeps this rank's core busy for so long."""
        return busy(seconds)

    def sync(self, group: Group) -> Program | None:
        """Return None: use collbench's synchronization."""
        return None

    def clock(self) -> Clock | DeviceClock:
        """Return the clock CLOCK_MONOTONIC."""
        return MonotonicClock()

    def fence(self, deadline_s: float) -> None:
        """Do nothing: blocking calls leave no work pending."""

    def abort(self, why: str) -> None:
        """Do nothing: the library's own timeout ends pending calls."""
