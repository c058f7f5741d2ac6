"""The best that each operation reached over each backend: the figure that a report begins with. Never an average over sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collbench.analysis.cells import known, time_of
from collbench.operations.registry import operations
from collbench.results.row import Row

# Rows that differ in one of these do not compete for one peak; in what else they differ (type, placing, algorithm …), the best one says.
_APART = ("operation", "backend", "device", "mode", "group", "ranks", "nodes")
# What took another path than the one it is set against is no peak of it, as long as anything else was measured.
_ELSEWHERE = frozenset({"above_bound", "other_path"})


@dataclass(frozen=True)
class Peak:
    """The best of one operation over one backend.

    row       the row of the highest bus bandwidth whose data were right, at its largest size if it occurs twice; rows above the hard
              bound, or whose bytes took another path, only where there are no others. Where nothing has a bandwidth (a barrier, one
              rank), or the time is what was asked for (a ping-pong), the shortest time. Where nothing was measured, or all of it was
              wrong, its first row
    smallest  the fastest row of the smallest size that has a time: the latency; None where there is none, or sizes are none
    cells     how many rows there are, and how many of them have right figures
    """

    row: Row
    smallest: Row | None
    cells: int
    sound: int


def peaks(rows: Iterable[Row]) -> list[Peak]:
    """One peak for each operation over each backend, in the order in which they first occur."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in _APART), []).append(row)
    return [_peak(members) for members in groups.values()]


def differing(best: Iterable[Peak]) -> list[str]:
    """The fields beside operation and backend that tell these peaks apart: with a table of two modes "mode"."""
    rows = [peak.row for peak in best]
    return [name for name in _APART[2:] if len({getattr(row, name) for row in rows}) > 1]


def told_as_time(row: Row) -> bool:
    """Whether a row's figure is its time: while one direction of a ping-pong rests, its bandwidth is nobody's peak."""
    operation = operations().get(row.operation)
    return row.busbw_bytes_per_s is None or row.ranks == 1 or (operation is not None and operation.paces_itself)


def _peak(members: list[Row]) -> Peak:
    sound = [row for row in members if time_of(row) is not None and not row.wrong]
    fast = [row for row in sound if known(row.busbw_bytes_per_s) and not told_as_time(row)]
    fast = [row for row in fast if not _ELSEWHERE.intersection(row.flags)] or fast
    best = max(fast, key=_rate) if fast else min(sound, key=_time, default=members[0])
    sized = [row for row in sound if row.size_bytes]
    least = min((row.size_bytes for row in sized), default=None)
    return Peak(best, min((row for row in sized if row.size_bytes == least), key=_time, default=None), len(members), len(sound))


def _rate(row: Row) -> tuple[float, int]:
    return row.busbw_bytes_per_s or 0, row.size_bytes


def _time(row: Row) -> float:
    time_s = time_of(row)
    return float("inf") if time_s is None else time_s
