"""How many ranks a tool ran on, by busbw / algbw: N = 2 / (2 - busbw/algbw) for all-reduce, 1 / (1 - busbw/algbw) for most others."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, inf
from typing import NamedTuple

from collbench.operations.operation import Operation

_MANY = 10**9  # ranks: the factor's limit
_SLACK = _ROUNDED = 1e-9  # for the arithmetic itself


class Printed(NamedTuple):
    """Both bandwidths of one line, each as (value, half a unit of its last digit)."""

    algbw: tuple[float, float]
    busbw: tuple[float, float]


class RankRange(NamedTuple):
    """The numbers of ranks that explain what was printed, inclusive; high None: no end. low > high: none does."""

    low: int
    high: int | None

    @property
    def only(self) -> int | None:
        """The one that does; None where several do, or none."""
        return self.low if self.low == self.high else None

    def holds(self, ranks: int) -> bool:
        """Whether so many ranks explain it."""
        return self.low <= ranks and (self.high is None or ranks <= self.high)

    @property
    def empty(self) -> bool:
        """Whether no number does."""
        return self.high is not None and self.low > self.high

    def __str__(self) -> str:
        if self.empty:
            return "no number of"
        if self.only is not None:
            return str(self.only)
        return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"


def with_digits(text: str) -> tuple[float, float] | None:
    """(value, half a unit of the last digit) of a printed number; None for what is none: "235.26" is 235.26 ± 0.005."""
    try:
        value = float(text)
    except ValueError:
        return None
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    scale = int(exponent) if exponent else 0
    return (value, 0.5 * 10.0 ** (scale - digits)) if 0 <= value < inf and abs(scale) < 300 else None


def rank_range(operation: Operation, lines: Iterable[Printed]) -> RankRange | None:
    """Which numbers of ranks explain all lines at once; None: the operation's factor, or the digits, tell nothing."""
    limit = round(operation.bus_factor(_MANY))  # 2 for all-reduce, else 1
    low, high = 0.0, inf
    for line in lines:
        least, most = _factor(line)
        low, high = max(low, least), min(high, most)
    if operation.bus_factor(2) == operation.bus_factor(3):  # the same for all ranks
        return None if low <= limit <= high else RankRange(1, 0)
    if low <= 0 and high >= limit:
        return None
    first = ceil(_ranks(low, limit) * (1 - _SLACK)) if low < limit else _MANY
    return RankRange(max(1, first), floor(_ranks(high, limit) * (1 + _SLACK)) if high < limit * (1 - 1 / _MANY) else None)


def unlike_time(size_bytes: int, algbw: str, micros: str) -> str | None:
    """Why a printed algbw in GB/s is not size / time, as one follows from the other; None: it is, or the digits tell nothing."""
    rate, time = with_digits(algbw), with_digits(micros)
    if not rate or not time or rate[0] <= 0 or time[0] <= time[1]:
        return None
    least, most = size_bytes / (time[0] + time[1]) / 1e3, size_bytes / (time[0] - time[1]) / 1e3
    if least * (1 - _ROUNDED) - rate[1] <= rate[0] <= most * (1 + _ROUNDED) + rate[1]:
        return None
    return f"{algbw} GB/s at {size_bytes} bytes is not size / time ({size_bytes / time[0] / 1e3:.2f} GB/s); the time is taken"


def _factor(line: Printed) -> tuple[float, float]:
    """The least and the most that busbw / algbw can have been before they were rounded."""
    (algbw, alg_half), (busbw, bus_half) = line
    least = max(0.0, busbw - bus_half) / (algbw + alg_half)
    return least, (busbw + bus_half) / (algbw - alg_half) if algbw > alg_half else inf


def _ranks(factor: float, limit: int) -> float:
    return limit / (limit - factor)
