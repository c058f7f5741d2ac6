"""Where a cell's elements lie in a rank's memory: send and receive elements of each slot, and how many slots take turns."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Place
from collbench.operations.traffic import elements

# nccl-tests' users know 64 MiB; on a GPU it must be several times the L2, and today's largest has 126 MB.
ROTATION_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
_MOST_SLOTS = 1024
_MOST_SLOTS_CHECKED = 16
_STAGGER = 4096 + 64  # a power of two between slots would put them all into the same cache sets
_ALIGN = 4096


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
            return cls.apart(send, recv, place.cell.dtype.size)
        shift = operation.in_place_shift(place)
        send_at, recv_at = max(shift, 0), max(-shift, 0)
        return cls(send, recv, send_at, recv_at, max(send_at + send, recv_at + recv))

    @classmethod
    def apart(cls, send: int, recv: int, width: int) -> Extent:
        """So many elements of `width` bytes, the receive elements first, the send elements at the next page."""
        gap = -(-recv * width // _ALIGN) * _ALIGN // width
        return cls(send, recv, gap, 0, gap + send)


def slots_for(cell: Cell) -> int:
    """How many slots `--buffers rotating` takes turns over: as many as defeat the caches, 1,024 at most and then further apart."""
    if cell.buffers != "rotating" or not cell.size_bytes:
        return 1
    return min(_MOST_SLOTS, max(1, ROTATION_BYTES[cell.device] // cell.size_bytes))


def slots_checked(cell: Cell) -> list[int]:
    """The slots that are verified: all up to 16, else a sample drawn by the cell's seed, the same on every rank."""
    slots = slots_for(cell)
    if slots <= _MOST_SLOTS_CHECKED:
        return list(range(slots))
    return sorted(random.Random(cell.seed).sample(range(slots), _MOST_SLOTS_CHECKED))


def stride_of(bytes_per_slot: int, slots: int, device: str) -> int:
    """Bytes from one slot to the next."""
    if slots == 1:
        return -(-max(1, bytes_per_slot) // _ALIGN) * _ALIGN
    least = ROTATION_BYTES[device] // _MOST_SLOTS
    return -(-max(least, bytes_per_slot) // _ALIGN) * _ALIGN + _STAGGER


def largest_stride(operation: Operation, cell: Cell, n: int, slots: int) -> int:
    """Bytes from one slot to the next for the rank of n that needs most."""
    count, width = operation.count(cell, n), cell.dtype.size
    if operation.uneven:
        parts = elements(cell.traffic, n, count)
        largest = max(Extent.apart(*each, width).total for each in zip(parts.sum(axis=1).tolist(), parts.sum(axis=0).tolist(), strict=True))
    else:
        largest = max(Extent.of(operation, Place(rank, n, count, cell)).total for rank in {0, n - 1, cell.root or 0})
    return stride_of(largest * width, slots, cell.device)


def bytes_needed(operation: Operation, cell: Cell, n: int) -> int:
    """Bytes that one rank of n needs for this cell, the largest rank counted."""
    slots = slots_for(cell)
    return largest_stride(operation, cell, n, slots) * slots


def bytes_on_host(operation: Operation, cell: Cell, n: int, ranks: int, groups: int) -> int:
    """Bytes that `ranks` ranks of one host need together, of so many groups of n; each group has one root, which may need far more."""
    largest = bytes_needed(operation, cell, n)
    if not operation.rooted or n < 2:
        return ranks * largest
    slots, other = slots_for(cell), 0 if cell.root else 1
    extent = Extent.of(operation, Place(other, n, operation.count(cell, n), cell))
    roots = min(groups, ranks)
    return roots * largest + (ranks - roots) * stride_of(extent.total * cell.dtype.size, slots, cell.device) * slots


def seeded(place: Place, slot: int) -> Place:
    """The place with the digits of a slot: each has its own, so that a slot taken for another shows."""
    return replace(place, cell=replace(place.cell, seed=place.cell.seed + slot))


def grows(cell: Cell) -> bool:
    """Whether timed calls would change what the next one starts from, so that they run on zeros (products: ones) instead of digits."""
    return bool(cell.in_place) and cell.redop in ("sum", "prod", "avg", "bxor")
