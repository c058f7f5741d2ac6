"""The ceiling: the rate that a measured busbw is compared with, and the links that set it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal, TypeVar

import msgspec

from collbench.reason import Fact, as_json
from collbench.units import plural

TOLERANCE = 1.02  # a token bucket's burst and a clock's error; what is above a ceiling by more is really above it


P = TypeVar("P", bound="LimitPart")


class LimitPart(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A link, or several equal links together, that set a ceiling.

    gpus         the links of so many GPUs together
    nodes        the links of each of so many nodes, which one NVLink domain joins
    fabric       the fabric carries the rate divided by this (--oversubscription)
    shared_by    so many flows share it: `sharing` says of what kind
    host         the node, where the nodes of a job differ
    """

    gpus: int = 1
    nodes: int = 1
    fabric: float = 1.0
    shared_by: int = 1
    sharing: Literal["pairs", "edges of the ring", "edges of the rings", "groups"] = "pairs"
    host: str | None = None

    def alone(self: P) -> P:
        """Return the link itself: without host, fabric, or what shares it."""
        return msgspec.structs.replace(self, gpus=1, nodes=1, fabric=1.0, shared_by=1, sharing="pairs", host=None)

    def of(self: P, **changes: Any) -> P:
        """Return a copy with these fields."""
        return msgspec.structs.replace(self, **changes)

    def _with_conditions(self, link: str) -> str:
        return (
            link
            + (f" of {plural(self.gpus, 'GPU')}" if self.gpus > 1 else "")
            + (f" of each of {plural(self.nodes, 'node')}" if self.nodes > 1 else "")
            + (f", fabric {self.fabric:g}:1" if self.fabric != 1 else "")
            + (f" shared by {self.shared_by:,} {self.sharing}" if self.shared_by > 1 else "")
        )


class PcieLimit(LimitPart, frozen=True):
    """The PCIe link of a GPU or NIC."""

    generation: int
    lanes: int

    def render(self) -> str:
        """Return "PCIe Gen4 x16"."""
        return self._with_conditions(f"PCIe Gen{self.generation} x{self.lanes}")


class BridgeLimit(LimitPart, frozen=True):
    """The PCIe link above a switch that several devices share."""

    address: str

    def render(self) -> str:
        """Return "the PCIe link above 0000:01:00.0"."""
        return self._with_conditions(f"the PCIe link above {self.address}")


class NicLimit(LimitPart, frozen=True):
    """The NICs of a node together.

    ports        how many ports have which rate in bits per second, the fastest first
    interface    the network interface, where TCP uses one alone
    slots        the PCIe links of the slots that carry less than their NICs' ports
    """

    ports: tuple[tuple[int, float], ...]
    interface: str | None = None
    slots: tuple[PcieLimit, ...] = ()

    def render(self) -> str:
        """Return "NIC 4×100 Gb/s", "NIC 8×400 + 1×200 Gb/s", "NIC eth0 10 Gb/s, TCP"."""
        one = self.interface is not None and len(self.ports) == 1 and self.ports[0][0] == 1
        rates = " + ".join(f"{'' if one else f'{count}×'}{rate / 1e9:g}" for count, rate in self.ports)
        name = f"NIC {rates} Gb/s" if self.interface is None else f"NIC {self.interface} {rates} Gb/s, TCP"
        return self._with_conditions(name + (f" in slots of {' and '.join(slot.render() for slot in self.slots)}" if self.slots else ""))


class GpuLinkLimit(LimitPart, frozen=True):
    """NVLinks or xGMI links between GPUs.

    count        links of one GPU (or of the pair); None where only their rate together is known
    bytes_per_s  of one link, or of all where `count` is None; one direction
    way          the links of one GPU, of a pair of GPUs, of a way through a third GPU, or those between two sets of GPUs (`sets`)
    nvls         the switches add (NVLink SHARP)
    """

    link: Literal["NVLink", "xGMI"]
    bytes_per_s: float
    count: int | None = None
    way: Literal["gpu", "pair", "third_gpu", "sets"] = "gpu"
    sets: tuple[int, int] | None = None
    nvls: bool = False

    def alone(self) -> GpuLinkLimit:
        """Return the link itself, without sums in the switch as well."""
        return super().alone().of(nvls=False)

    def render(self) -> str:
        """Return "NVLink 12×25 GB/s", "xGMI 1×64 GB/s of a pair"."""
        rate = f"{f'{self.count}×' if self.count is not None else ''}{self.bytes_per_s / 1e9:g} GB/s"
        if self.way == "third_gpu":
            return self._with_conditions(f"{self.link} over a third GPU")
        if self.sets is not None:
            return self._with_conditions(f"{self.link} between {self.sets[0]} and {self.sets[1]} GPUs, {rate}")
        name = f"{self.link} {rate}{' of a pair' if self.way == 'pair' else ''}"
        return self._with_conditions(f"{name} with NVLink SHARP" if self.nvls else name)


