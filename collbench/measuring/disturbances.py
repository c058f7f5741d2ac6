"""Disturbances of each host's network while a case was measured: retransmitted segments, links that went down, errors
and drops.

Counters belong to the host and include the traffic of other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from collbench.measuring.counters import Grown
from collbench.reason import Fact
from collbench.results.row import EvidencePart
from collbench.units import plural

# Whether other work disturbed a case: time in which its ranks waited for a CPU, and changes of the machine state.


_FEWEST = 3
_LEAST_SHARE = 0.001
# Lost packets that congestion does not explain. A flow that fills a path loses 1.5 / W² of its packets with W packets in flight (RFC 5348,
# section 3.1): 0.3 % means W = 22, far less than a queue has. A cable loses single frames, of one segment each, and so few segments in one
# recovery. A queue that overflows, and software that drops a packet of up to 64 KiB before it is split, lose many: measured over shaped
# links, 9 to 75 segments in each recovery, against 1 to 4.2 at 1 % of independent loss.
_LOSSY_SHARE = 0.003
_MOST_PER_RECOVERY = 6
_FEWEST_RECOVERIES = 4
_ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_MOST_STALLS = 8
_STALL_S = 0.2  # TCP waits at least so long before it retransmits
_MEDIANS = 20.0
RETRANSMITS = "retransmits"
LOSSY_PATH = "lossy_path"
PORT_ERRORS = "port_errors"
LINK_FLAPPED = "link_flapped"
_DAMAGED = ("rx_errors", "tx_errors")
_PORT_ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")
_IDLE_SHARE = 0.01  # of a host's packets while a case is measured; what the kernel sends by itself, such as neighbor discovery, is less


class NetworkCounts(EvidencePart, frozen=True, omit_defaults=True):
    """Changes of a host's counters of disturbances. A row's evidence has them by host.

    tcp_retransmitted, tcp_sent   TCP segments
    tcp_duplicates    retransmitted segments that had arrived before: the other host was slow to acknowledge them
    tcp_recoveries    how often TCP recovered from a loss
    carrier_changes   by interface how often its link went down or up
    errors            by interface and RDMA port the error and drop counters that grew; None: unknown
    """

    KEY = "network"
    tcp_retransmitted: int
    tcp_sent: int
    tcp_duplicates: int
    tcp_recoveries: int
    carrier_changes: dict[str, int] = msgspec.field(default_factory=dict)
    errors: Grown = msgspec.field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Return the segments that were retransmitted because they had not arrived."""
        return max(0, self.tcp_retransmitted - self.tcp_duplicates)

    @property
    def retransmits(self) -> bool:
        """Return whether a thousandth of the segments or more were lost. It is normal where flows fill a path."""
        return self.lost >= max(_FEWEST, _LEAST_SHARE * self.tcp_sent)

    @property
    def lossy(self) -> bool:
        """Return whether more segments were lost, and more evenly, than the queues of a full path explain."""
        if self.tcp_recoveries < _FEWEST_RECOVERIES:
            return False
        return self.lost >= max(_FEWEST, _LOSSY_SHARE * self.tcp_sent) and self.lost <= _MOST_PER_RECOVERY * self.tcp_recoveries


class HostNetwork(msgspec.Struct, frozen=True):
    """Network disturbances on one host.

    idle_interfaces   those that carried less than a hundredth of the host's packets: the case did not use them
    """

    host: str
    counts: NetworkCounts
    idle_interfaces: frozenset[str] = frozenset()

    @property
    def port_errors(self) -> list[PortErrors]:
        """Return the interfaces and ports that counted damaged packets or errors of their link, each with its largest such counter."""
        ports = []
        for port, counts in self.counts.errors.items():
            link_errors = {name: counts.get(name) or 0 for name in (*_DAMAGED, *_PORT_ERRORS)}
            worst = max(link_errors, key=lambda name: link_errors[name])
            if link_errors[worst] >= _FEWEST:
                ports.append(PortErrors(self.host, port, worst, link_errors[worst], used=port not in self.idle_interfaces))
        return ports

    @property
    def damaged(self) -> bool:
        """Return whether an interface or port that the case used counted damaged packets or errors of its link."""
        return any(port.used for port in self.port_errors)

    def causes(self) -> list[DisturbanceCause]:
        """Return one fact for each disturbance."""
        counts = self.counts
        causes: list[DisturbanceCause] = [LinkFlapped(self.host, name, count) for name, count in counts.carrier_changes.items()]
        if counts.retransmits:
            causes.append(SegmentsRetransmitted(self.host, counts.lost, counts.tcp_sent))
        return causes


