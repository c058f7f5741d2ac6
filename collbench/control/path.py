"""TCP paths between hosts: the kernel's data about connections (TCP_INFO), probe packets, and the fault of a path.

TCP_INFO is read for this process's own connections, including a library's: segments sent, lost and not acknowledged.
Source of the layout: struct tcp_info, include/uapi/linux/tcp.h. Older kernels return a shorter structure; missing
fields read 0.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from collbench.addresses import tcp_socket
from collbench.reason import Fact

_ESTABLISHED = 1
_SYN_SENT = 2
_LAYOUT = struct.Struct("=BBBBBBBB" + "I" * 24 + "QQQQ" + "I" * 6 + "QQQQ" + "II" + "QQ" + "III")
_FIELD_INDEX = {  # of the fields of TcpInfo in this layout
    "state": 0, "retransmits": 2, "snd_mss": 10, "unacked": 12, "last_received_ms": 19, "pmtu": 21, "retransmitted": 31,
    "acked_bytes": 34, "sent": 41, "duplicates": 50, "out_of_order": 52,
}  # fmt: skip
_MOST_CONNECTIONS = 4096  # connections read at most
_MOST_PEERS = 64
_STALLED_RETRANSMITS = 2
_QUIET_S = 1.0  # seconds without progress; retransmissions after that belong to the stall
_EVERY_S = 0.5
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class TcpInfo(msgspec.Struct, frozen=True):
    """The kernel's data about one connection at its sending end."""

    state: int = 0
    retransmits: int = 0  # consecutive timeouts of the oldest segment in flight
    unacked: int = 0  # segments in flight
    snd_mss: int = 0  # bytes of the largest segment
    pmtu: int = 0  # bytes of the packet around it
    retransmitted: int = 0  # segments since the connection was opened
    sent: int = 0  # segments since the connection was opened
    acked_bytes: int = 0  # acknowledged by the other kernel
    last_received_ms: int = 0  # since the last new data arrived
    out_of_order: int = 0  # packets that arrived while an earlier one was missing (Linux 5.4 or newer)
    duplicates: int = 0  # retransmitted segments that had arrived before (DSACK): only their acknowledgements were lost, on the way back

    @classmethod
    def parse(cls, data: bytes) -> TcpInfo:
        """Return the values in the result of getsockopt(TCP_INFO)."""
        words = _LAYOUT.unpack(data[: _LAYOUT.size].ljust(_LAYOUT.size, b"\0"))
        return cls(**{name: words[index] for name, index in _FIELD_INDEX.items()})

    @property
    def stalled(self) -> bool:
        """Return whether the oldest segment in flight has timed out repeatedly."""
        return self.unacked > 0 and self.retransmits >= _STALLED_RETRANSMITS

    @property
    def lossy(self) -> bool:
        """Return whether packets of either direction were lost, as far as this end can detect it."""
        return self.retransmitted > 0 or self.out_of_order > 0


class PathReport(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The combined state of one rank's connections to one address."""

    peer: str
    stalled: Count  # connections
    retransmits: Count  # the most consecutive timeouts among the stalled ones
    packet_bytes: Count  # the largest packet that they send
    retransmitted: Count  # segments since the last progress, without those that had arrived before
    sent: Count  # segments since the last progress
    received_ms: Count  # since data last came from that address


def tcp_info(descriptor: int) -> TcpInfo | None:
    """Return the kernel's data about a connection; None if the descriptor is not a TCP connection."""
    connection = _read(descriptor)
    return connection[1] if connection else None


def _read(descriptor: int) -> tuple[str, TcpInfo] | None:
    """Return (the address at the other end, the kernel's data). The descriptor is neither copied nor closed."""
    with suppress(OSError, ValueError):
        connection = socket.socket(fileno=descriptor)
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                info = TcpInfo.parse(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size))
                names = (connection.getpeername(), connection.getsockname())
                peer, local = (str(name[0]).removeprefix("::ffff:").partition("%")[0] for name in names)
                return (peer, info) if info.state in (_ESTABLISHED, _SYN_SENT) and peer != local else None
        finally:
            connection.detach()
    return None


