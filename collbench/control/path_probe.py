"""Packets of several sizes sent to another host over connections of their own: which sizes its kernel acknowledges.

The other process need not read them: a kernel acknowledges what comes for a socket that listens.
"""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass

from collbench.control.tcp_info import tcp_info

PROBE_S = 1.7
_SIZES = (576, 576, 1000, 1200, 1280, 1320, 1360, 1400, 1440)  # bytes of a packet; besides these the largest that the route allows
_FULL = (0, 0, 0)
_JUMBO = (2000, 4000, 8000)
_HEADERS = {socket.AF_INET: 40, socket.AF_INET6: 60}
_TIMESTAMPS = 12


@dataclass(frozen=True)
class ProbeResult:
    """Packet sizes in bytes that passed, and those that did not, of connections that were made; `connected`: whether any was."""

    passed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def connected(self) -> bool:
        """Whether the other kernel answered at all."""
        return bool(self.passed or self.failed)

    @property
    def limit(self) -> int | None:
        """The largest size that passes where all larger ones fail, at least two of them; None where sizes do not decide."""
        if not self.passed or len(self.failed) < 2 or max(self.passed) >= min(self.failed):
            return None
        return max(self.passed)


class _Attempt:
    """One connection that sends one packet."""

    def __init__(self, address: str, port: int, size: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._headers = _HEADERS[family]
        self.size = size
        self.connected = self.passed = self.over = False
        self._sent = 0
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if size:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size - self._headers)
        if self.socket.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
            self.over = True

    def step(self) -> None:
        """Go on as far as the kernel allows."""
        if self.over:
            return
        info = tcp_info(self.socket.fileno())
        if info is None or self.socket.getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        ):  # closed by the other side, which read it, or refused
            self.passed, self.over = self._sent > 0, True
        elif info.connected and not self._sent:
            self.connected = True
            self.size = min(self.size or info.pmtu, info.pmtu, info.snd_mss + self._headers + _TIMESTAMPS)
            self._sent = self.socket.send(b"\0" * info.snd_mss)
        elif self._sent and info.acked_bytes >= self._sent:
            self.passed = self.over = True


class Probe:
    """Sends to an address and port. Never blocks: `step` is to be called now and then until it returns the result."""

    def __init__(self, address: str, port: int) -> None:
        self._until = time.monotonic() + PROBE_S
        self._attempts: list[_Attempt] = []
        for size in (*_SIZES, *_JUMBO, *_FULL):
            try:
                self._attempts.append(_Attempt(address, port, size))
            except OSError:
                continue

    def step(self) -> ProbeResult | None:
        """Go on; return the result once it is known, None before."""
        for one in self._attempts:
            try:
                one.step()
            except OSError:
                one.over = True
        if time.monotonic() < self._until and not all(one.over for one in self._attempts):
            return None
        passed = sorted({one.size for one in self._attempts if one.passed})
        failed = sorted(one.size for one in self._attempts if one.connected and not one.passed)
        self.close()
        return ProbeResult(tuple(passed), tuple(failed))

    def close(self) -> None:
        """Close the connections at once."""
        for one in self._attempts:
            one.socket.close()


def listener(address: str) -> socket.socket | None:
    """Return a socket that listens at a free port of this address, where others may send probes; None where that is not possible."""
    try:
        return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=64)
    except OSError:
        return None
