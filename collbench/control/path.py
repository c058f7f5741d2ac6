"""TCP_INFO of this process's own connections, a library's too: what each has sent, lost and not seen acknowledged.

Source of the layout: struct tcp_info, include/uapi/linux/tcp.h. Older kernels return a shorter structure; what it lacks reads 0.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

_ESTABLISHED, _SYN_SENT = 1, 2
_STATES = frozenset({_ESTABLISHED, _SYN_SENT})
_LAYOUT = struct.Struct("=BBBBBBBB" + "I" * 24 + "QQQQ" + "I" * 6 + "QQQQ" + "II" + "QQ" + "III")
_STATE, _RETRANSMITS, _SND_MSS, _UNACKED, _LOST = 0, 2, 10, 12, 14
_LAST_RECEIVED, _PMTU, _TOTAL_RETRANS = 19, 21, 31
_BYTES_ACKED, _DATA_SEGMENTS_OUT, _OUT_OF_ORDER = 34, 41, 52
_MOST_CONNECTIONS = 4096  # a process with more is read in part
_MOST_PEERS = 64
_STALLED_RETRANSMITS = 2
_QUIET_S = 1.0  # without progress: from then on retransmissions belong to the stall
_EVERY_S = 0.5
_LARGEST = 2**53


@dataclass(frozen=True)
class TcpInfo:
    """What the kernel knows of one connection, as its sender.

    retransmits          consecutive timeouts of the oldest segment in flight
    unacked, lost        segments in flight; those that the kernel takes for lost
    snd_mss, pmtu        bytes of the largest segment, and of the packet around it
    retransmitted, sent  segments, since the connection was made
    acked_bytes          acknowledged by the other kernel
    last_received_ms     since the last new data came
    out_of_order         packets that came while an earlier one was missing (Linux 5.4 or newer)
    """

    state: int = 0
    retransmits: int = 0
    unacked: int = 0
    lost: int = 0
    snd_mss: int = 0
    pmtu: int = 0
    retransmitted: int = 0
    sent: int = 0
    acked_bytes: int = 0
    last_received_ms: int = 0
    out_of_order: int = 0

    @classmethod
    def parse(cls, data: bytes) -> TcpInfo:
        """Return the facts in what getsockopt(TCP_INFO) returned."""
        words = _LAYOUT.unpack(data[: _LAYOUT.size].ljust(_LAYOUT.size, b"\0"))
        return cls(
            words[_STATE], words[_RETRANSMITS], words[_UNACKED], words[_LOST], words[_SND_MSS], words[_PMTU], words[_TOTAL_RETRANS],
            words[_DATA_SEGMENTS_OUT], words[_BYTES_ACKED], words[_LAST_RECEIVED], words[_OUT_OF_ORDER],
        )  # fmt: skip

    @property
    def connected(self) -> bool:
        """Whether the connection is established."""
        return self.state == _ESTABLISHED

    @property
    def stalled(self) -> bool:
        """Whether the oldest segment in flight has timed out repeatedly."""
        return self.unacked > 0 and self.retransmits >= _STALLED_RETRANSMITS

    @property
    def lossy(self) -> bool:
        """Whether packets of either direction were lost, as far as this end can see."""
        return self.retransmitted > 0 or self.out_of_order > 0


@dataclass(frozen=True)
class PathReport:
    """What the connections of one rank to one address show.

    stalled              how many are stalled; retransmits: the most consecutive timeouts among them
    packet_bytes         the largest packet that they send
    retransmitted, sent  segments, since nothing has moved
    received_ms          since data came from there last
    """

    peer: str
    stalled: int
    retransmits: int
    packet_bytes: int
    retransmitted: int
    sent: int
    received_ms: int

    def as_json(self) -> list[Any]:
        """Return the report as the wire carries it."""
        return list(astuple(self))


def path_report(value: Any) -> PathReport | None:
    """Return the report in a JSON value; None for anything else."""
    if not (isinstance(value, list) and len(value) == 7 and isinstance(value[0], str)):
        return None
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < _LARGEST for one in value[1:]):
        return None
    return PathReport(*value)


def tcp_info(descriptor: int) -> TcpInfo | None:
    """Return what the kernel knows of a connection; None for what is not a TCP connection."""
    found = _read(descriptor)
    return found[1] if found else None


def _read(descriptor: int) -> tuple[str, TcpInfo] | None:
    """Return (the address at the other end, the facts). The descriptor stays its owner's: it is neither copied nor closed."""
    try:
        one = socket.socket(fileno=descriptor)
    except (OSError, ValueError):
        return None
    try:
        return _facts(one)
    except OSError:
        return None
    finally:
        one.detach()


def _facts(one: socket.socket) -> tuple[str, TcpInfo] | None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return None
    info, peer = TcpInfo.parse(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)), _address(one.getpeername())
    return (peer, info) if info.state in _STATES and peer != _address(one.getsockname()) else None


def _address(name: Any) -> str:
    return str(name[0]).removeprefix("::ffff:").partition("%")[0]


def own_connections() -> dict[str, tuple[str, TcpInfo]]:
    """Return by socket ("socket:[inode]") the other end's address and the facts of this process's TCP connections to other hosts."""
    found: dict[str, tuple[str, TcpInfo]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd")[:_MOST_CONNECTIONS]:  # noqa: PTH208 - Path.iterdir makes a Path per name
            with suppress(OSError, ValueError):
                link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
                one = _read(int(name)) if link.startswith("socket:") else None
                if one and not one[0].startswith("127.") and one[0] != "::1":
                    found[link] = one
    return found


def reports(now: Mapping[str, tuple[str, TcpInfo]], before: Mapping[str, tuple[str, TcpInfo]]) -> list[PathReport]:
    """Return one report per address, from two readings of the same process's connections."""
    by_peer: dict[str, list[tuple[TcpInfo, TcpInfo]]] = {}
    for name, (peer, info) in now.items():
        by_peer.setdefault(peer, []).append((info, before.get(name, (peer, TcpInfo()))[1]))
    return [_report(peer, pairs) for peer, pairs in list(by_peer.items())[:_MOST_PEERS]]


def _report(peer: str, pairs: Iterable[tuple[TcpInfo, TcpInfo]]) -> PathReport:
    infos = list(pairs)
    stalled = [info for info, _ in infos if info.stalled]
    return PathReport(
        peer, len(stalled), max((info.retransmits for info in stalled), default=0), max(info.pmtu for info, _ in infos),
        sum(max(0, info.retransmitted - old.retransmitted) for info, old in infos),
        sum(max(0, info.sent - old.sent) for info, old in infos), min(info.last_received_ms for info, _ in infos),
    )  # fmt: skip


class ConnectionMonitor:
    """Remembers how this process's connections were when it stopped moving. Used by one thread.

    lossy  whether a connection to another host had lost packets in such a pause
    """

    def __init__(self) -> None:
        self.lossy = False
        self._before: dict[str, tuple[str, TcpInfo]] | None = None
        self._looked = 0.0

    def note(self, still_s: float, now: float) -> None:
        """Read the connections while nothing moves, `still_s` seconds by now. `reports` compares with the first reading."""
        if now - self._looked < _EVERY_S:
            return
        self._looked = now
        if still_s < _QUIET_S:
            self._before = None
        else:
            found = own_connections()
            self.lossy = self.lossy or any(info.lossy for _, info in found.values())
            self._before = self._before if self._before is not None else found

    def reports(self) -> list[PathReport]:
        """Return what the connections show now, one report per address."""
        now = own_connections()
        return reports(now, self._before if self._before is not None else now)