def own_connections() -> dict[str, tuple[str, TcpInfo]]:
    """Return this process's TCP connections to other hosts, by socket ("socket:[inode]"): the remote address and the kernel's data."""
    connections: dict[str, tuple[str, TcpInfo]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd")[:_MOST_CONNECTIONS]:  # noqa: PTH208 - Path.iterdir makes a Path per name
            with suppress(OSError, ValueError):
                link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
                connection = _read(int(name)) if link.startswith("socket:") else None
                if connection and not connection[0].startswith("127.") and connection[0] != "::1":
                    connections[link] = connection
    return connections


def reports(now: Mapping[str, tuple[str, TcpInfo]], before: Mapping[str, tuple[str, TcpInfo]]) -> list[PathReport]:
    """Return one report per address, from two readings of the same process's connections."""
    by_peer: dict[str, list[PathReport]] = {}
    for name, (peer, info) in now.items():
        earlier = before.get(name, (peer, TcpInfo()))[1]
        lost = info.retransmitted - info.duplicates - (earlier.retransmitted - earlier.duplicates)
        retransmits = info.retransmits if info.stalled else 0
        sent = max(0, info.sent - earlier.sent)
        report = PathReport(peer, int(info.stalled), retransmits, info.pmtu, max(0, lost), sent, info.last_received_ms)
        by_peer.setdefault(peer, []).append(report)
    return [_combined(peer_reports) for peer_reports in list(by_peer.values())[:_MOST_PEERS]]


class ConnectionMonitor:
    """The state of this process's connections when progress stopped, as the start of later reports. Used by one thread."""

    def __init__(self) -> None:
        self.lossy = False  # whether a connection to another host has lost packets while progress had stopped
        self._before: dict[str, tuple[str, TcpInfo]] | None = None
        self._read_at = 0.0

    def note(self, still_s: float, now: float) -> None:
        """Read the connections after `still_s` seconds without progress. `reports` compares with the first reading."""
        if now - self._read_at < _EVERY_S:
            return
        self._read_at = now
        if still_s < _QUIET_S:
            self._before = None
        else:
            connections = own_connections()
            self.lossy = self.lossy or any(info.lossy for _, info in connections.values())
            if self._before is None:
                self._before = connections

    def reports(self) -> list[PathReport]:
        """Return the current reports, one per address."""
        now = own_connections()
        return reports(now, self._before if self._before is not None else now)


# Probes: packets of several sizes sent to another host over separate connections, to find the sizes that its kernel acknowledges.
#
# The other process need not read them: a kernel acknowledges data for a listening socket.

PROBE_S = 1.7
_SIZES = (576, 576, 1000, 1200, 1280, 1320, 1360, 1400, 1440)  # packet sizes in bytes; the largest that the route allows is added
_FULL = (0, 0, 0)
_JUMBO = (2000, 4000, 8000)
_HEADERS = {socket.AF_INET: 40, socket.AF_INET6: 60}
_TIMESTAMPS = 12


class ProbeResult(msgspec.Struct, frozen=True):
    """The packet sizes in bytes that passed and that failed, over established connections."""

    passed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def connected(self) -> bool:
        """Return whether the other kernel answered at all."""
        return bool(self.passed or self.failed)

    @property
    def limit(self) -> int | None:
        """Return the largest size that passes, if all larger sizes fail and there are at least two of them; else None."""
        if not self.passed or len(self.failed) < 2 or max(self.passed) >= min(self.failed):
            return None
        return max(self.passed)


class _Attempt:
    """One connection that sends one packet."""

    def __init__(self, address: str, port: int, size: int) -> None:
        self.size = size
        self.connected = self.passed = self.over = False
        self._sent = 0
        self.socket = tcp_socket(address, socket.SOCK_NONBLOCK)
        self._headers = _HEADERS[self.socket.family]
        if size:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size - self._headers)
        if self.socket.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
            self.over = True

    def step(self) -> None:
        """Continue as far as the kernel allows without blocking."""
        if self.over:
            return
        info = tcp_info(self.socket.fileno())
        # the other end closed it after reading, or refused it
        if info is None or self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.passed = self._sent > 0
            self.over = True
        elif info.state == _ESTABLISHED and not self._sent:
            self.connected = True
            self.size = min(self.size or info.pmtu, info.pmtu, info.snd_mss + self._headers + _TIMESTAMPS)
            self._sent = self.socket.send(b"\0" * info.snd_mss)
        elif self._sent and info.acked_bytes >= self._sent:
            self.passed = self.over = True


