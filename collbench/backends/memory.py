"""Host buffers: page-aligned, page size chosen and recorded, touched before use, with room for several slots in turn."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.group import Group
from collbench.operations.cell import Cell
from collbench.operations.check import poison
from collbench.operations.digits import write_digits
from collbench.operations.operation import Operation, Place

_HUGE_FROM = 4 * 2**20  # numpy's own threshold: smaller buffers get ordinary pages, as in most programs
ROTATION_BYTES = 64 * 2**20
_MOST_SLOTS = 1024
_LEAST_STRIDE = ROTATION_BYTES // _MOST_SLOTS
_STAGGER = 4096 + 64  # a power of two between slots would put them all into the same cache sets
_ALIGN = 4096
Elements = NDArray[Any]


@dataclass(frozen=True)
class Extent:
    """Elements of one rank's buffers in one slot; in place, send lies inside the same block as recv."""

    send: int
    recv: int
    send_at: int
    recv_at: int
    total: int

    @classmethod
    def of(cls, operation: Operation, place: Place) -> Extent:
        """Where send and receive elements lie. Out of place they are apart; in place they overlap as the blocks demand."""
        send, recv = operation.sends(place), operation.receives(place)
        if not place.cell.in_place:
            width = place.cell.dtype.size
            gap = -(-recv * width // _ALIGN) * _ALIGN // width
            return cls(send, recv, gap, 0, gap + send)
        shift = operation.in_place_shift(place)
        send_at, recv_at = max(shift, 0), max(-shift, 0)
        return cls(send, recv, send_at, recv_at, max(send_at + send, recv_at + recv))


def slots_for(cell: Cell) -> int:
    """How many slots `--buffers rotating` takes turns over: as many as fill 64 MiB, 1,024 at most and then further apart."""
    return min(_MOST_SLOTS, max(1, ROTATION_BYTES // cell.size_bytes)) if cell.buffers == "rotating" else 1


def _stride(bytes_per_slot: int, slots: int) -> int:
    """Bytes from one slot to the next."""
    if slots == 1:
        return -(-max(1, bytes_per_slot) // _ALIGN) * _ALIGN
    return -(-max(_LEAST_STRIDE, bytes_per_slot) // _ALIGN) * _ALIGN + _STAGGER


def bytes_needed(operation: Operation, cell: Cell, n: int) -> int:
    """Bytes that one rank of n needs for this cell, the largest rank counted."""
    count = operation.count(cell, n)
    ranks = {0, n - 1, cell.root or 0}
    largest = max(Extent.of(operation, Place(rank, n, count, cell)).total for rank in ranks)
    slots = slots_for(cell)
    return _stride(largest * cell.dtype.size, slots) * slots


class Buffers:
    """The buffers of the ranks this process drives. `places` are those ranks' views, in the group's order of `driven`."""

    def __init__(self, operation: Operation, cell: Cell, group: Group, slots: int) -> None:
        count = operation.count(cell, group.n)
        self.operation, self.cell, self.slots = operation, cell, slots
        self.places = [Place(rank, group.n, count, cell) for rank in group.driven]
        self._extents = [Extent.of(operation, place) for place in self.places]
        self._memory = [Block(extent.total * cell.dtype.size, slots) for extent in self._extents]
        self.page_bytes = max((memory.page_bytes for memory in self._memory), default=0)

    def send(self, driven: int, slot: int) -> Elements:
        """The send elements of the `driven`th rank in a slot, as the cell's dtype."""
        return self._part(driven, slot, self._extents[driven].send_at, self._extents[driven].send)

    def recv(self, driven: int, slot: int) -> Elements:
        """The receive elements."""
        return self._part(driven, slot, self._extents[driven].recv_at, self._extents[driven].recv)

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
            if not for_check and place.cell.in_place and place.cell.redop in ("sum", "prod", "avg", "bxor"):
                send[:] = 1 if place.cell.redop == "prod" else 0
            else:
                write_digits(send, self._seeded(place, slot))

    def check(self, slot: int, compare: Callable[[Operation, Place, Elements], Any]) -> list[Any]:
        """What `compare` says of every driven rank's received elements in a slot."""
        return [compare(self.operation, self._seeded(place, slot), self.recv(driven, slot)) for driven, place in enumerate(self.places)]

    def _seeded(self, place: Place, slot: int) -> Place:
        return replace(place, cell=replace(place.cell, seed=place.cell.seed + slot))


class Block:
    """One anonymous mapping of `slots` equal parts, page-aligned and touched."""

    def __init__(self, bytes_per_slot: int, slots: int) -> None:
        self._stride = _stride(bytes_per_slot, slots)
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
