"""What backends on host memory have in common: one rank a process, blocking calls, buffers of our own, CLOCK_MONOTONIC."""

from __future__ import annotations

import ctypes
import mmap
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, SupportsInt

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import BackendBase, Group, Tuning
from collbench.backends.clock import Clock, DeviceClock, MonotonicClock
from collbench.operations.cell import Cell
from collbench.operations.data import Extent, Mismatch, compare, grows, poison, seeded, stride_of, write_digits
from collbench.operations.operation import Operation, Place
from collbench.operations.program import NativeCall, Program

# Host buffers: page-aligned, page size chosen and recorded, touched before use, with room for several slots in turn.

_HUGE_FROM = 4 * 2**20  # numpy's own threshold: smaller buffers get ordinary pages, as in most programs
Elements = NDArray[Any]


class AnyBuffers(Protocol):
    """What a measurement needs of buffers, wherever they lie: these, or those of the room device.

    operation, cell   what they are for
    places      the views of the ranks this process drives, in the group's order of `driven`
    slots       how many buffers each has, used in turn
    page_bytes  the size of the host's pages that hold them; None on a GPU
    """

    operation: Operation
    cell: Cell
    places: list[Place]
    slots: int
    page_bytes: int | None

    def send_at(self, driven: int, slot: int) -> int:
        """The address of the send elements of the `driven`th rank in a slot."""
        ...

    def recv_at(self, driven: int, slot: int) -> int:
        """The address of the receive elements."""
        ...

    def fill(self, slot: int, for_check: bool) -> None:
        """Writes the inputs of every driven rank into a slot; for a check, what has not arrived yet is poisoned first."""
        ...

    def check(self, slot: int) -> list[Mismatch | None]:
        """What is wrong with every driven rank's received elements in a slot, or None."""
        ...