class Probe:
    """A test of packet sizes to an address and port. It never blocks: call `step` repeatedly until it returns the result."""

    def __init__(self, address: str, port: int) -> None:
        self._until = time.monotonic() + PROBE_S
        self._attempts: list[_Attempt] = []
        for size in (*_SIZES, *_JUMBO, *_FULL):
            try:
                self._attempts.append(_Attempt(address, port, size))
            except OSError:
                continue

    def step(self) -> ProbeResult | None:
        """Continue; return the result once it is known, None before."""
        for attempt in self._attempts:
            try:
                attempt.step()
            except OSError:
                attempt.over = True
        if time.monotonic() < self._until and not all(attempt.over for attempt in self._attempts):
            return None
        passed = sorted({attempt.size for attempt in self._attempts if attempt.passed})
        failed = sorted(attempt.size for attempt in self._attempts if attempt.connected and not attempt.passed)
        self.close()
        return ProbeResult(tuple(passed), tuple(failed))

    def close(self) -> None:
        """Close the connections at once."""
        for attempt in self._attempts:
            attempt.socket.close()


# The fault of the path between two hosts, from the connections of both ends and from probes.

_FEWEST_LOST = 3
_MOST_LOST = 0.7  # share of the packets: a path that loses more is blocked, not lossy
_CLEARLY_MORE = 2.0  # times as many packets are lost in the faulty direction: in the other one only acknowledgements are lost
_RECENT_MS = 2500  # longer than the interval of a second between two reports


class PathProblem(Enum):
    """The problem of a path, the most certain first."""

    LOOPBACK = "loopback"
    MTU = "mtu"
    LOSS = "loss"
    ONE_WAY = "one way"
    STALLED = "stalled"


class PathFault(Fact, frozen=True):
    """Packets from one host to another are lost, or packets of some sizes are. For LOOPBACK both are the same host."""

    problem: PathProblem
    source: str
    target: str
    limit_bytes: int = 0  # the largest packet that passes (MTU)
    packet_bytes: int = 0  # the largest that is sent
    retransmitted: int = 0  # segments since the last progress
    sent: int = 0  # segments since the last progress
    retransmits: int = 0  # consecutive timeouts of one segment
    stalled: int = 0  # connections with such a segment
    direction_known: bool = True  # False if the packets may be lost in the other direction instead, or in both

    def render(self) -> str:
        """Return the problem and what to check."""
        if self.problem is PathProblem.LOOPBACK:
            return (
                f"the loopback interface of {self.source} is down: the host cannot reach 127.0.0.1 or its own addresses; "
                "run `ip link set lo up` there"
            )
        way = f"from {self.source} to {self.target}"
        path = way if self.direction_known else f"between {self.source} and {self.target}"
        if self.problem is PathProblem.MTU:
            return f"packets above {self.limit_bytes} bytes do not pass {way}: check the MTU of both hosts and of the switches between them"
        if self.problem is PathProblem.LOSS:
            share = f" ({100 * self.retransmitted / self.sent:.0f} %)" if self.sent else ""
            counts = f"{self.retransmitted} of {self.sent} were retransmitted{share}"
            return f"packets {path} are lost: {counts}; check cables, optics and switch queues"
        if self.problem is PathProblem.ONE_WAY:
            return f"packets {way} do not arrive, although packets from {self.target} to {self.source} do: check this path for drops"
        return (
            f"the path {path} drops packets: a packet of up to {self.packet_bytes} bytes was retransmitted {self.retransmits} times "
            "and is not acknowledged; check its links and its MTU"
        )


