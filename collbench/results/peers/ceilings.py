"""Ceilings for rows that another tool measured: --ceiling, or what the machines that the user names could carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.peak.ceiling import TOLERANCE, Ceiling, nothing
from collbench.peak.collective import OPERATIONS, ceilings
from collbench.peak.job import Job
from collbench.results.record import Row

Found = tuple[Ceiling | None, Ceiling | None]
JobOf = Callable[[int, int | None, str], Job]  # ranks, nodes, device -> the job; raises UsageError where the machines do not fit


def with_ceilings(rows: Iterable[Row], job_of: JobOf) -> list[Row]:
    """The rows with ceiling, hard limit and percentage; where there is none, with the reason."""

    @cache
    def found(operation: str, ranks: int, nodes: int | None, device: str) -> Found:
        """Once for all rows that are alike."""
        return _ceilings(operation, ranks, nodes, device, job_of)

    return [_set(row, *found(row.operation, row.ranks, row.nodes, row.device)) for row in rows]


def _ceilings(operation: str, ranks: int, nodes: int | None, device: str, job_of: JobOf) -> Found:
    ours = operations().get(operation)
    name = "p2p" if ours and ours.pair else operation
    if name not in OPERATIONS or (ours and ours.meets):
        return nothing(f"no ceiling is known for {operation}"), None
    try:
        known = ceilings(name, job_of(ranks, nodes, device))
    except UsageError as error:
        return nothing(str(error)), None
    return known.ring or known.bound, known.bound if known.bound and known.bound.bytes_per_s else None


def _set(row: Row, ceiling: Ceiling | None, bound: Ceiling | None) -> Row:
    """A rate above the hard limit is a doubt, no achievement: no percentage, as for rows of our own."""
    rate, busbw = ceiling.bytes_per_s if ceiling else None, row.busbw_bytes_per_s
    above = bool(busbw and bound and bound.bytes_per_s and busbw > bound.bytes_per_s * TOLERANCE)
    percent = 100 * busbw / rate if rate and busbw and not above else None
    flags = (*row.flags, "above_bound") if above else row.flags
    return replace(row, ceiling=ceiling, hard_bound=bound, percent_of_ceiling=percent, flags=flags)
