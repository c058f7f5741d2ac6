"""Exactly predictable inputs, their expected results, verification of received data, and the layout of buffers.

The values are integers so small that any order of summation gives the same bits. They start at 1, not 0, and
rotate per element and per rank, so that a dropped rank, a swapped rank or a shifted block is detected. Some types cannot hold such a sum
exactly (bfloat16 sums of more than 128 ranks, float8 sums of more than a few). Then at each element only as many ranks as fit have a digit.
All values repeat with the prime period 65,521, so that the result of 1,024 ranks is computed once per period.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache, reduce
from math import ceil
from typing import Any, Self

import msgspec
import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from collbench.operations.case import Case
from collbench.operations.operation import Block, Operation, Place
from collbench.operations.traffic import elements, elements_by_rank

PERIOD = 65521
_LARGEST = 163  # the largest prime below the byte 0xA5 that fills buffers before a check, so that no digit equals it
_FAR = 2**16  # enough different values for min and max over any number of ranks
_ABOVE_SUBNORMAL = 16  # factor by which a float's exact range can be multiplied; float8_e4m3fn loses digits below 1/64
Values = NDArray[Any]


@lru_cache(maxsize=8)
def _mixed(size: int, seed: int) -> NDArray[np.int64]:
    index = np.arange(size, dtype=np.uint64) + np.uint64(seed)
    mixed = (index * np.uint64(2654435761)) ^ (index >> np.uint64(3)) * np.uint64(40503)
    values = ((mixed >> np.uint64(7)) % np.uint64(1 << 30)).astype(np.int64)
    values.setflags(write=False)
    return values


def _sum_digits(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return digits that differ from element to element; their sum over n ranks never exceeds `limit`.

    Where `limit` is too small for digits from 1 to at least 2, every rank holds its share of a total; past `limit` ranks a 1 or a 0.
    """
    span = min(limit // n, _LARGEST)
    while span > 1 and n % span == 0:  # otherwise every element would have the same sum, and a shifted block would not be detected
        span -= 1
    if span > 1:
        return 1 + (mixed + rank) % span
    total = limit - (mixed // n) % (max(limit - n + 1, 2) if n <= limit else limit // 2)
    return total // n + ((mixed + rank) % n < total % n)


def _distinct_digits(rank: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return digits from 1 that differ between ranks: at every element for up to `span` ranks, at most elements beyond."""
    span = min(limit, _LARGEST)
    return 1 + (mixed + rank + (rank // span) * (1 + mixed // span)) % span


def _minimum_digits(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return digits from 1 with a unique minimum at each element, which each rank holds in turn."""
    levels = min(limit // 2, _LARGEST)
    turns = max(n, 2)
    return 1 + (mixed // turns) % levels + np.minimum((mixed + rank) % turns, limit - levels)


def _single_bits(rank: int, n: int, bits: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one bit per element that no other rank holds there; past `bits` ranks, in turn, with one bit left out at each element."""
    turns = max(n, bits)
    turn = (mixed + rank) % turns
    has_bit = turn < bits
    if n >= bits:
        has_bit &= turn != (mixed // turns) % (bits + 1)
    return np.where(has_bit, np.int64(1) << np.minimum(turn, bits - 1), 0)


def _average_digits(rank: int, n: int, exact: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return digits for an average: few ranks hold the same digit at an element, in turn, so that each share exceeds the rounding error."""
    holders = holders_of_average(n, exact)
    digit = 1 + (mixed // n) % min(exact // holders, _LARGEST)
    return np.where((mixed + rank) % n < holders, digit * _ABOVE_SUBNORMAL, 0)


def holders_of_average(n: int, exact: int) -> int:
    """Return how many of n ranks hold a digit at an element that is averaged, in a type that is exact up to `exact`.

    With k holders an average may be k/2 + 2 units in the last place off (see `tolerance_of`): (k + 4) / `exact` of it. Each share
    is 1/k of it: twice as much, or the whole where one rank holds all. At least one rank holds none, so that no share is the
    average.
    """
    most = int((exact / 2 + 4) ** 0.5) - 2
    return max(1, min(n - 1, most))


def _period(rank: int, count: int, place: Place) -> Values:
    """Return one period of a rank's send elements, or fewer, in the case's data type."""
    size = min(count, PERIOD)
    power_of_two = 1 << (size - 1).bit_length()
    mixed = _mixed(min(power_of_two, PERIOD), place.case.seed % PERIOD)[:size]
    dtype = place.case.dtype
    if place.case.redop:
        return _reducible_digits(rank, place.n, place.case, mixed).astype(dtype.numpy)
    if dtype.exact >= _LARGEST or dtype.kind == "int":
        return _distinct_digits(rank, dtype.exact, mixed).astype(dtype.numpy)
    # 8-bit floats have few integers. Without a reduction any number can be used, since its bits are compared.
    return _distinct_digits(rank, dtype.patterns, mixed).astype(f"u{dtype.size}").view(dtype.numpy)


def _reducible_digits(rank: int, n: int, case: Case, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    dtype = case.dtype
    redop = case.redop
    if redop == "sum":
        return _sum_digits(rank, n, dtype.exact, mixed)
    if redop == "avg":
        return _average_digits(rank, n, dtype.exact, mixed)
    if redop == "prod":
        return np.int64(1) << _sum_digits(rank, n, min(dtype.exponent, 62), mixed)
    if redop in ("min", "max"):
        largest = min(dtype.exact, _FAR)
        digits = _minimum_digits(rank, n, largest, mixed)
        return digits if redop == "min" else largest + 1 - digits
    if redop == "bxor":
        return _distinct_digits(rank, dtype.exact, mixed)
    bits = _single_bits(rank, n, dtype.exponent, mixed)
    return ~bits if redop == "band" else bits


def write_digits(target: Values, place: Place) -> None:
    """Write the send elements of `place`'s rank into `target` (elements of the case's data type)."""
    period = _period(place.rank, len(target), place)
    whole = len(target) // PERIOD * PERIOD
    if whole:
        target[:whole].reshape(-1, PERIOD)[:] = period
    target[whole:] = period[: len(target) - whole]


_REDUCE = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def arriving(sources: Sequence[int], sent: int, place: Place) -> Values:
    """Return one period of the data that a block of `sources` delivers (`sent` elements each), reduced by the case's redop; see `spread`.

    Exact in every type, except "avg" over a number of ranks that is not a power of two.
    """
    periods = (_period(rank, sent, place) for rank in sources)
    return reduced(periods, len(sources), place.case).astype(place.case.dtype.numpy)


def reduced(parts: Iterator[Values], n: int, case: Case) -> Values:
    """Return the n parts reduced by the case's redop; the only part where the operation has none."""
    if case.redop is None:
        return next(parts)
    whole: Values = reduce(_REDUCE[case.redop], parts)
    return whole.astype(np.float64) / n if case.redop == "avg" else whole


def spread(period: Values, at: int, count: int) -> Values:
    """Return elements at … at+count of the endless repetition of `period`."""
    at %= len(period)
    if at + count <= len(period):
        return period[at : at + count]
    return np.resize(np.roll(period, -at), count)


# Verification: errors are counted, and the first difference is explained.
#
# The expected data of a block is one period of values. A CPU compares all elements here; a GPU counts errors itself and returns
# only a window at the first difference. Both get their `Mismatch` from `explained`.

POISON = 0xA5
WINDOW = 256  # wrong elements examined to find the rank with the missing contribution
_CHUNK = PERIOD * 64  # elements compared at a time: bounds the extra memory at 32 MiB for float64


class Mismatch(msgspec.Struct, frozen=True):
    """A verification error of one rank: number of wrong elements, index of the first, its expected and received value, a likely cause, and
    the part of the work, if it has parts ("gradients, bucket 3 of 14").
    """

    rank: int
    wrong: int
    index: int
    wanted: str
    got: str
    hint: str = ""
    what: str = ""

    def sentence(self) -> str:
        """Return the text for rows and errors: "rank 1: 5 wrong elements, first at 17: wanted 3.0, got 2.0 (rank 0's share is missing)"."""
        hint = f" ({self.hint})" if self.hint else ""
        noun = "element" if self.wrong == 1 else "elements"
        part = f"{self.what}: " if self.what else ""
        return f"{part}rank {self.rank}: {self.wrong} wrong {noun}, first at {self.index}: wanted {self.wanted}, got {self.got}{hint}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the control plane and for a row's evidence, where the part of the work is first."""
        values = asdict(self)
        part = values.pop("what")
        return {"what": part, **values} if part else values


class ExpectedBlock(msgspec.Struct, frozen=True):
    """The expected data of one block. It starts at element `offset` of the receive buffer, with element `block.at` of the period."""

    block: Block
    offset: int
    period: NDArray[Any]

    def elements(self, start: int, count: int) -> NDArray[Any]:
        """Return `count` expected elements from the block's element `start` on."""
        return spread(self.period, self.block.at + start, count)


def expected_blocks_of(operation: Operation, place: Place) -> Iterator[ExpectedBlock]:
    """Yield the blocks that this rank must receive, in buffer order, without empty ones."""
    offset = 0
    for block in operation.expected_blocks(place):
        if block.count:
            sent = operation.sends(replace(place, rank=block.sources[0]))
            yield ExpectedBlock(block, offset, arriving(block.sources, sent, place))
        offset += block.count


def tolerance_of(place: Place) -> int:
    """Return the allowed error of an element in units in the last place; 0 except for averages over a number of ranks not a power of two.

    Libraries divide the sum, or multiply every share by 1/n first, as NCCL does. With k shares that are not 0: 1/n in the type is up
    to 1 unit off, the products together 1, the k - 1 sums half a unit each, and the expected value is itself rounded: k/2 + 2. Where
    1/n is a subnormal number of the type, its own error is added.
    """
    n = place.n
    dtype = place.case.dtype
    if place.case.redop != "avg" or n & (n - 1) == 0:
        return 0
    share = float(np.array(1 / n).astype(dtype.numpy))
    subnormal_error = max(0.0, abs(share * n - 1) - 1 / dtype.exact)
    return ceil(holders_of_average(n, dtype.exact) / 2 + 2 + subnormal_error * dtype.exact)


def poison(buffer: NDArray[Any]) -> None:
    """Fill a receive buffer with bytes that no moved digit has (only sums of uint8 can reach them), so that missing data is detected."""
    buffer.view(np.uint8)[:] = POISON


def compare(operation: Operation, place: Place, received: NDArray[Any]) -> Mismatch | None:
    """Compare `received` (elements of the case's data type) with the operation's expected blocks for this rank; None if equal."""
    wrong = 0
    first: Mismatch | None = None
    for expected in expected_blocks_of(operation, place):
        got = received[expected.offset : expected.offset + expected.block.count]
        starts = range(0, len(got), _CHUNK)
        chunks = ((expected.elements(start, min(_CHUNK, len(got) - start)), got[start : start + _CHUNK]) for start in starts)
        count, index = differences(chunks, tolerance_of(place))
        if count and first is None:
            first = explained(place, expected, index, got[index : index + WINDOW])
        wrong += count
    return replace(first, wrong=wrong) if first else None


def differences(chunks: Iterable[tuple[NDArray[Any], NDArray[Any]]], tolerance: int) -> tuple[int, int]:
    """Return (number of elements that differ by more than `tolerance` units in the last place, index of the first; 0 if none does).

    chunks: the expected and the received elements, in the order of memory.
    """
    wrong = 0
    first = 0
    start = 0
    for expected, got in chunks:
        bad = _differing_elements(expected, got, tolerance)
        if bad.size and not wrong:
            first = start + int(bad[0])
        wrong += bad.size
        start += len(got)
    return wrong, first


def _differing_elements(expected: NDArray[Any], got: NDArray[Any], tolerance: int) -> NDArray[np.intp]:
    unsigned = f"u{expected.itemsize}"
    a = expected.view(unsigned)
    b = got.view(unsigned)
    if not tolerance:
        return np.flatnonzero(a != b)
    a = _ascending(a)
    b = _ascending(b)
    return np.flatnonzero(np.maximum(a, b) - np.minimum(a, b) > tolerance)


def _ascending(bits: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the order of the floats with these bits, so that adjacent floats differ by 1; 0 and -0 are equal."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    ascending: NDArray[Any] = np.where(bits & sign, sign - (bits - sign), sign + bits)
    return ascending


def explained(place: Place, expected: ExpectedBlock, index: int, got: NDArray[Any]) -> Mismatch:
    """Return the mismatch that begins at the block's element `index`, from the received elements from there on (WINDOW are enough)."""
    right = expected.elements(index, len(got))
    hint = _guess_source(place, expected.block.at + index, right, got)
    return Mismatch(place.rank, 1, expected.offset + index, str(right[0]), str(got[0]), hint)


def _guess_source(place: Place, at: int, expected: NDArray[Any], got: NDArray[Any]) -> str:
    """Return which rank's data explains the received values: missing from a sum, or delivered instead of another's."""
    if np.all(got.view(np.uint8) == POISON):
        return "nothing arrived there"
    if place.case.redop not in (None, "sum"):
        return ""
    missing = _as_floats(expected) - _as_floats(got)
    for rank in place.ranks[:WINDOW]:
        digits = spread(arriving([rank], at + len(got), place), at, len(got))
        if place.case.redop is None and digits.tobytes() == got.tobytes():
            return f"that is what rank {rank} sends"
        if place.case.redop == "sum" and np.array_equal(missing, _as_floats(digits)):
            return f"rank {rank}'s share is missing"
    return ""


def _as_floats(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values).astype(np.float64)


# Layout of a case's elements in a rank's memory: send and receive elements of each slot, and the number of slots.

# 64 MiB as in nccl-tests; on a GPU it must be several times the L2 cache, of which the largest has 126 MB.
ROTATION_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
_MOST_SLOTS = 1024
_MOST_SLOTS_CHECKED = 16
_STAGGER = 4096 + 64  # with a power of two between them, all slots would be in the same cache sets
_ALIGN = 4096


class BufferExtent(msgspec.Struct, frozen=True):
    """The positions of one rank's elements in one slot. In place, the send elements are inside the receive elements' block."""

    send: int
    recv: int
    send_at: int
    recv_at: int
    total: int

    @classmethod
    def of(cls, operation: Operation, place: Place) -> BufferExtent:
        """Return the positions: separate when out of place, overlapping as the blocks require when in place."""
        send = operation.sends(place)
        recv = operation.receives(place)
        if not place.case.in_place:
            return cls.apart(send, recv, place.case.dtype.size)
        shift = operation.in_place_shift(place)
        send_at = max(shift, 0)
        recv_at = max(-shift, 0)
        return cls(send, recv, send_at, recv_at, max(send_at + send, recv_at + recv))

    def within(self, operation: Operation, place: Place) -> BufferExtent:
        """Return the positions of a smaller case, out of place, in the same memory."""
        return replace(self, send=operation.sends(place), recv=operation.receives(place))

    @classmethod
    def apart(cls, send: int, recv: int, width: int) -> BufferExtent:
        """Return positions with the receive elements first and the send elements at the next page. `width`: bytes per element."""
        gap = -(-recv * width // _ALIGN) * _ALIGN // width
        return cls(send, recv, gap, 0, gap + send)


class SlottedBuffers:
    """The layout of the buffers of the ranks that this process drives, in host or GPU memory. Attributes: see `host.AnyBuffers`."""

    def __init__(self, operation: Operation, case: Case, n: int, ranks: Sequence[int], slots: int) -> None:
        count = operation.count(case, n)
        self.operation = operation
        self.case = case
        self.slots = slots
        self.places = [Place(rank, n, count, case) for rank in ranks]
        self._extents = [BufferExtent.of(operation, place) for place in self.places]
        self._first = 0  # the slot of the memory that is slot 0

    def over(self, operation: Operation, case: Case, slot: int) -> Self:
        """Return buffers with one slot, slot `slot` of these, for another case of the same data type that needs no more memory."""
        view = copy(self)
        view.operation = operation
        view.case = case
        view.slots = 1
        view.places = [replace(place, case=case, count=operation.count(case, place.n)) for place in self.places]
        view._extents = [extent.within(operation, place) for extent, place in zip(self._extents, view.places, strict=True)]
        view._first = slot
        return view


def slots_for(case: Case) -> int:
    """Return the number of slots for `--buffers rotating`: enough to exceed the caches, 1,024 at most and then further apart."""
    if case.buffers != "rotating" or not case.size_bytes:
        return 1
    return min(_MOST_SLOTS, max(1, ROTATION_BYTES[case.device] // case.size_bytes))


def slots_checked(case: Case) -> list[int]:
    """Return the slots that are verified: all up to 16, else a sample from the case's seed, the same on every rank."""
    slots = slots_for(case)
    if slots <= _MOST_SLOTS_CHECKED:
        return list(range(slots))
    return sorted(random.Random(case.seed).sample(range(slots), _MOST_SLOTS_CHECKED))


def stride_of(bytes_per_slot: int, slots: int, device: str) -> int:
    """Return the bytes from one slot to the next."""
    if slots == 1:
        return -(-max(1, bytes_per_slot) // _ALIGN) * _ALIGN
    least = ROTATION_BYTES[device] // _MOST_SLOTS
    return -(-max(least, bytes_per_slot) // _ALIGN) * _ALIGN + _STAGGER


def largest_stride(operation: Operation, case: Case, n: int, slots: int) -> int:
    """Return the bytes from one slot to the next for the rank with the largest buffers."""
    count = operation.count(case, n)
    width = case.dtype.size
    if operation.uneven and not operation.by_rank:
        parts = elements(case.traffic, n, count)
        sent_and_received = zip(parts.sum(axis=1).tolist(), parts.sum(axis=0).tolist(), strict=True)
        largest = max(BufferExtent.apart(sent, received, width).total for sent, received in sent_and_received)
    else:
        ranks = {0, n - 1, case.root or 0}
        if operation.by_rank:
            parts_by_rank = elements_by_rank(case.traffic, n, count)
            ranks = {parts_by_rank.index(max(parts_by_rank)), case.root or 0}
        largest = max(BufferExtent.of(operation, Place(rank, n, count, case)).total for rank in ranks)
    return stride_of(largest * width, slots, case.device)


def bytes_needed(operation: Operation, case: Case, n: int) -> int:
    """Return the bytes that a rank needs for this case, for the rank with the largest buffers."""
    slots = slots_for(case)
    return largest_stride(operation, case, n, slots) * slots


def bytes_on_host(operation: Operation, case: Case, n: int, ranks: int, groups: int) -> int:
    """Return the bytes that `ranks` ranks of one host need together, in `groups` groups of n; a group's root may need far more."""
    largest = bytes_needed(operation, case, n)
    if not operation.rooted or n < 2:
        return ranks * largest
    slots = slots_for(case)
    count = operation.count(case, n)
    members = [rank for rank in range(n) if rank != (case.root or 0)]
    parts = elements_by_rank(case.traffic, n, count) if operation.by_rank else ()
    busiest = max(members, key=parts.__getitem__) if parts else members[0]
    extent = BufferExtent.of(operation, Place(busiest, n, count, case))
    roots = min(groups, ranks)
    return roots * largest + (ranks - roots) * stride_of(extent.total * case.dtype.size, slots, case.device) * slots


def seeded(place: Place, slot: int) -> Place:
    """Return the place with the digits of a slot. Each slot has different digits, so that mixed-up slots are detected."""
    return replace(place, case=replace(place.case, seed=place.case.seed + slot))


def grows(case: Case) -> bool:
    """Return whether timed calls would change the input of the next call; these use zeros (products: ones) instead of digits."""
    return bool(case.in_place) and case.redop in ("sum", "prod", "avg", "bxor")
