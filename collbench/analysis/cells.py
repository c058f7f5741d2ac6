"""What makes two rows rows of the same cell, so that they may be put together or compared; all else never is."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter
from typing import Any

from collbench.results.row import SERIES, Row

WHERE_NONE = {"algorithm": "auto", "protocol": "auto"}  # what None means in these fields; in all others it is nothing
_NAMED = attrgetter(*SERIES, "size_bytes")
SHORTEST_S, LONGEST_S = 1e-15, 1e12  # beyond, logarithms and their squares overflow


def cell_of(row: Row) -> tuple[Any, ...]:
    """The cell's identity: its series and its size in bytes."""
    named: tuple[Any, ...] = _NAMED(row)
    return named


def forced(row: Row) -> str:
    """What the library was made to use: "tree/ll128", "tree", "ll128"; "" where the choice was its own."""
    return "/".join(word for word in (row.algorithm, row.protocol) if word)


def time_of(row: Row) -> float | None:
    """The median in seconds; None for n/a, and for a stored figure that no clock can give."""
    value = row.time_s.p50 if row.na is None and row.time_s else None
    return value if is_time(value) else None


def is_time(value: Any) -> bool:
    """Whether it is a number of seconds that something can have taken: a femtosecond to 30 000 years."""
    return known(value) and SHORTEST_S <= value <= LONGEST_S


def known(value: Any) -> bool:
    """Whether it is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