class Memory(Protocol):
    """One rank's memory, for all slots; the size of its pages in bytes, 0 where that is the library's own affair."""

    @property
    def page_bytes(self) -> int:
        """See above."""
        ...

    def slot(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one slot."""
        ...


class Buffers:
    """The buffers of the ranks this process drives. `places` are those ranks' views, in the group's order of `driven`."""

    def __init__(self, operation: Operation, cell: Cell, group: Group, slots: int) -> None:
        count = operation.count(cell, group.n)
        self.operation, self.cell, self.slots = operation, cell, slots
        self.places = [Place(rank, group.n, count, cell) for rank in group.driven]
        self._extents = [Extent.of(operation, place) for place in self.places]
        self._memory = [self._block(extent.total * cell.dtype.size) for extent in self._extents]
        self.page_bytes: int | None = max((memory.page_bytes for memory in self._memory), default=0)

    def _block(self, bytes_per_slot: int) -> Memory:
        """The memory of one driven rank. Raises MemoryError."""
        return Block(bytes_per_slot, self.slots)

    def send(self, driven: int, slot: int) -> Elements:
        """The send elements of the `driven`th rank in a slot, as the cell's dtype."""
        return self._part(driven, slot, self._extents[driven].send_at, self._extents[driven].send)

    def recv(self, driven: int, slot: int) -> Elements:
        """The receive elements."""
        return self._part(driven, slot, self._extents[driven].recv_at, self._extents[driven].recv)

    def send_at(self, driven: int, slot: int) -> int:
        """The address of the send elements."""
        return int(self.send(driven, slot).ctypes.data)

    def recv_at(self, driven: int, slot: int) -> int:
        """The address of the receive elements."""
        return int(self.recv(driven, slot).ctypes.data)

    def _part(self, driven: int, slot: int, at: int, count: int) -> Elements:
        width = self.cell.dtype.size
        whole = self._memory[driven].slot(slot)
        return whole[at * width : (at + count) * width].view(self.cell.dtype.numpy)

    def fill(self, slot: int, for_check: bool) -> None:
        """Writes the inputs of every driven rank into a slot; for a check, what has not arrived yet is poisoned first.

        Timed in-place sums run on zeros and products on ones: they would grow at every call (float16 overflows after 16).
        """
        for driven, place in enumerate(self.places):
            if for_check:
                poison(self._memory[driven].slot(slot))
            send = self.send(driven, slot)
            if not for_check and grows(place.cell):
                send[:] = 1 if place.cell.redop == "prod" else 0
            else:
                write_digits(send, seeded(place, slot))

    def check(self, slot: int) -> list[Mismatch | None]:
        """What is wrong with every driven rank's received elements in a slot, or None."""
        return [compare(self.operation, seeded(place, slot), self.recv(driven, slot)) for driven, place in enumerate(self.places)]


class Block:
    """One anonymous mapping of `slots` equal parts, page-aligned and touched."""

    def __init__(self, bytes_per_slot: int, slots: int) -> None:
        self._stride = stride_of(bytes_per_slot, slots, "cpu")
        total = self._stride * slots
        self.huge = total >= _HUGE_FROM
        try:
            self._map = mmap.mmap(-1, total + (_huge_page() if self.huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for {total} bytes") from error
        with suppress(OSError):  # a kernel without huge pages says no; page_bytes tells what was really given
            self._map.madvise(mmap.MADV_HUGEPAGE if self.huge else mmap.MADV_NOHUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        start = -whole.ctypes.data % _huge_page() if self.huge else 0
        self._bytes = whole[start : start + total]
        self._bytes[:] = 0
        self._length = bytes_per_slot

    def slot(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one slot."""
        start = index % (len(self._bytes) // self._stride) * self._stride
        return self._bytes[start : start + self._length]

    @property
    def page_bytes(self) -> int:
        """The page size that the kernel really gave: huge pages only if most of the mapping got them."""
        if not self.huge:
            return mmap.PAGESIZE
        return _huge_page() if _huge_bytes_at(self._bytes.ctypes.data) * 2 > len(self._bytes) else mmap.PAGESIZE


def _huge_page() -> int:
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 2 * 2**20


def _huge_bytes_at(address: int) -> int:
    """AnonHugePages of the mapping that holds `address`, from /proc/self/smaps; 0 where it cannot be read."""
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


# Binds an operation's steps to C functions: addresses that can be sliced, words, and calls by function pointer.


class Address:
    """A place in memory, sliced in elements of `width` bytes: `address[k:]` is k elements further."""

    def __init__(self, base: int, width: int) -> None:
        self._base, self._width = base, width

    def __getitem__(self, part: slice) -> Address:
        return Address(self._base + (part.start or 0) * self._width, self._width)

    def __int__(self) -> int:
        return self._base


class NativeBinding:
    """What every C library's binding has in common; a backend adds its words (type, redop, comm, status …).

    integer   what the library takes its counts and displacements as, where it wants an array of them
    Raises AttributeError for a function that the library lacks; ask `has` first.
    """

    integer: type[ctypes.c_int] | type[ctypes.c_int64] = ctypes.c_int

    def __init__(self, library: ctypes.CDLL, cell: Cell, rank: int, n: int, count: int) -> None:
        self.library, self.cell, self.rank, self.n, self.count = library, cell, rank, n, count
        self.root = cell.root or 0
        self.keep: list[object] = []

    def call(self, name: str, *words: SupportsInt) -> NativeCall:
        """A call of the library's function `name` with word-sized arguments."""
        return NativeCall(name, self.pointer(name), tuple(int(word) for word in words))

    def pointer(self, name: str) -> int:
        """The function's address."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Whether the library has a function `name`."""
        return hasattr(self.library, name)

    def array(self, values: Sequence[int]) -> Address:
        """A C array of counts or displacements that lives as long as the program."""
        kept = (self.integer * len(values))(*values)
        self.keep.append(kept)
        return Address(ctypes.addressof(kept), ctypes.sizeof(self.integer))

    def room(self, n_bytes: int) -> int:
        """The address of zeroed memory that lives as long as the program (statuses, requests)."""
        kept = ctypes.create_string_buffer(n_bytes)
        self.keep.append(kept)
        return ctypes.addressof(kept)


class HostBackend(BackendBase, ABC):
    """A backend of this kind says how it opens, what its communicator of some ranks is, and how steps bind to a slot's buffers."""

    name = api = ""
    devices = frozenset({"cpu"})
    rank = 0
    explain: Callable[[int], str] = staticmethod("error code {}".format)

    @abstractmethod
    def communicator(self, ranks: Sequence[int]) -> Any:
        """The library's handle of a group. All ranks call; outside the group the answer is ignored."""

    @abstractmethod
    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> Any:
        """x, as the operation's steps see it, for one slot."""

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """A group of the job's ranks; None at ranks outside. No library of this kind takes a tuning, see `can_do`."""
        handle = self.communicator(ranks)
        return Group(tuple(ranks), (list(ranks).index(self.rank),), handle) if self.rank in ranks else None

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Host memory, the same for every such backend."""
        return Buffers(operation, cell, group, slots)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """The backend's own steps, or the operation's for this api, per slot."""
        steps = self.steps.get(operation.name) or operation.steps_of(self.api, self.passes_messages)
        assert steps is not None, "asked of can_do before"
        bindings = [self.binding(group, buffers, slot) for slot in range(buffers.slots)]
        slots = tuple(tuple(steps(binding)) for binding in bindings)
        return Program(slots, keep=(buffers, bindings), explain=self.explain)

    def sync(self, group: Group) -> Program | None:
        """None: the room timing has a barrier."""
        return None

    def clock(self) -> Clock | DeviceClock:
        """CLOCK_MONOTONIC."""
        return MonotonicClock()

    def fence(self, deadline_s: float) -> None:
        """Nothing is left pending by blocking calls."""

    def abort(self, why: str) -> None:
        """The library's own timeout ends what is pending."""
