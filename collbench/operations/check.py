"""Whether what arrived is what had to arrive: counted, and the first difference shown.

What a block must bring is one period of values; a CPU compares all elements with it here, a GPU counts by itself and hands
only a window around the first difference back. Both get their `Mismatch` from `explained`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.operations.digits import PERIOD, arriving, holders_of_average, spread
from collbench.operations.operation import Block, Operation, Place

POISON = 0xA5
WINDOW = 256  # wrong elements looked at when telling whose share is missing
_CHUNK = PERIOD * 64  # elements compared at a time: bounds the extra memory at 32 MiB for float64


@dataclass(frozen=True)
class Mismatch:
    """What one rank found wrong: how many elements, the first bad index, what was wanted there, what was got, and a guess why."""

    rank: int
    wrong: int
    index: int
    wanted: str
    got: str
    hint: str = ""

    def sentence(self) -> str:
        """For rows and errors: "rank 1: 5 wrong elements, first at 17: wanted 3.0, got 2.0 (rank 0's share is missing)"."""
        hint = f" ({self.hint})" if self.hint else ""
        noun = "element" if self.wrong == 1 else "elements"
        return f"rank {self.rank}: {self.wrong} wrong {noun}, first at {self.index}: wanted {self.wanted}, got {self.got}{hint}"

    def as_json(self) -> dict[str, Any]:
        """For the control plane."""
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """What one block must bring: it begins at element `offset` of the receive buffer, with element `block.at` of the period."""

    block: Block
    offset: int
    period: NDArray[Any]

    def elements(self, start: int, count: int) -> NDArray[Any]:
        """`count` elements from the block's element `start` on."""
        return spread(self.period, self.block.at + start, count)


def wanted_of(operation: Operation, place: Place) -> Iterator[Wanted]:
    """The blocks that must arrive at this rank, in buffer order; those of no elements left out."""
    offset = 0
    for block in operation.arrives(place):
        if block.count:
            sent = operation.sends(replace(place, rank=block.sources[0]))
            yield Wanted(block, offset, arriving(block.sources, sent, place))
        offset += block.count


def tolerance_of(place: Place) -> int:
    """How many units in the last place an element may be off; 0 but for an average over a number of ranks that is no power of two.

    Libraries divide the sum, or multiply every share by 1/n first, as NCCL does. With k shares that are not 0: 1/n in the type is up
    to 1 unit off, the products together 1, the k - 1 sums half a unit each, and what is wanted is itself rounded: k/2 + 2. Where
    1/n is a subnormal number of the type, its own error comes on top.
    """
    n, dtype = place.n, place.cell.dtype
    if place.cell.redop != "avg" or n & (n - 1) == 0:
        return 0
    share = float(np.array(1 / n).astype(dtype.numpy))
    beyond = max(0.0, abs(share * n - 1) - 1 / dtype.exact)
    return ceil(holders_of_average(n, dtype.exact) / 2 + 2 + beyond * dtype.exact)


def poison(buffer: NDArray[Any]) -> None:
    """Fills a receive buffer with bytes that no moved digit has (only sums of uint8 can reach them): what never arrived shows."""
    buffer.view(np.uint8)[:] = POISON


def compare(operation: Operation, place: Place, received: NDArray[Any]) -> Mismatch | None:
    """Compares `received` (elements of the cell's dtype) with what the operation's blocks promise this rank."""
    wrong, first = 0, None
    for wanted in wanted_of(operation, place):
        got = received[wanted.offset : wanted.offset + wanted.block.count]
        count, index = _differences(wanted, got, tolerance_of(place))
        if count and first is None:
            first = explained(place, wanted, index, got[index : index + WINDOW])
        wrong += count
    return replace(first, wrong=wrong) if first else None


def _differences(wanted: Wanted, got: NDArray[Any], tolerance: int) -> tuple[int, int]:
    """(how many elements of a block differ, the first of them), looked at chunk by chunk."""
    wrong, first = 0, 0
    for start in range(0, len(got), _CHUNK):
        part = got[start : start + _CHUNK]
        bad = _differ(wanted.elements(start, len(part)), part, tolerance)
        if bad.size and not wrong:
            first = start + int(bad[0])
        wrong += bad.size
    return wrong, first


def _differ(wanted: NDArray[Any], got: NDArray[Any], tolerance: int) -> NDArray[np.intp]:
    """Where the bits differ, or are further apart than `tolerance` units in the last place."""
    width = f"u{wanted.itemsize}"
    a, b = wanted.view(width), got.view(width)
    if not tolerance:
        return np.flatnonzero(a != b)
    a, b = _ascending(a), _ascending(b)
    return np.flatnonzero(np.maximum(a, b) - np.minimum(a, b) > tolerance)


def _ascending(bits: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the order of the floats that have these bits, one apart where those are; 0 and -0 are one."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    ascending: NDArray[Any] = np.where(bits & sign, sign - (bits - sign), sign + bits)
    return ascending


def explained(place: Place, wanted: Wanted, index: int, got: NDArray[Any]) -> Mismatch:
    """The mismatch that begins at the block's element `index`, from the elements got there and after (WINDOW of them are enough)."""
    right = wanted.elements(index, len(got))
    hint = _whose(place, wanted.block.at + index, right, got)
    return Mismatch(place.rank, 1, wanted.offset + index, str(right[0]), str(got[0]), hint)


def _whose(place: Place, at: int, wanted: NDArray[Any], got: NDArray[Any]) -> str:
    """Which rank's data would explain what was got: one that is missing from a sum, or one that came instead of another."""
    if np.all(got.view(np.uint8) == POISON):
        return "nothing arrived there"
    if place.cell.redop not in (None, "sum"):
        return ""
    missing = _as_floats(wanted) - _as_floats(got)
    for rank in place.ranks[:WINDOW]:
        theirs = _sent_by(rank, at, len(got), place)
        if place.cell.redop is None and theirs.tobytes() == got.tobytes():
            return f"that is what rank {rank} sends"
        if place.cell.redop == "sum" and np.array_equal(missing, _as_floats(theirs)):
            return f"rank {rank}'s share is missing"
    return ""


def _sent_by(rank: int, at: int, count: int, place: Place) -> NDArray[Any]:
    return spread(arriving([rank], at + count, place), at, count)


def _as_floats(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values).astype(np.float64)
