"""The reference rate that a measured busbw is compared with, and the links that limit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collbench.machine.peak.limits import Limit
else:
    Limit = object  # `--help` imports this module, which must not import msgspec

TOLERANCE = 1.02  # for the burst of a token bucket and errors of the clock; a larger excess is real


class Ceiling(msgspec.Struct, frozen=True):
    """A rate that the busbw of a row is compared with.

    kind          "measured" (a reference, not a limit), "network", "topology", "given" (--ceiling), "simulated" or "none"
    bytes_per_s   the rate; None when there is none, and then `limited_by` is the reason
    limited_by    the limiting link or copy as text: "NIC eth0 1 Gb/s", "memory copy and sum"
    model         the algorithm that reaches the rate: "ring", "tree", "nvls", "nvls_tree" or "direct" (messages between all pairs);
                  "bound" for the hard limit
    source        the origin of the rate: "measured before the first case", "tc qdisc on eth0", "--ceiling"
    low_bytes_per_s, high_bytes_per_s   the interval of a measured reference; None for all others
    disturbed     the repetitions of a measured reference did not agree: no percentage is shown
    limited_by_parts   the links of `limited_by`; empty if no link limits, and in rows stored by earlier versions
    efficiency    the share of the wires' rate that the algorithm reaches by `constants`; None: the wires' rate itself
    constants     the origin of `efficiency`: "NCCL's constants"; "" without one, and in rows stored by earlier versions
    """

    kind: str
    bytes_per_s: float | None
    limited_by: str
    model: str = "ring"
    source: str = ""
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    disturbed: bool = False
    limited_by_parts: tuple[Limit, ...] = ()
    efficiency: float | None = None
    constants: str = ""

    def as_json(self, complete: bool = False) -> dict[str, Any]:
        """Return it as JSON values. The interval, `disturbed`, parts and efficiency are omitted when empty, unless `complete`."""
        parts: list[Any] = []
        if self.limited_by_parts:
            from collbench.reason import as_json

            parts = as_json(self.limited_by_parts)
        values = {name: getattr(self, name) for name in CSV_FIELDS} | {"limited_by_parts": parts}
        return values if complete else {name: value for name, value in values.items() if name not in _OPTIONAL or value}


_OPTIONAL = frozenset({"low_bytes_per_s", "high_bytes_per_s", "disturbed", "limited_by_parts", "efficiency", "constants"})
CSV_FIELDS = tuple(name for name in Ceiling.__struct_fields__ if name != "limited_by_parts")


_MODEL_NAMES = {"bound": "hard limit", "nvls": "NVLS", "nvls_tree": "NVLS tree"}


def name_of_model(model: str) -> str:
    """Return the name of a ceiling's model for users: "ring", "NVLS tree", "hard limit"."""
    return _MODEL_NAMES.get(model, model)


def ceiling_from_rate(gigabytes_per_s: float) -> Ceiling:
    """Return the ceiling that the user gave, in GB/s."""
    return Ceiling("given", gigabytes_per_s * 1e9, "the ceiling given", source="--ceiling")


def no_ceiling(why: str) -> Ceiling:
    """Return a ceiling without a rate, with the reason."""
    return Ceiling("none", None, why)


def percent_of(rate: float | None, ceiling: Ceiling | None) -> float | None:
    """Return a rate as a percentage of a ceiling; None if either is unknown."""
    return 100 * rate / ceiling.bytes_per_s if rate and ceiling and ceiling.bytes_per_s else None


ABOVE_LIMIT = "above the limit: reference doubtful"


def is_above_limit(percent: float | None) -> bool:
    """Return whether a percentage of a limit or a measured reference is above 100 by more than the errors of a measurement."""
    return percent is not None and percent > 100 * TOLERANCE


# Inside one host, CPU backends have no meaningful theoretical peak, so references are measured: what pairs of ranks reach, all at once,
# over the path that the library takes, without the library.
#
#     shared memory   a segment that both ranks map: the sender copies chunks in, the receiver copies them out, or sums them out of it
#     direct copy     the kernel copies from one process to the other (cross-memory attach); then the receiver sums
#     loopback TCP    a stream over 127.0.0.1; then the receiver sums
#
# An operation's expected time is the sum of the times of its parts. S is the size (nccl-tests' size), n the number of ranks:
#     broadcast, sendrecv, pairs         S passed on; of pairs in one direction and operations with a root, one direction is busy
#     allgather, alltoall, hypercube     (n-1)/n·S passed on by every rank
#     alltoallv, allgatherv              at most S passed on by the busiest rank
#     gather(v), scatter(v)              (n-1)/n·S passed on by the root, the only busy rank
#     the own part                       copied in these operations, out of place: S/n for every rank
#     reduce                             the faster one of: S summed by every rank of a chain; (n-1)/n·S summed by every rank, and as
#                                        much passed on to the root (a reduce-scatter and a gather)
#     scan, exscan                       S summed by every rank of a chain
#     reducescatter(v)                   (n-1)/n·S summed by every rank
#     allreduce                          reducescatter and allgather: (n-1)/n·S summed, and as much passed on
#
# A reference is not a limit. It is measured with all ranks busy. If one rank works while others wait, it has more memory bandwidth.

_SOURCE = "measured at this size by pairs of ranks of the host, all at once, before the first case"
# Inside a host smaller messages have no expected bandwidth: they fit into the caches of a processor, and the time is mostly latency.
LEAST_BYTES = 4 << 20
LEAST_RATE_BYTES = 4096  # a smaller message fits into one packet: its time is latency, so a bandwidth has no meaning
MOST_OF_MEASURED = 1.2  # a library cannot exceed a measured reference by more, so the reference was disturbed
AGREEMENT = 1.15  # rounds of a steady reference differ by at most this factor
_WIDEST = 0.25  # half of the interval, relative to the rate
NOT_MEASURED = "this host's references were not measured at this size"


