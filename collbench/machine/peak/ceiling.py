"""The reference rate that a measured busbw is compared with, and the links that limit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.machine.peak.limits import Limit
else:
    Limit = object  # `--help` imports this module, which must not import msgspec

TOLERANCE = 1.02  # for the burst of a token bucket and errors of the clock; a larger excess is real


@dataclass(frozen=True)
class Ceiling:
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
        values = {name: getattr(self, name) for name in CSV_FIELDS} | {"limited_by_parts": _as_json(self.limited_by_parts)}
        return values if complete else {name: value for name, value in values.items() if name not in _OPTIONAL or value}


def _as_json(parts: Sequence[Limit]) -> list[Any]:
    if not parts:
        return []
    from collbench.reason import as_json

    found: list[Any] = as_json(parts)
    return found


_OPTIONAL = frozenset({"low_bytes_per_s", "high_bytes_per_s", "disturbed", "limited_by_parts", "efficiency", "constants"})
CSV_FIELDS = tuple(field.name for field in fields(Ceiling) if field.name != "limited_by_parts")


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


# Inside one host, CPU backends have no meaningful theoretical peak, so references are measured.
#
# The cost for the busiest rank, in copies of the size S (nccl-tests' size), if a byte passes from rank to rank by one copy. The rank's
# own part, (1/n)·S, is copied as well unless it is in place. It is not in the busbw, so 100 % is only reached in place.
#     broadcast, sendrecv                S copied by the receiver; in a chain all ranks receive at the same time
#     allgather, alltoall, hypercube     (n-1)/n·S copied by every rank
#     alltoallv, allgatherv              at most S copied by the busiest rank
#     gather(v), scatter(v)              (n-1)/n·S copied at the root, the only busy rank; if the other ranks copy their S/n for it at
#                                        the same time, they may reach n-1 times the reference
#     reduce                             the faster one of: S summed by every rank of a chain; (n-1)/n·S summed by every rank, and as
#                                        much copied by the root (a reduce-scatter and a gather). For two ranks always the second
#     scan, exscan                       S summed by every rank of a chain
#     reducescatter(v)                   (n-1)/n·S summed by every rank
#     allreduce                          reducescatter and allgather: (n-1)/n·S summed, and as much copied
# Libraries that use a shared segment copy twice, one rank into it and one out of it, alternating or at the same time.
#
# A reference is not a limit. It is measured with all ranks busy. If one rank works while others wait (gather of two ranks), it has more
# memory bandwidth: up to 1.8 times on two cores. Operations that keep data in cache may exceed it, too.

_SOURCE = "measured by all ranks of the host at once, before the first case"
_AT_SIZE = "measured at this size by all ranks of the host at once, before the first case"
AGREEMENT = 1.15  # rounds of a steady reference differ by at most this factor
_WIDEST = 0.25  # half of the interval, relative to the rate


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate in bytes per second with its interval. `disturbed`: its rounds did not agree."""

    value: float
    low: float
    high: float
    disturbed: bool = False


@dataclass(frozen=True)
class HostRates:
    """Reference rates of this host per rank, measured with all ranks active at the same time; None: not measured.

    copy, sum      by message size in bytes: memcpy, and the element-wise sum into a buffer
    stream_one     TCP over loopback, one direction between two ranks
    stream_both    the same with every rank sending and receiving
    """

    copy: dict[int, Rate]
    sum: dict[int, Rate]
    stream_one: Rate | None = None
    stream_both: Rate | None = None


def agreed(rounds: Sequence[Rate]) -> Rate | None:
    """Return the mean of the last two rounds with an interval that covers both; None when they differ: measure again."""
    if len(rounds) < 2:
        return None
    one, other = rounds[-2:]
    found = Rate((one.value + other.value) / 2, min(one.low, other.low), max(one.high, other.high))
    steady = max(one.value, other.value) <= AGREEMENT * min(one.value, other.value)
    return found if steady and found.high - found.low <= 2 * _WIDEST * found.value else None


def settled(rounds: Sequence[Rate]) -> Rate:
    """Return the rate that the rounds agree on; otherwise their median with the whole range, marked as disturbed."""
    from statistics import median

    known = agreed(rounds)
    if known is not None:
        return known
    return Rate(median(each.value for each in rounds), min(each.low for each in rounds), max(each.high for each in rounds), disturbed=True)


def memory_ceiling(model: str, size_bytes: int, rates: HostRates, n: int = 2) -> Ceiling:
    """Return the reference for libraries that share memory inside a host, by the operation's model over n ranks.

    "copy": moving operations. "sum": reductions. "allreduce": 2/(1/copy + 1/sum), since a ring takes
    (n-1)/n·S·(1/sum + 1/copy) and its bus factor is 2(n-1)/n. "reduce": the same time with the bus factor 1, or "sum" if that is
    faster.
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
    return no_ceiling("this host's memory was not measured at this size")


def stream_ceiling(both_ways: bool, rates: HostRates) -> Ceiling:
    """Return the reference for libraries that use TCP over loopback inside a host: one stream per rank, one or both directions."""
    rate = rates.stream_both if both_ways else rates.stream_one
    if rate is None:
        return no_ceiling("loopback TCP was not measured on this host")
    return _measured(rate, f"one loopback TCP stream{' each way' if both_ways else ''}", _SOURCE)


def _harmonic(factor: float, copy: Rate, added: Rate) -> Rate:
    """Return the rate of a copy followed by a sum, times a factor."""
    value, low, high = (factor / (1 / a + 1 / b) for a, b in ((copy.value, added.value), (copy.low, added.low), (copy.high, added.high)))
    return Rate(value, low, high, copy.disturbed or added.disturbed)


def _measured(rate: Rate, what: str, source: str) -> Ceiling:
    return Ceiling("measured", rate.value, what, "ring", source, rate.low, rate.high, rate.disturbed)
