"""Ceilings for rows that another tool measured: --ceiling, or what the machines that the user names could carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import ceil

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, nothing
from collbench.machine.peak.collective import OPERATIONS, ceilings
from collbench.machine.peak.job import Job
from collbench.operations.registry import operations
from collbench.results.row import Row

Found = tuple[Ceiling | None, Ceiling | None]
JobOf = Callable[[int, int | None, str], Job]  # ranks, nodes, device -> the job; raises UsageError where the machines do not fit


def with_ceilings(rows: Iterable[Row], job_of: JobOf) -> list[Row]:
    """The rows with ceiling, hard limit and percentage; where there is none, with the reason."""

    @cache
    def found(operation: str, ranks: int, nodes: int | None, device: str, pairs: int) -> Found:
        """Once for all rows that are alike."""
        return _ceilings(operation, pairs, lambda: job_of(ranks, nodes, device))

    return [_set(row, *found(row.operation, row.ranks, row.nodes, row.device, _pairs_at_once(row))) for row in rows]


def _pairs_at_once(row: Row) -> int:
    """Return how many pairs send at the same time, whose average the row has; 1 for collectives, and for ping-pongs, which take turns."""
    ours, count = operations().get(row.operation), row.groups.get("count")
    if ours is None or not ours.pair or ours.paces_itself or row.groups.get("ranks") != 2:
        return 1
    return count if isinstance(count, int) and count > 1 else 1


def _shared(job: Job, pairs: int) -> Job:
    """Return the job with a node's NICs, or the given ceiling, shared by pairs at once: together they are compared with the whole of it.

    The first half of the ranks sends to the second half, so of several nodes half have senders.
    """
    if job.given is not None:
        return replace(job, given=job.given / pairs)
    return replace(job, pairs=ceil(pairs / max(1, job.machines // 2)))


def _ceilings(operation: str, pairs: int, job_of: Callable[[], Job]) -> Found:
    ours = operations().get(operation)
    name = "p2p" if ours and ours.pair else operation
    if name not in OPERATIONS or (ours and ours.meets):
        return nothing(f"no ceiling is known for {operation}"), None
    try:
        job = job_of()
        known = ceilings(name, _shared(job, pairs) if pairs > 1 else job)
    except UsageError as error:
        return nothing(str(error)), None
    if pairs > 1 and known.ring and known.ring.kind == "given":
        return replace(known.ring, limited_by=f"{known.ring.limited_by} shared by {pairs} pairs"), None
    return known.ring or known.bound, known.bound if known.bound and known.bound.bytes_per_s else None


def _set(row: Row, ceiling: Ceiling | None, bound: Ceiling | None) -> Row:
    """A rate above the hard limit is a doubt, no achievement: no percentage, as for rows of our own."""
    rate, busbw = ceiling.bytes_per_s if ceiling else None, row.busbw_bytes_per_s
    above = bool(busbw and bound and bound.bytes_per_s and busbw > bound.bytes_per_s * TOLERANCE)
    percent = 100 * busbw / rate if rate and busbw and not above else None
    flags = (*row.flags, "above_bound") if above else row.flags
    return replace(row, ceiling=ceiling, hard_bound=bound, percent_of_ceiling=percent, flags=flags)
