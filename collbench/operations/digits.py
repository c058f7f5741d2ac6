"""Exactly predictable inputs: what rank r sends at element i, and what must arrive.

The values are whole numbers so small that any order of summation gives the same bits. They start at 1, not 0, and
rotate per element and per rank, so that a dropped rank, a swapped rank or a shifted block shows. Past a type's exact range
(bfloat16 sums of more than 128 ranks) only as many ranks as fit hold a digit at an element, in turn.
All values repeat with the prime period 65,521, so that what 1,024 ranks reduce to is computed once per period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.operations.cell import Cell
from collbench.operations.operation import Place

PERIOD = 65521
_LARGEST = 251  # the largest prime that fits uint8: neighbours stay different in every type
Values = NDArray[Any]


def _mix(count: int, seed: int) -> NDArray[np.int64]:
    """A fixed, irregular whole number per element, so that neighbouring elements differ."""
    index = np.arange(min(count, PERIOD), dtype=np.uint64) + np.uint64(seed % PERIOD)
    mixed = (index * np.uint64(2654435761)) ^ (index >> np.uint64(3)) * np.uint64(40503)
    return ((mixed >> np.uint64(7)) % np.uint64(1 << 30)).astype(np.int64)


def _counted(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits whose sum over n ranks never exceeds `limit`; past that, `limit` ranks at a time hold a 1 and the rest a 0."""
    span = min(limit // n, _LARGEST)
    if span >= 1:
        return 1 + (mixed + rank) % span
    return ((mixed + rank) % n < limit).astype(np.int64)


def _distinct(rank: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits from 1 that differ between ranks: at every element up to `span` ranks, at most elements beyond."""
    span = min(limit, _LARGEST)
    return 1 + (mixed + rank + (rank // span) * (1 + mixed // span)) % span


def _extreme(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits from 1 of which exactly one rank holds the 1 at an element, each rank in turn."""
    return 1 + np.minimum((mixed + rank) % max(n, 2), limit - 1)


def _own_bit(rank: int, n: int, bits: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bit that no other rank holds at this element; past `bits` ranks, in turn."""
    turn = (mixed + rank) % max(n, bits)
    return np.where(turn < bits, np.int64(1) << np.minimum(turn, bits - 1), 0)


def _period(rank: int, count: int, place: Place) -> Values:
    n, dtype, redop, mixed = place.n, place.cell.dtype, place.cell.redop, _mix(count, place.cell.seed)
    if redop in ("sum", "avg"):
        values = _counted(rank, n, dtype.exact, mixed)
    elif redop == "prod":
        values = np.int64(1) << _counted(rank, n, min(dtype.exponent, 62), mixed)
    elif redop in ("min", "max"):
        values = _extreme(rank, n, dtype.exact, mixed)
        values = values if redop == "min" else min(max(n, 2), dtype.exact) + 1 - values
    elif redop in ("band", "bor"):
        values = _own_bit(rank, n, dtype.exponent, mixed)
        values = ~values if redop == "band" else values
    else:
        values = _distinct(rank, dtype.exact, mixed)
    return values


def write_digits(target: Values, place: Place) -> None:
    """Writes into `target` (elements of the cell's dtype) what the rank of `place` sends."""
    period = _period(place.rank, len(target), place).astype(place.cell.dtype.numpy)
    whole = len(target) // PERIOD * PERIOD
    if whole:
        target[:whole].reshape(-1, PERIOD)[:] = period
    target[whole:] = period[: len(target) - whole]


_REDUCE = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def arriving(sources: Sequence[int], sent: int, place: Place) -> Values:
    """One period of what a block of `sources` brings (they sent `sent` elements each), reduced by the cell's redop; see `spread`.

    Exact in every type, but for "avg" over a number of ranks that is no power of two (see the room's check).
    """
    periods = (_period(rank, sent, place) for rank in sources)
    return reduced(periods, len(sources), place.cell).astype(place.cell.dtype.numpy)


def reduced(parts: Iterator[Values], n: int, cell: Cell) -> Values:
    """The n parts reduced by the cell's redop; the only part as it is where the operation has none."""
    if cell.redop is None:
        return next(parts)
    whole = reduce(_REDUCE[cell.redop], parts)
    return whole / n if cell.redop == "avg" else whole


def spread(period: Values, at: int, count: int) -> Values:
    """Elements at … at+count of the endless repetition of `period`."""
    at %= len(period)
    if at + count <= len(period):
        return period[at : at + count]
    return np.resize(np.roll(period, -at), count)
