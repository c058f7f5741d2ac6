"""What is wrong with the path between two hosts, as the connections of both ends and probes show it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from collbench.control.path_probe import ProbeResult
from collbench.control.tcp_info import PathReport

_FEWEST_LOST = 3
_MOST_LOST = 0.7  # of the packets: where nearly all are lost it is not chance
_RECENT_MS = 2500  # beats come every second


class PathProblem(Enum):
    """What happens to packets, the most certain first."""

    MTU = "mtu"
    LOSS = "loss"
    ONE_WAY = "one way"
    STALLED = "stalled"


@dataclass(frozen=True)
class PathFault:
    """A problem of the packets from one host to another.

    limit_bytes          the largest packet that passes (MTU)
    packet_bytes         the largest that is sent
    retransmitted, sent  segments since nothing has moved
    retransmits          consecutive timeouts of one segment
    stalled              connections with such a segment
    direction_known      False where the acknowledgements may be what is lost
    """

    problem: PathProblem
    source: str
    target: str
    limit_bytes: int = 0
    packet_bytes: int = 0
    retransmitted: int = 0
    sent: int = 0
    retransmits: int = 0
    stalled: int = 0
    direction_known: bool = True

    def __str__(self) -> str:
        way = f"from {self.source} to {self.target}"
        if self.problem is PathProblem.MTU:
            return f"packets above {self.limit_bytes} bytes do not pass {way}: check the MTU of both hosts and of the switches between them"
        if self.problem is PathProblem.LOSS:
            share = f" ({100 * self.retransmitted / self.sent:.0f} %)" if self.sent else ""
            counts = f"{self.retransmitted} of {self.sent} were sent again{share}"
            return f"packets {way} are lost: {counts}; check cables, optics and switch queues"
        if self.problem is PathProblem.ONE_WAY:
            return f"packets {way} do not arrive, although packets from {self.target} to {self.source} do: check this path for drops"
        where = way if self.direction_known else f"between {self.source} and {self.target}"
        return (
            f"the path {where} drops packets: one of up to {self.packet_bytes} bytes was sent again {self.retransmits} times "
            "and is not acknowledged; check its links and its MTU"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "problem": self.problem.value}


@dataclass(frozen=True)
class Direction:
    """What all reports show of the packets from one host to another; `heard_ms`: since data came the other way."""

    source: str
    target: str
    stalled: int = 0
    retransmits: int = 0
    packet_bytes: int = 0
    retransmitted: int = 0
    sent: int = 0
    heard_ms: int = 2**31

    def with_report(self, one: PathReport) -> Direction:
        """Return the direction with one more report."""
        return replace(
            self, stalled=self.stalled + one.stalled, retransmits=max(self.retransmits, one.retransmits),
            packet_bytes=max(self.packet_bytes, one.packet_bytes), retransmitted=self.retransmitted + one.retransmitted,
            sent=self.sent + one.sent, heard_ms=min(self.heard_ms, one.received_ms),
        )  # fmt: skip

    @property
    def suspect(self) -> bool:
        """Whether packets are lost in this direction."""
        return self.stalled > 0 or self.retransmitted >= _FEWEST_LOST


@dataclass(frozen=True)
class PathEvidence:
    """By (source, target), hosts' names, what connections show; probes of some of them; the hosts from which a rank answers."""

    directions: Mapping[tuple[str, str], Direction] = field(default_factory=dict)
    probes: Mapping[tuple[str, str], ProbeResult] = field(default_factory=dict)
    answering: Collection[str] = ()

    @property
    def suspects(self) -> list[Direction]:
        """The directions in which packets are lost, the worst first."""
        found = [one for one in self.directions.values() if one.suspect]
        return sorted(found, key=lambda one: (-one.stalled, -one.retransmitted, one.source, one.target))

    def fault(self) -> PathFault | None:
        """Return the most certain problem of any direction; None where no packet is lost."""
        order = list(PathProblem)
        faults = [fault for one in self.suspects if (fault := self._of(one))]
        return min(faults, key=lambda fault: order.index(fault.problem), default=None)

    def _of(self, one: Direction) -> PathFault | None:
        probe = self.probes.get((one.source, one.target), ProbeResult())
        facts: dict[str, Any] = {
            "packet_bytes": one.packet_bytes, "retransmitted": one.retransmitted, "sent": one.sent, "retransmits": one.retransmits,
            "stalled": one.stalled,
        }  # fmt: skip
        if probe.limit is not None:
            return PathFault(PathProblem.MTU, one.source, one.target, limit_bytes=probe.limit, **facts)
        beyond = one.retransmitted - one.stalled * one.retransmits  # of one packet again and again nothing follows for others
        if beyond >= _FEWEST_LOST and one.retransmitted <= _MOST_LOST * one.sent:
            return PathFault(PathProblem.LOSS, one.source, one.target, **facts)
        if one.stalled and not probe.connected and one.heard_ms < _RECENT_MS and one.target not in self.answering:
            return PathFault(PathProblem.ONE_WAY, one.source, one.target, **facts)
        if not one.stalled:
            return None
        known = one.heard_ms < _RECENT_MS or one.target in self.answering
        return PathFault(PathProblem.STALLED, one.source, one.target, **facts, direction_known=known)


def directions(reports: Iterable[tuple[str, PathReport]], host_of: Mapping[str, str]) -> dict[tuple[str, str], Direction]:
    """Return by (source, target) what the reports, each with its host, show; `host_of`: hosts by address."""
    found: dict[tuple[str, str], Direction] = {}
    for source, report in reports:
        target = host_of.get(report.peer)
        if target and target != source:
            one = found.get((source, target), Direction(source, target))
            found[source, target] = one.with_report(report)
    return found
