"""Dips: sizes at which a series moves less bandwidth than at a smaller size, by more than both intervals explain.

Bandwidth rises with size until a link is full. A dip is a size at which the library switched to a slower algorithm or protocol, or at which
its buffers no longer fit (for example NVIDIA/nccl issue 2169).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from collbench.results.flags import DOUBTFUL
from collbench.results.quality import counted_flags, half_width, is_unreliable
from collbench.results.row import SERIES, Row

DIP = "dip"
LEAST_LOSS = 0.05  # launches differ by a few percent, which the interval within one launch does not contain
LEAST_BYTES = 4096  # a smaller message fits into one packet, so its bandwidth is its latency
# An interval that is wider than the user wanted, or later than planned, is still an interval.
_KEPT = frozenset({"target_missed", "warmup_unsettled"})


class Dip(msgspec.Struct, frozen=True):
    """A row with less bus bandwidth than a smaller size of its series.

    row      the row at the larger size
    smaller  the row of the smaller size with the highest lower end of its bandwidth's interval
    loss     the part of the smaller size's bandwidth that is lost at least, between the near ends of both intervals: 0.12
    """

    row: Row
    smaller: Row
    loss: float


def is_sound(row: Row) -> bool:
    """Return whether a time can prove something: right data, an interval, and no flag that makes time or interval doubtful."""
    is_doubtful = is_unreliable(row) or counted_flags(row) & (DOUBTFUL - _KEPT)
    return row.na is None and not row.wrong and half_width(row) is not None and not is_doubtful


def dips(rows: Iterable[Row]) -> Iterator[Dip]:
    """Yield the dips of all series, ascending in size. Without an interval (rows of other tools) a series has none."""
    series: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.size_bytes >= LEAST_BYTES and row.ranks > 1 and row.busbw_bytes_per_s and is_sound(row):
            series.setdefault(tuple(getattr(row, name) for name in SERIES), []).append(row)
    for members in series.values():
        ascending = sorted(members, key=lambda row: row.size_bytes)
        for place, row in enumerate(ascending):
            losses = [Dip(row, smaller, _loss(smaller, row)) for smaller in ascending[:place] if smaller.size_bytes < row.size_bytes]
            worst = max(losses, key=lambda dip: dip.loss, default=None)
            if worst is not None and worst.loss >= LEAST_LOSS:
                yield worst


def with_dips(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in their order; those of `dips` have the flag `dip`."""
    flagged = {id(dip.row) for dip in dips(rows)}
    return [replace(row, flags=(*row.flags, DIP)) if id(row) in flagged and DIP not in row.flags else row for row in rows]


def _loss(smaller: Row, larger: Row) -> float:
    """Return the part of the smaller size's bandwidth that the larger size loses at least, beyond what the reference loses, too."""
    reference_change = _reference_change(smaller, larger)
    if reference_change is None:
        return 0.0
    return 1 - _busbw_at(larger, fast=True) / (_busbw_at(smaller, fast=False) * reference_change)


def _busbw_at(row: Row, *, fast: bool) -> float:
    """Return the bus bandwidth at the fast or slow end of the time's interval, in bytes per second."""
    times = row.time_s
    if times is None or row.busbw_bytes_per_s is None or not times.p50 or not times.ci_low or not times.ci_high:
        raise ValueError("a row without a bandwidth and an interval has no dip")
    return row.busbw_bytes_per_s * times.p50 / (times.ci_low if fast else times.ci_high)


def _reference_change(smaller: Row, larger: Row) -> float | None:
    """Return by which factor a measured reference (memory copy) falls between both sizes, at most 1; 1 for links, which do not change.

    None: the reference was disturbed, so the machine itself may have become slower; or sizes inside a host have none, where a smaller
    message may fit into a cache.
    """
    before = smaller.ceiling
    after = larger.ceiling
    if before is None or after is None:
        return 1.0
    kinds = {before.kind, after.kind}
    if kinds != {"measured"}:
        has_caches = larger.nodes == 1 and larger.device == "cpu" and kinds <= {"measured", "none"}
        return None if has_caches else 1.0
    highest_before = before.high_bytes_per_s or before.bytes_per_s
    lowest_after = after.low_bytes_per_s or after.bytes_per_s
    if not highest_before or not lowest_after:
        return None
    return min(1.0, lowest_after / highest_before)