class Rate(msgspec.Struct, frozen=True):
    """A rate in bytes per second with its interval. `disturbed`: its rounds did not agree."""

    value: float
    low: float
    high: float
    disturbed: bool = False


class HostPart(StrEnum):
    """What is measured inside a host, as a part of operations. "One way": half of the ranks send to the other half; else all do both."""

    COPY = "copy"
    SUM = "sum"
    SHARED_ONE_WAY = "shared memory, one way"
    SHARED = "shared memory"
    SHARED_SUM = "shared memory and sum"
    DIRECT_ONE_WAY = "direct copy, one way"
    DIRECT = "direct copy"
    LOOPBACK_ONE_WAY = "loopback TCP, one way"
    LOOPBACK = "loopback TCP"


class HostPath(msgspec.Struct, frozen=True):
    """How data gets from rank to rank inside a host: the parts by which it is passed on, and summed where it arrives."""

    name: str
    one_way: HostPart
    all_ways: HostPart
    summed: tuple[HostPart, ...]


SHARED_MEMORY = HostPath("shared memory", HostPart.SHARED_ONE_WAY, HostPart.SHARED, (HostPart.SHARED_SUM,))
DIRECT_COPY = HostPath("direct copy", HostPart.DIRECT_ONE_WAY, HostPart.DIRECT, (HostPart.DIRECT, HostPart.SUM))
LOOPBACK_TCP = HostPath("loopback TCP", HostPart.LOOPBACK_ONE_WAY, HostPart.LOOPBACK, (HostPart.LOOPBACK, HostPart.SUM))


class HostWork(msgspec.Struct, frozen=True):
    """What an operation does inside a host.

    model     `Operation.cpu_model`: "copy", "sum", "reduce" or "allreduce"
    n         ranks of a group
    moved     the bus factor: the share of the size that the busiest rank passes on
    one_way   only one direction is busy
    own       the share of the size that a rank copies from its own send buffer
    """

    model: str
    n: int
    moved: float
    one_way: bool = False
    own: float = 0.0


Recipe = tuple[tuple[HostPart, float], ...]  # parts, and the share of the size that each of them takes
HostRates = Mapping[tuple[HostPart, int], Rate]  # by part and size in bytes: the rate of each rank; what could not be measured is left out


def recipes(path: HostPath, work: HostWork) -> tuple[Recipe, ...]:
    """Return the ways to do this work, of which the fastest is expected."""
    if work.model == "sum":
        return (_summed(path, work.moved),)
    if work.model == "allreduce":
        return ((*_summed(path, work.moved / 2), (path.all_ways, work.moved / 2)),)
    if work.model == "reduce":
        share = (work.n - 1) / work.n
        return _summed(path, work.moved), (*_summed(path, share), (path.one_way, share))
    passed = (path.one_way if work.one_way else path.all_ways, work.moved)
    return ((passed, (HostPart.COPY, work.own)) if work.own else (passed,),)


def _summed(path: HostPath, share: float) -> Recipe:
    return tuple((part, share) for part in path.summed)


def agreed(rounds: Sequence[Rate]) -> Rate | None:
    """Return the mean of the last two rounds with an interval that covers both; None when they differ: measure again."""
    if len(rounds) < 2:
        return None
    previous, last = rounds[-2:]
    mean = Rate((previous.value + last.value) / 2, min(previous.low, last.low), max(previous.high, last.high))
    steady = max(previous.value, last.value) <= AGREEMENT * min(previous.value, last.value)
    return mean if steady and mean.high - mean.low <= 2 * _WIDEST * mean.value else None


def settled(rounds: Sequence[Rate]) -> Rate:
    """Return the rate that the rounds agree on; otherwise their median with the whole range, marked as disturbed."""
    from statistics import median

    rate = agreed(rounds)
    if rate is not None:
        return rate
    return Rate(median(rate.value for rate in rounds), min(rate.low for rate in rounds), max(rate.high for rate in rounds), disturbed=True)


def host_ceiling(path: HostPath, work: HostWork, size_bytes: int, rates: HostRates) -> Ceiling:
    """Return the reference for a case inside a host, over this path."""
    ceilings = [_ceiling_of(path, recipe, work, size_bytes, rates) for recipe in recipes(path, work) if work.moved]
    measured = [ceiling for ceiling in ceilings if ceiling]
    return max(measured, key=lambda ceiling: ceiling.bytes_per_s or 0.0, default=no_ceiling(NOT_MEASURED))


def _ceiling_of(path: HostPath, recipe: Recipe, work: HostWork, size_bytes: int, rates: HostRates) -> Ceiling | None:
    if any((part, size_bytes) not in rates for part, _ in recipe):
        return None
    parts = [(rates[part, size_bytes], share) for part, share in recipe]
    sums = any(part in (HostPart.SUM, HostPart.SHARED_SUM) for part, _ in recipe)
    measured = Ceiling("measured", None, f"{path.name}{' and sum' if sums else ''}", "ring", _SOURCE)
    if any(rate.value == 0 for rate, _ in parts):  # there was no time for it
        return replace(measured, disturbed=True)
    value, low, high = (work.moved / sum(share / getattr(rate, end) for rate, share in parts) for end in ("value", "low", "high"))
    disturbed = any(rate.disturbed for rate, _ in parts)
    return replace(measured, bytes_per_s=value, low_bytes_per_s=low, high_bytes_per_s=high, disturbed=disturbed)