class PathEvidence(msgspec.Struct, frozen=True):
    """The evidence about paths by (source, target) host names: reports and probe results."""

    directions: Mapping[tuple[str, str], PathReport] = msgspec.field(default_factory=dict)
    probes: Mapping[tuple[str, str], ProbeResult] = msgspec.field(default_factory=dict)
    answering: Collection[str] = ()  # the hosts with ranks that reply
    loopback_down: Sequence[str] = ()  # the hosts whose loopback interface is down

    @property
    def suspects(self) -> list[tuple[str, str]]:
        """Return the directions in which packets are lost, the worst first."""
        suspects = [path for path, report in self.directions.items() if report.stalled or report.retransmitted >= _FEWEST_LOST]
        return sorted(suspects, key=lambda path: (-self.directions[path].stalled, -self.directions[path].retransmitted, path))

    def fault(self) -> PathFault | None:
        """Return the most certain problem of any path; None if no packet is lost."""
        if self.loopback_down:
            return PathFault(PathProblem.LOOPBACK, self.loopback_down[0], self.loopback_down[0])
        order = list(PathProblem)
        faults = [self._fault_of(*path, self.directions[path]) for path in self.suspects]
        return min(filter(None, faults), key=lambda fault: order.index(fault.problem), default=None)

    def _fault_of(self, source: str, target: str, report: PathReport) -> PathFault | None:
        probe = self.probes.get((source, target), ProbeResult())
        sends_back = report.received_ms < _RECENT_MS
        answers = target in self.answering
        # Where some packets pass, as many acknowledgements may be lost on the way back.
        blocked = (source, target) in self.probes and not probe.connected
        lost = report.retransmitted - report.stalled * report.retransmits  # retries of one packet do not count
        if probe.limit is not None:
            problem = PathProblem.MTU
        elif lost >= _FEWEST_LOST and report.retransmitted <= _MOST_LOST * report.sent:
            problem = PathProblem.LOSS
        elif report.stalled and not probe.connected and sends_back and not answers:
            problem = PathProblem.ONE_WAY
        elif report.stalled:
            problem = PathProblem.STALLED
        else:
            return None
        is_direction_known = True
        if problem is PathProblem.STALLED:
            is_direction_known = blocked and (sends_back or answers)
        elif problem is PathProblem.LOSS:  # of a direction that loses less, acknowledgements may be lost, and the news that they were
            is_direction_known = self._lost_share(source, target) >= _CLEARLY_MORE * self._lost_share(target, source)
        return PathFault(
            problem=problem,
            source=source,
            target=target,
            limit_bytes=probe.limit or 0,
            packet_bytes=report.packet_bytes,
            retransmitted=report.retransmitted,
            sent=report.sent,
            retransmits=report.retransmits,
            stalled=report.stalled,
            direction_known=is_direction_known,
        )

    def _lost_share(self, source: str, target: str) -> float:
        """Return the share of the packets of a direction that were retransmitted; 0 without a report."""
        report = self.directions.get((source, target))
        return report.retransmitted / report.sent if report and report.sent else 0.0


def directions(reports: Iterable[tuple[str, PathReport]], host_of: Mapping[str, str]) -> dict[tuple[str, str], PathReport]:
    """Return the combined reports by (source, target), from (host, report) pairs; host_of: hosts by address."""
    by_direction: dict[tuple[str, str], list[PathReport]] = {}
    for source, report in reports:
        target = host_of.get(report.peer)
        if target and target != source:
            by_direction.setdefault((source, target), []).append(report)
    return {direction: _combined(path_reports) for direction, path_reports in by_direction.items()}


def _combined(reports: Sequence[PathReport]) -> PathReport:
    return PathReport(
        peer=reports[0].peer,
        stalled=sum(report.stalled for report in reports),
        retransmits=max(report.retransmits for report in reports),
        packet_bytes=max(report.packet_bytes for report in reports),
        retransmitted=sum(report.retransmitted for report in reports),
        sent=sum(report.sent for report in reports),
        received_ms=min(report.received_ms for report in reports),
    )
