"""Disturbances of each host's network while a case was measured: retransmitted segments, links that went down, errors
and drops.

Counters belong to the host and include the traffic of other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.reason import Fact
from collbench.units import plural

# Whether other work disturbed a case: time in which its ranks waited for a CPU, and changes of the machine state.


_FEWEST, _LEAST_SHARE = 3, 0.001
# Lost packets that congestion does not explain. A flow that fills a path loses 1.5 / W² of its packets with W packets in flight (RFC 5348,
# section 3.1): 0.3 % means W = 22, far less than a queue has. A cable loses single frames, of one segment each, and so few segments in one
# recovery. A queue that overflows, and software that drops a packet of up to 64 KiB before it is split, lose many: measured over shaped
# links, 9 to 75 segments in each recovery, against 1 to 4.2 at 1 % of independent loss.
_LOSSY_SHARE, _MOST_PER_RECOVERY = 0.003, 6
_FEWEST_RECOVERIES = 4
_ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_MOST_STALLS = 8
_STALL_S, _MEDIANS = 0.2, 20.0  # TCP waits at least 0.2 s before it retransmits
RETRANSMITS, LOSSY_PATH, PORT_ERRORS, LINK_FLAPPED = "retransmits", "lossy_path", "port_errors", "link_flapped"
_DAMAGED = ("rx_errors", "tx_errors")
_PORT_ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")
_IDLE_SHARE = 0.01  # of a host's packets while a case is measured; what the kernel sends by itself, such as neighbor discovery, is less


@dataclass(frozen=True)
class HostNetwork:
    """Network disturbances on one host, as changes of its counters.

    retransmitted, sent  TCP segments
    carrier_changes      by interface how often its link went down or up
    errors               by interface and RDMA port the error and drop counters that grew; None: unknown
    duplicates           retransmitted segments that had arrived before: the other host was slow to acknowledge them
    recoveries           how often TCP recovered from a loss
    idle_interfaces      those that carried less than a hundredth of the host's packets: the case did not use them
    """

    host: str
    retransmitted: int = 0
    sent: int = 0
    carrier_changes: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    duplicates: int = 0
    recoveries: int = 0
    idle_interfaces: frozenset[str] = frozenset()

    @property
    def lost(self) -> int:
        """Return the segments that were retransmitted because they had not arrived."""
        return max(0, self.retransmitted - self.duplicates)

    @property
    def retransmits(self) -> bool:
        """Return whether a thousandth of the segments or more were lost. It is normal where flows fill a path."""
        return self.lost >= max(_FEWEST, _LEAST_SHARE * self.sent)

    @property
    def lossy(self) -> bool:
        """Return whether more segments were lost, and more evenly, than the queues of a full path explain."""
        if self.recoveries < _FEWEST_RECOVERIES:
            return False
        return self.lost >= max(_FEWEST, _LOSSY_SHARE * self.sent) and self.lost <= _MOST_PER_RECOVERY * self.recoveries

    @property
    def port_errors(self) -> list[PortErrors]:
        """Return the interfaces and ports that counted damaged packets or errors of their link, each with its largest such counter."""
        ports = []
        for port, counts in self.errors.items():
            link_errors = {name: counts.get(name) or 0 for name in (*_DAMAGED, *_PORT_ERRORS)}
            worst = max(link_errors, key=lambda name: link_errors[name])
            if link_errors[worst] >= _FEWEST:
                ports.append(PortErrors(self.host, port, worst, link_errors[worst], used=port not in self.idle_interfaces))
        return ports

    @property
    def damaged(self) -> bool:
        """Return whether an interface or port that the case used counted damaged packets or errors of its link."""
        return any(port.used for port in self.port_errors)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        counts = {
            "tcp_retransmitted": self.retransmitted,
            "tcp_sent": self.sent,
            "tcp_duplicates": self.duplicates,
            "tcp_recoveries": self.recoveries,
        }
        return counts | {name: dict(found) for name, found in (("carrier_changes", self.carrier_changes), ("errors", self.errors)) if found}

    def causes(self) -> list[DisturbanceCause]:
        """Return one fact for each disturbance."""
        flaps = [LinkFlapped(self.host, name, count) for name, count in self.carrier_changes.items()]
        return [*flaps, *([SegmentsRetransmitted(self.host, self.lost, self.sent)] if self.retransmits else [])]


@dataclass(frozen=True)
class Stall:
    """One sample that took far longer than the median."""

    phase: str
    seconds: float
    median_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {"phase": self.phase, "seconds": round(self.seconds, 6), "median_s": self.median_s}


def of_host(host: str, moved: Mapping[str, Any]) -> HostNetwork:
    """Return the network disturbances of a host, from the changes of its counters (`instruments.moved`)."""
    interfaces = {name: moved["interfaces"].get(name, {}) for name in moved["leaving"]}
    flaps = {name: counts["carrier_changes"] for name, counts in interfaces.items() if counts.get("carrier_changes")}
    errors = {name: {what: counts[what] for what in _ERRORS if what in counts} for name, counts in interfaces.items()}
    ports = {name: {what: counts[what] for what in _PORT_ERRORS if what in counts} for name, counts in moved.get("ports", {}).items()}
    tcp = moved.get("tcp", {})
    packets = {name: (counts.get("tx_packets") or 0) + (counts.get("rx_packets") or 0) for name, counts in interfaces.items()}
    few_packets = _IDLE_SHARE * sum(packets.values())
    return HostNetwork(
        host,
        tcp.get("retransmitted") or 0,
        tcp.get("sent") or 0,
        flaps,
        {name: found for name, found in {**errors, **ports}.items() if found},
        tcp.get("duplicates") or 0,
        tcp.get("recoveries") or 0,
        frozenset(name for name, count in packets.items() if count < few_packets),
    )


def flags(hosts: Iterable[HostNetwork]) -> list[str]:
    """Return the quality flags that these disturbances set on a row."""
    found = list(hosts)
    words = {
        RETRANSMITS: any(one.retransmits for one in found),
        LOSSY_PATH: any(one.lossy for one in found),
        PORT_ERRORS: any(one.damaged for one in found),
        LINK_FLAPPED: any(one.carrier_changes for one in found),
    }
    return [word for word, true in words.items() if true]


def stalls(samples: Sequence[tuple[str, float]], median_s: float) -> list[Stall]:
    """Return the stalls among samples, each (phase, seconds), the longest first, eight at most."""
    least = max(_STALL_S, _MEDIANS * median_s)
    found = sorted((Stall(phase, seconds, median_s) for phase, seconds in samples if seconds > least), key=lambda one: -one.seconds)
    return found[:_MOST_STALLS]


class LinkFlapped(Fact, frozen=True):
    """The link of a network interface went down or up while a case was measured."""

    host: str
    interface: str
    changes: int

    def render(self) -> str:
        """Return the clause for a sentence that names the case."""
        times = "once" if self.changes == 1 else f"{self.changes} times"
        return f"the link of {self.interface} on {self.host} changed its state {times}"


class SegmentsRetransmitted(Fact, frozen=True):
    """TCP retransmitted lost segments while a case was measured."""

    text = "TCP retransmitted {retransmitted} of {sent} segments on {host}"
    host: str
    retransmitted: int
    sent: int


class PortErrors(Fact, frozen=True):
    """A port counted damaged packets or errors of its link while a case was measured.

    counter, errors  the counter that grew most, and by how much
    used             whether the port is one that may have carried the case's data
    """

    host: str
    port: str
    counter: str
    errors: int
    used: bool

    def render(self) -> str:
        """Return the sentence that users see."""
        unused = "" if self.used else ", although the measured operation did not use it"
        return f"{self.port} on {self.host} counted {self.errors} {self.counter}{unused}: check its cable, optics and switch port"


class ProcessPaused(Fact, frozen=True):
    """A process was not running for a while: it was stopped or swapped out, or its machine was asleep."""

    text = "a process on {host} was paused for {seconds:.1f} s"
    host: str
    seconds: float


DisturbanceCause = LinkFlapped | SegmentsRetransmitted | ProcessPaused


class CaseDisturbed(Fact, frozen=True):
    """Samples of a case took far longer than its median, or a link went down or up meanwhile.

    stalls  how many samples; phase, seconds: of the longest one
    """

    case: str
    causes: tuple[DisturbanceCause, ...]
    stalls: int = 0
    phase: str = ""
    seconds: float = 0.0
    median_s: float = 0.0

    def render(self) -> str:
        """Return the sentence that users see."""
        why = "; ".join(cause.render() for cause in self.causes)
        if not self.stalls:
            return f"{self.case}: {why}"
        more = f"; {plural(self.stalls - 1, 'more long sample')}" if self.stalls > 1 else ""
        slow = f"a {self.phase} sample took {self.seconds:.2f} s (median {self.median_s:.3g} s{more})"
        return f"{self.case}: {slow}: {why or 'cause unknown: the counters of the hosts show nothing'}"


def case_disturbed(case: str, found: Sequence[Stall], hosts: Iterable[HostNetwork], paused_s: Mapping[str, float]) -> CaseDisturbed | None:
    """Return the disturbances of a case as one fact; None without any. `paused_s`: seconds by the host of a paused process."""
    causes = [cause for one in hosts for cause in one.causes()]
    causes += [ProcessPaused(host, seconds) for host, seconds in paused_s.items()]
    if not found:
        flaps = tuple(cause for cause in causes if isinstance(cause, LinkFlapped))
        return CaseDisturbed(case, flaps) if flaps else None
    return CaseDisturbed(case, tuple(causes), len(found), found[0].phase, found[0].seconds, found[0].median_s)
