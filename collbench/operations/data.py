"""Exactly predictable inputs: what rank r sends at element i, and what must arrive.

The values are whole numbers so small that any order of summation gives the same bits. They start at 1, not 0, and
rotate per element and per rank, so that a dropped rank, a swapped rank or a shifted block shows. Past a type's exact range
(bfloat16 sums of more than 128 ranks, float8 ones of more than a few) only as many ranks as fit hold a digit at an element, in turn.
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
_LARGEST = 163  # the largest prime below the byte that poisons buffers (0xA5): no digit that is moved can be taken for it
_FAR = 2**16  # enough for min and max of any number of ranks that are worth telling apart
_ABOVE_SUBNORMAL = 16  # every float holds its exact range this many times larger; float8_e4m3fn loses digits below 1/64
Values = NDArray[Any]


def _mix(count: int, seed: int) -> NDArray[np.int64]:
    """A fixed, irregular whole number per element, so that neighbouring elements differ."""
    index = np.arange(min(count, PERIOD), dtype=np.uint64) + np.uint64(seed % PERIOD)
    mixed = (index * np.uint64(2654435761)) ^ (index >> np.uint64(3)) * np.uint64(40503)
    return ((mixed >> np.uint64(7)) % np.uint64(1 << 30)).astype(np.int64)


def _counted(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits whose sum over n ranks never exceeds `limit` and differs from element to element.

    Where there is no room for digits from 1 to 2 and more, every rank holds its share of a total, and past `limit` ranks a 1 or a 0.
    """
    span = min(limit // n, _LARGEST)
    while span > 1 and n % span == 0:  # every element would have the same sum: a shifted block would not show
        span -= 1
    if span > 1:
        return 1 + (mixed + rank) % span
    total = limit - (mixed // n) % (max(limit - n + 1, 2) if n <= limit else limit // 2)
    return total // n + ((mixed + rank) % n < total % n)


def _distinct(rank: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits from 1 that differ between ranks: at every element up to `span` ranks, at most elements beyond."""
    span = min(limit, _LARGEST)
    return 1 + (mixed + rank + (rank // span) * (1 + mixed // span)) % span


def _extreme(rank: int, n: int, limit: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits from 1 of which exactly one rank holds the least at an element, each rank in turn; the least differs, too."""
    levels, turns = min(limit // 2, _LARGEST), max(n, 2)
    return 1 + (mixed // turns) % levels + np.minimum((mixed + rank) % turns, limit - levels)


def _own_bit(rank: int, n: int, bits: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bit that no other rank holds at this element; past `bits` ranks, in turn, and one bit is left out at each element."""
    turns = max(n, bits)
    turn = (mixed + rank) % turns
    held = (turn < bits) & (turn != (mixed // turns) % (bits + 1))
    return np.where(held if n >= bits else turn < bits, np.int64(1) << np.minimum(turn, bits - 1), 0)


def _held(rank: int, n: int, exact: int, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Digits for an average: at each element so few ranks hold the same one, in turn, that any share stands out of the rounding."""
    holders = holders_of_average(n, exact)
    digit = 1 + (mixed // n) % min(exact // holders, _LARGEST)
    return np.where((mixed + rank) % n < holders, digit * _ABOVE_SUBNORMAL, 0)


def holders_of_average(n: int, exact: int) -> int:
    """How many of n ranks hold a digit at an element that is averaged, in a type that is exact up to `exact`.

    With k holders an average may be k/2 + 2 units in the last place off (see the room's check): (k + 4) / `exact` of it. Each share
    is 1/k of it: twice as much, or the whole where one rank holds all. One rank at least holds none, so that no share is the average.
    """
    most = int((exact / 2 + 4) ** 0.5) - 2
    return max(1, min(n - 1, most))


def _period(rank: int, count: int, place: Place) -> Values:
    """What a rank sends, as far as it does not repeat, in the cell's dtype."""
    dtype, mixed = place.cell.dtype, _mix(count, place.cell.seed)
    if place.cell.redop:
        return _reducible(rank, place, mixed).astype(dtype.numpy)
    if dtype.exact >= _LARGEST or dtype.kind == "int":
        return _distinct(rank, dtype.exact, mixed).astype(dtype.numpy)
    # 8-bit floats have few whole numbers; what is only moved may be any number, told by its bits.
    return _distinct(rank, dtype.patterns, mixed).astype(f"u{dtype.size}").view(dtype.numpy)


def _reducible(rank: int, place: Place, mixed: NDArray[np.int64]) -> NDArray[np.int64]:
    n, dtype, redop = place.n, place.cell.dtype, place.cell.redop
    if redop == "sum":
        values = _counted(rank, n, dtype.exact, mixed)
    elif redop == "avg":
        values = _held(rank, n, dtype.exact, mixed)
    elif redop == "prod":
        values = np.int64(1) << _counted(rank, n, min(dtype.exponent, 62), mixed)
    elif redop in ("min", "max"):
        largest = min(dtype.exact, _FAR)
        values = _extreme(rank, n, largest, mixed)
        values = values if redop == "min" else largest + 1 - values
    else:
        values = _own_bit(rank, n, dtype.exponent, mixed) if redop != "bxor" else _distinct(rank, dtype.exact, mixed)
        values = ~values if redop == "band" else values
    return values


def write_digits(target: Values, place: Place) -> None:
    """Writes into `target` (elements of the cell's dtype) what the rank of `place` sends."""
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
    """One period of what a block of `sources` brings (they sent `sent` elements each), reduced by the cell's redop; see `spread`.

    Exact in every type, but for "avg" over a number of ranks that is no power of two (see the room's check).
    """
    periods = (_period(rank, sent, place) for rank in sources)
    return reduced(periods, len(sources), place.cell).astype(place.cell.dtype.numpy)


def reduced(parts: Iterator[Values], n: int, cell: Cell) -> Values:
    """The n parts reduced by the cell's redop; the only part as it is where the operation has none."""
    if cell.redop is None:
        return next(parts)
    whole: Values = reduce(_REDUCE[cell.redop], parts)
    return whole.astype(np.float64) / n if cell.redop == "avg" else whole


def spread(period: Values, at: int, count: int) -> Values:
    """Elements at … at+count of the endless repetition of `period`."""
    at %= len(period)
    if at + count <= len(period):
        return period[at : at + count]
    return np.resize(np.roll(period, -at), count)
