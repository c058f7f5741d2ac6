"""Self-consistent performance guidelines: what an operation must not exceed, whatever the machine.

A library can always do an operation by others that it has: an all-reduce by a reduce and a broadcast. If it takes longer than these, it
chose a bad algorithm at that size. The check needs no expected bandwidth. The guidelines are those of Träff, Gropp and Thakur,
"Self-consistent MPI performance guidelines" (IEEE TPDS 2010), and Hunold et al., "Automatic verification of self-consistent MPI
performance guidelines" (Euro-Par 2016), for sizes as rows have them: the bytes of all ranks together where each has a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from collbench.analysis.launches import grouped
from collbench.results.dips import is_sound
from collbench.results.row import Row, Times

LEAST_EXCESS = 0.05  # launches differ by a few percent, which the interval within one launch does not contain

# (operation, what can replace it, one after the other, at the same size)
ALTERNATIVES = (
    ("allreduce", ("reduce", "broadcast")),
    ("allreduce", ("reducescatter", "allgather")),
    ("allgather", ("gather", "broadcast")),
    ("allgather", ("alltoall",)),
    ("gather", ("allgather",)),
    ("gather", ("reduce",)),
    ("scatter", ("broadcast",)),
    ("broadcast", ("scatter", "allgather")),
    ("reduce", ("allreduce",)),
    ("reduce", ("reducescatter", "gather")),
    ("reducescatter", ("reduce", "scatter")),
    ("reducescatter", ("allreduce",)),
)
# Rows that agree in these are made under equal conditions. Placement, root, type and reduction may differ: the fastest row counts.
_CONDITIONS = ("backend", "device", "mode", "group", "ranks", "nodes", "registration", "streams", "call", "traffic")


class GuidelineCheck(msgspec.Struct, frozen=True):
    """An operation beside what can replace it.

    row      the fastest row of the operation at its size
    instead  the rows that can replace it, one after the other; for `larger` one row of a larger size
    larger   whether it is compared with itself at a larger size
    ratio    time / time of `instead` (medians), and its smallest and largest value within the intervals: 1.8, 1.6, 2.0
    """

    row: Row
    instead: tuple[Row, ...]
    larger: bool
    ratio: float
    low: float
    high: float

    @property
    def is_violated(self) -> bool:
        """Return whether the operation takes longer, by more than both intervals and the difference of launches explain."""
        return self.low > 1 + LEAST_EXCESS

    @property
    def guideline(self) -> tuple[object, ...]:
        """Return what identifies the check in another run."""
        parts = tuple((row.operation, row.size_bytes) for row in self.instead)
        return (*(getattr(self.row, name) for name in _CONDITIONS), self.row.operation, self.row.size_bytes, self.larger, parts)

    @property
    def instead_s(self) -> float:
        """Return the time of what can replace the operation, in seconds."""
        return sum(_times(row).p50 for row in self.instead)


def guideline_checks(rows: Iterable[Row]) -> list[GuidelineCheck]:
    """Return all checks that the rows with an interval and without a doubt allow, the worst first."""
    checks: list[GuidelineCheck] = []
    sound = [row for row in rows if row.ranks > 1 and row.size_bytes > 0 and is_sound(row)]
    for members in grouped(sound, lambda row: tuple(getattr(row, name) for name in _CONDITIONS)).values():
        checks += _alternatives(members)
        checks += _sizes(members)
    return sorted(checks, key=lambda check: -check.low)


def _times(row: Row) -> Times:
    if row.time_s is None:
        raise ValueError("a row without a time has no guideline")
    return row.time_s


def _fastest(rows: Sequence[Row]) -> dict[tuple[str, int], Row]:
    """Return the fastest row of each operation and size, without forced algorithms: the guideline is about the library's own choice."""
    chosen = [row for row in rows if row.algorithm is None and row.protocol is None]
    groups = grouped(chosen, lambda row: (row.operation, row.size_bytes))
    return {key: min(members, key=lambda row: _times(row).p50) for key, members in groups.items()}


def _alternatives(rows: Sequence[Row]) -> Iterator[GuidelineCheck]:
    """Yield a check for each operation and size with all rows of an alternative; of several alternatives the fastest."""
    fastest = _fastest(rows)
    for (operation, size), row in fastest.items():
        candidates = [[fastest.get((name, size)) for name in names] for replaced, names in ALTERNATIVES if replaced == operation]
        complete = [tuple(part for part in parts if part is not None) for parts in candidates if None not in parts]
        if complete:
            yield _compared(row, min(complete, key=lambda parts: sum(_times(part).p50 for part in parts)), larger=False)


def _sizes(rows: Sequence[Row]) -> Iterator[GuidelineCheck]:
    """Yield a check of each row with the fastest larger size of its operation."""
    fastest = _fastest(rows)
    for (operation, size), row in fastest.items():
        larger = [fastest[name, larger_size] for name, larger_size in fastest if name == operation and larger_size > size]
        if larger:
            yield _compared(row, (min(larger, key=lambda row: _times(row).p50),), larger=True)


def _compared(row: Row, instead: tuple[Row, ...], *, larger: bool) -> GuidelineCheck:
    times = _times(row)
    others = [_times(part) for part in instead]
    fast = sum(part.ci_low or part.p50 for part in others)
    middle = sum(part.p50 for part in others)
    slow = sum(part.ci_high or part.p50 for part in others)
    return GuidelineCheck(row, instead, larger, times.p50 / middle, (times.ci_low or times.p50) / slow, (times.ci_high or times.p50) / fast)