Limit = NicLimit | PcieLimit | BridgeLimit | GpuLinkLimit


class LimitedBy(Fact, frozen=True):
    """The links that set a ceiling: several where only all of them together have the rate."""

    parts: tuple[Limit, ...]

    def render(self) -> str:
        """Return "NIC 4×100 Gb/s and NVLink 12×25 GB/s of a pair"; with the host where the nodes of a job differ."""
        host = next((part.host for part in self.parts if part.host), None)
        return " and ".join(part.render() for part in self.parts) + (f" of {host}" if host else "")


def limit_parts(value: Any) -> tuple[Limit, ...]:
    """Return the parts that a stored row has; none for those of an earlier version, which has only text, or of a later one."""
    try:
        parts: tuple[Limit, ...] = msgspec.convert(value or (), tuple[Limit, ...])
    except msgspec.ValidationError:
        return ()
    return parts


@dataclass(frozen=True)
class Ceiling:
    """A rate that the busbw of a row is compared with.

    kind          "measured" (a reference, not a limit), "network", "topology", "given" (--ceiling), "simulated" or "none"
    bytes_per_s   the rate; None when there is none, and then `limited_by` is the reason
    limited_by    the link or the copy that limits, as text: "NIC eth0 1 Gb/s", "memory copy and sum"
    model         "ring" or "bound"
    source        where the figure comes from: "measured before the first case", "tc qdisc on eth0", "--ceiling"
    low_bytes_per_s, high_bytes_per_s   the interval of a measured reference; None for all others
    disturbed     a measured reference whose repetitions did not agree: it gives no percentage
    limited_by_parts   the links of `limited_by`; empty where no link limits, and in rows stored by earlier versions
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

    def as_json(self, complete: bool = False) -> dict[str, Any]:
        """Return it as JSON values; the interval, `disturbed` and the parts only where it has them, or where all are wanted."""
        values = {**vars(self), "limited_by_parts": as_json(self.limited_by_parts)}
        return values if complete else {name: value for name, value in values.items() if name not in _OPTIONAL or value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Ceiling:
        """Return the ceiling that `as_json` made `values` of. Raises TypeError for a field that is missing or unknown."""
        if not isinstance(values, dict):
            raise TypeError("a ceiling that is not an object")
        parts = values.get("limited_by_parts")
        return cls(**values) if parts is None else cls(**{**values, "limited_by_parts": limit_parts(parts)})


_OPTIONAL = frozenset({"low_bytes_per_s", "high_bytes_per_s", "disturbed", "limited_by_parts"})
CSV_FIELDS = tuple(field.name for field in fields(Ceiling) if field.name != "limited_by_parts")


def given(gigabytes_per_s: float) -> Ceiling:
    """The ceiling that the user gave, in GB/s."""
    return Ceiling("given", gigabytes_per_s * 1e9, "the ceiling given", source="--ceiling")


def nothing(why: str) -> Ceiling:
    """No ceiling, and why."""
    return Ceiling("none", None, why)


def percent_of(rate: float | None, ceiling: Ceiling | None) -> float | None:
    """Return the percentage that a rate is of a ceiling; None where either is unknown."""
    return 100 * rate / ceiling.bytes_per_s if rate and ceiling and ceiling.bytes_per_s else None


# Ceilings inside one host: CPU backends have no theoretical peak that means anything, so references are measured.
#
# What an operation costs the rank that has most to do, in copies of its size S (nccl-tests' size), where a byte passes from rank to rank
# by one copy; its own part, (1/n)·S, is copied as well unless it is in place, and is not in the busbw. So 100 % is reached in place.
#     broadcast, sendrecv                S copied by whoever receives; along a chain all receive at once
#     allgather, alltoall, hypercube     (n-1)/n·S copied by every rank
#     alltoallv                          at most S copied by the busiest rank
#     gather, scatter                    (n-1)/n·S copied at the root, which alone has work; where the others copy for it, each its S/n at
#                                        the same time, they may reach n-1 times the reference
#     reduce                             S summed by every rank of a chain; or (n-1)/n·S summed by every rank, and as much copied by the
#                                        root (a reduce-scatter and a gather): what is faster here, for two ranks always the second
#     reducescatter                      (n-1)/n·S summed by every rank
#     allreduce                          both of the last but one kind: (n-1)/n·S summed, and as much copied
# Libraries that pass bytes through a shared segment copy twice, one rank in and one out of it, in turns or at the same time.
#
# A reference is no bound. It is measured with all ranks at it, so an operation in which one rank works while the others wait (gather of
# two ranks) has more of the memory for itself: up to 1.8 times on two cores. And what keeps data in cache may pass it, too.

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
