"""Whether what arrived is what had to arrive: counted, and the first difference shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.operations.digits import PERIOD, arriving, spread
from collbench.operations.operation import Block, Operation, Place

_CHUNK = PERIOD * 64  # elements compared at a time: bounds the extra memory at 32 MiB for float64
_POISON = 0xA5
_SUSPECTS_FROM = 256  # wrong elements looked at when telling whose share is missing


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


def poison(buffer: NDArray[Any]) -> None:
    """Fills a receive buffer with bytes that no moved digit has (only sums of uint8 can reach them): what never arrived shows."""
    buffer.view(np.uint8)[:] = _POISON


def compare(operation: Operation, place: Place, received: NDArray[Any]) -> Mismatch | None:
    """Compares `received` (elements of the cell's dtype) with what the operation's blocks promise this rank."""
    wrong, offset, first = 0, 0, None
    for block in operation.arrives(place):
        got = received[offset : offset + block.count]
        bad = _bad_in(operation, place, block, got)
        wrong += sum(indices.size for indices in bad)
        if bad and first is None:
            first = _mismatch(operation, place, block, got, int(bad[0][0]))
            first = replace(first, index=first.index + offset)
        offset += block.count
    return replace(first, wrong=wrong) if first else None


def _bad_in(operation: Operation, place: Place, block: Block, got: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Indices within the block that differ, chunk by chunk."""
    period, found = _period_of(operation, place, block.sources), []
    for start in range(0, block.count, _CHUNK):
        part = got[start : start + _CHUNK]
        bad = _differ(spread(period, block.at + start, len(part)), part, place)
        if bad.size:
            found.append(bad + start)
    return found


def _period_of(operation: Operation, place: Place, sources: Sequence[int]) -> NDArray[Any]:
    return arriving(sources, operation.sends(replace(place, rank=sources[0])), place)


def _differ(wanted: NDArray[Any], got: NDArray[Any], place: Place) -> NDArray[np.intp]:
    if place.cell.redop == "avg" and place.n & (place.n - 1):
        # Dividing before or after summing rounds differently when n is no power of two; a dropped rank is off by far more.
        a, b = wanted.astype(np.float64), got.astype(np.float64)
        return np.flatnonzero(~(np.abs(a - b) <= np.abs(a) * _rounding(place)))
    width = f"u{place.cell.dtype.size}"
    return np.flatnonzero(wanted.view(width) != got.view(width))


def _rounding(place: Place) -> float:
    """Relative error of one division of an exact sum: a unit in the last place."""
    return 2.0 / place.cell.dtype.exact


def _mismatch(operation: Operation, place: Place, block: Block, got: NDArray[Any], first: int) -> Mismatch:
    end = min(block.count, first + _SUSPECTS_FROM)
    wanted = spread(_period_of(operation, place, block.sources), block.at + first, end - first)
    part = got[first:end]
    return Mismatch(place.rank, 1, first, str(wanted[0]), str(part[0]), _whose(place, block.at + first, wanted, part))


def _whose(place: Place, at: int, wanted: NDArray[Any], got: NDArray[Any]) -> str:
    """Which rank's data would explain what was got: one that is missing from a sum, or one that came instead of another."""
    if np.all(got.view(np.uint8) == _POISON):
        return "nothing arrived there"
    if place.cell.redop not in (None, "sum"):
        return ""
    missing = wanted.astype(np.float64) - got.astype(np.float64)
    for rank in place.ranks[:_SUSPECTS_FROM]:
        theirs = spread(arriving([rank], at + len(got), place), at, len(got))
        if place.cell.redop is None and np.array_equal(theirs, got):
            return f"that is what rank {rank} sends"
        if place.cell.redop == "sum" and np.array_equal(missing, theirs.astype(np.float64)):
            return f"rank {rank}'s share is missing"
    return ""
