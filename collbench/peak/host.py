"""Ceilings inside one host: CPU backends have no theoretical peak that means anything, so references are measured.

What an operation costs the rank that has most to do, in copies of its size S (nccl-tests' size), where a byte passes from rank to rank
by one copy; its own part, (1/n)·S, is copied as well unless it is in place, and is not in the busbw. So 100 % is reached in place.
    broadcast, sendrecv                S copied by whoever receives; along a chain all receive at once
    allgather, alltoall, hypercube     (n-1)/n·S copied by every rank
    alltoallv                          at most S copied by the busiest rank
    gather, scatter                    (n-1)/n·S copied at the root, which alone has work; where the others copy for it, each its S/n at
                                       the same time, they may reach n-1 times the reference
    reduce                             S summed by every rank of a chain; or (n-1)/n·S summed by every rank, and as much copied by the root
                                       (a reduce-scatter and a gather): what is faster here, for two ranks always the second
    reducescatter                      (n-1)/n·S summed by every rank
    allreduce                          both of the last but one kind: (n-1)/n·S summed, and as much copied
Libraries that pass bytes through a shared segment copy twice, one rank in and one out of it, in turns or at the same time.

A reference is no bound. It is measured with all ranks at it, so an operation in which one rank works while the others wait (gather of
two ranks) has more of the memory for itself: up to 1.8 times on two cores. And what keeps data in cache may pass it, too.
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


def memory_ceiling(model: str, size_bytes: int, rates: HostRates, n: int = 2) -> Ceiling:
    """For libraries that share memory inside a host, by the operation's model over n ranks.

    "copy": moving operations. "sum": reductions. "allreduce": 2/(1/copy + 1/sum), since a ring takes
    (n-1)/n·S·(1/sum + 1/copy) and its bus factor is 2(n-1)/n. "reduce": the same time with the bus factor 1, or "sum" if that is faster.
    """
    copy, added = rates.copy.get(size_bytes), rates.sum.get(size_bytes)
    if copy and model == "copy":
        return Ceiling("measured", copy, "memory copy", source=_AT_SIZE)
    if added and model == "sum":
        return Ceiling("measured", added, "memory sum", source=_AT_SIZE)
    if copy and added and model == "reduce" and n > 1:
        halves = n / (n - 1) / (1 / copy + 1 / added)
        return Ceiling("measured", max(added, halves), "memory copy and sum" if halves > added else "memory sum", source=_AT_SIZE)
    if copy and added and model == "allreduce":
        return Ceiling("measured", 2 / (1 / copy + 1 / added), "memory copy and sum", source=_AT_SIZE)
    return nothing("this host's memory was not measured at this size")


def stream_ceiling(both_ways: bool, rates: HostRates) -> Ceiling:
    """For libraries that go through TCP over loopback inside a host: one stream a rank, either way or both at once."""
    rate = rates.stream_both if both_ways else rates.stream_one
    if rate is None:
        return nothing("loopback TCP was not measured on this host")
    return Ceiling("measured", rate, f"one loopback TCP stream{' each way' if both_ways else ''}", source=_SOURCE)