class Stall(EvidencePart, frozen=True):
    """One sample that took far longer than the median. A row's evidence has a list of them."""

    KEY = "stalls"
    phase: str
    seconds: float
    median_s: float


def of_host(host: str, moved: Mapping[str, Any]) -> HostNetwork:
    """Return the network disturbances of a host, from the changes of its counters (`instruments.moved`)."""
    interfaces = {name: moved["interfaces"].get(name, {}) for name in moved["leaving"]}
    flaps = {name: counts["carrier_changes"] for name, counts in interfaces.items() if counts.get("carrier_changes")}
    errors = {name: _chosen(counts, _ERRORS) for name, counts in interfaces.items()}
    errors |= {name: _chosen(counts, _PORT_ERRORS) for name, counts in moved.get("ports", {}).items()}
    tcp = moved.get("tcp", {})
    packets = {name: (counts.get("tx_packets") or 0) + (counts.get("rx_packets") or 0) for name, counts in interfaces.items()}
    few_packets = _IDLE_SHARE * sum(packets.values())
    counts = NetworkCounts(
        tcp_retransmitted=tcp.get("retransmitted") or 0,
        tcp_sent=tcp.get("sent") or 0,
        tcp_duplicates=tcp.get("duplicates") or 0,
        tcp_recoveries=tcp.get("recoveries") or 0,
        carrier_changes=flaps,
        errors={name: counts for name, counts in errors.items() if counts},
    )
    return HostNetwork(host, counts, frozenset(name for name, count in packets.items() if count < few_packets))


def _chosen(counts: Mapping[str, int | None], names: Iterable[str]) -> dict[str, int | None]:
    return {name: counts[name] for name in names if name in counts}


def flags(hosts: Sequence[HostNetwork]) -> list[str]:
    """Return the quality flags that these disturbances set on a row."""
    applies = {
        RETRANSMITS: any(host.counts.retransmits for host in hosts),
        LOSSY_PATH: any(host.counts.lossy for host in hosts),
        PORT_ERRORS: any(host.damaged for host in hosts),
        LINK_FLAPPED: any(host.counts.carrier_changes for host in hosts),
    }
    return [flag for flag in applies if applies[flag]]


def stalls(samples: Sequence[tuple[str, float]], median_s: float) -> list[Stall]:
    """Return the stalls among samples, each (phase, seconds), the longest first, eight at most."""
    least = max(_STALL_S, _MEDIANS * median_s)
    all_stalls = [Stall(phase, round(seconds, 6), median_s) for phase, seconds in samples if seconds > least]
    return sorted(all_stalls, key=lambda stall: -stall.seconds)[:_MOST_STALLS]


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


def case_disturbed(case: str, stalls: Sequence[Stall], hosts: Iterable[HostNetwork], paused_s: Mapping[str, float]) -> CaseDisturbed | None:
    """Return the disturbances of a case as one fact; None without any. `paused_s`: seconds by the host of a paused process."""
    causes = [cause for host in hosts for cause in host.causes()]
    causes += [ProcessPaused(host, seconds) for host, seconds in paused_s.items()]
    if not stalls:
        flaps = tuple(cause for cause in causes if isinstance(cause, LinkFlapped))
        return CaseDisturbed(case, flaps) if flaps else None
    longest = stalls[0]
    return CaseDisturbed(case, tuple(causes), len(stalls), longest.phase, longest.seconds, longest.median_s)
