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

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from collbench.machine.peak.ceiling import Ceiling, nothing

_SOURCE = "measured by all ranks of the host at once, before the first cell"
_AT_SIZE = "measured at this size by all ranks of the host at once, before the first cell"
AGREEMENT = 1.15  # rounds of a steady reference differ by at most this factor
_WIDEST = 0.25  # half of the interval, relative to the rate


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in bytes per second with its interval; `disturbed` where its rounds did not agree."""

    value: float
    low: float
    high: float
    disturbed: bool = False


@dataclass(frozen=True)
class HostRates:
    """What this host did, by rank, with all its ranks at it at the same time; None: not measured.

    copy, sum      by message size in bytes: memcpy, and the element-wise sum into a buffer
    stream_one     TCP over loopback, one direction between two ranks
    stream_both    the same with every rank sending and receiving
    """

    copy: dict[int, Rate]
    sum: dict[int, Rate]
    stream_one: Rate | None = None
    stream_both: Rate | None = None


def agreed(rounds: Sequence[Rate]) -> Rate | None:
    """Return what the last two rounds of a reference agree on: their mean, with an interval that covers both; None: measure again."""
    if len(rounds) < 2:
        return None
    one, other = rounds[-2:]
    found = Rate((one.value + other.value) / 2, min(one.low, other.low), max(one.high, other.high))
    steady = max(one.value, other.value) <= AGREEMENT * min(one.value, other.value)
    return found if steady and found.high - found.low <= 2 * _WIDEST * found.value else None


def settled(rounds: Sequence[Rate]) -> Rate:
    """Return what the rounds agree on; where they do not, their median over the whole range, as disturbed."""
    known = agreed(rounds)
    if known is not None:
        return known
    return Rate(median(each.value for each in rounds), min(each.low for each in rounds), max(each.high for each in rounds), disturbed=True)


def memory_ceiling(model: str, size_bytes: int, rates: HostRates, n: int = 2) -> Ceiling:
    """For libraries that share memory inside a host, by the operation's model over n ranks.

    "copy": moving operations. "sum": reductions. "allreduce": 2/(1/copy + 1/sum), since a ring takes
    (n-1)/n·S·(1/sum + 1/copy) and its bus factor is 2(n-1)/n. "reduce": the same time with the bus factor 1, or "sum" if that is faster.
    """
    copy, added = rates.copy.get(size_bytes), rates.sum.get(size_bytes)
    if copy and model == "copy":
        return _measured(copy, "memory copy", _AT_SIZE)
    if added and model == "sum":
        return _measured(added, "memory sum", _AT_SIZE)
    if copy and added and model == "reduce" and n > 1:
        halves = _harmonic(n / (n - 1), copy, added)
        return (
            _measured(added, "memory sum", _AT_SIZE) if added.value >= halves.value else _measured(halves, "memory copy and sum", _AT_SIZE)
        )
    if copy and added and model == "allreduce":
        return _measured(_harmonic(2, copy, added), "memory copy and sum", _AT_SIZE)
    return nothing("this host's memory was not measured at this size")


def stream_ceiling(both_ways: bool, rates: HostRates) -> Ceiling:
    """For libraries that go through TCP over loopback inside a host: one stream a rank, either way or both at once."""
    rate = rates.stream_both if both_ways else rates.stream_one
    if rate is None:
        return nothing("loopback TCP was not measured on this host")
    return _measured(rate, f"one loopback TCP stream{' each way' if both_ways else ''}", _SOURCE)


def _harmonic(factor: float, copy: Rate, added: Rate) -> Rate:
    """Return the rate of a copy and a sum one after the other, times a factor."""
    value, low, high = (factor / (1 / a + 1 / b) for a, b in ((copy.value, added.value), (copy.low, added.low), (copy.high, added.high)))
    return Rate(value, low, high, copy.disturbed or added.disturbed)


def _measured(rate: Rate, what: str, source: str) -> Ceiling:
    return Ceiling("measured", rate.value, what, "ring", source, rate.low, rate.high, rate.disturbed)
