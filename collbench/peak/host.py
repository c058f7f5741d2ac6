"""Ceilings inside one host: CPU backends have no theoretical peak that means anything, so references are measured.

A reference is no bound: a library that keeps data in cache where the reference did not may pass it.
"""

from __future__ import annotations

from dataclasses import dataclass

from collbench.peak.ceiling import Ceiling, nothing

_SOURCE = "measured by all ranks of the host at once, before the first cell"
_AT_SIZE = "measured at this size by all ranks of the host at once, before the first cell"


@dataclass(frozen=True)
class HostRates:
    """What this host did, in bytes per second and rank, with all its ranks at it at the same time; None: not measured.

    copy, sum      by message size in bytes: memcpy, and the element-wise sum into a buffer
    stream_one     TCP over loopback, one direction between two ranks
    stream_both    the same with every rank sending and receiving
    """

    copy: dict[int, float]
    sum: dict[int, float]
    stream_one: float | None = None
    stream_both: float | None = None


def memory_ceiling(model: str, size_bytes: int, rates: HostRates) -> Ceiling:
    """For libraries that share memory inside a host, by the operation's model.

    "copy": moving operations. "sum": reductions. "allreduce": 2/(1/copy + 1/sum), since a ring takes
    (n-1)/n·S·(1/sum + 1/copy) and its bus factor is 2(n-1)/n.
    """
    copy, added = rates.copy.get(size_bytes), rates.sum.get(size_bytes)
    if copy and model == "copy":
        return Ceiling("measured", copy, "memory copy", source=_AT_SIZE)
    if added and model == "sum":
        return Ceiling("measured", added, "memory sum", source=_AT_SIZE)
    if copy and added and model == "allreduce":
        return Ceiling("measured", 2 / (1 / copy + 1 / added), "memory copy and sum", source=_AT_SIZE)
    return nothing("this host's memory was not measured at this size")


def stream_ceiling(both_ways: bool, rates: HostRates) -> Ceiling:
    """For libraries that go through TCP over loopback inside a host: one stream a rank, either way or both at once."""
    rate = rates.stream_both if both_ways else rates.stream_one
    if rate is None:
        return nothing("loopback TCP was not measured on this host")
    return Ceiling("measured", rate, f"one loopback TCP stream{' each way' if both_ways else ''}", source=_SOURCE)
