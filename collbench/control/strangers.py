"""Connections that did not belong to this launch: counted, with their addresses, in bounded memory, for one sentence to the user.

When all ranks have joined and strangers come in a flood, the port is closed to new connections: the kernel drops them, so that the
measurement is not disturbed. Before that, `pending` limits them.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from collbench.control import packet_filter

_MOST = 64  # addresses that are remembered
_SHOWN = 3
_LOOK_S = 1.0
_FLOOD = 1000
_CLOSING = frozenset({"04", "05", "06", "08", "09", "0B"})  # TCP_FIN_WAIT1 … TCP_CLOSING, include/net/tcp_states.h


class Strangers:
    """Refused connections.

    count      how many
    addresses  where they came from, as far as known
    slow       by address how many ended because their handshake took too long
    held_back  addresses that held too many connections without joining: new ones from there were dropped for a while
    members    addresses of the launch's own ranks: a slow handshake from there is a slow rank, and not reported
    deaf       whether new connections are dropped
    """

    def __init__(self) -> None:
        self.count = 0
        self.slow: Counter[str] = Counter()
        self.members: set[str] = set()
        self.held_back: dict[str, None] = {}
        self.deaf = False
        self._look_at = 0.0
        self.addresses: dict[str, None] = {}

    def note(self, address: str | None, port: int | None = None) -> None:
        """One more was refused. Without its address, those of connections that were just closed at our `port` are noted, now and then."""
        self.count += 1
        if len(self.addresses) < _MOST:
            self.addresses |= dict.fromkeys([address] if address else self._closing(port))

    def note_slow(self, address: str) -> None:
        """One more did not finish its handshake in time."""
        if len(self.slow) < _MOST or address in self.slow:
            self.slow[address] += 1

    def _closing(self, port: int | None) -> list[str]:
        """A flood leaves thousands of lines in the kernel's table: it is read once a second at most."""
        if port is None or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_S
        return closing(port)

    def flooded(self, waiting: int, listening: Iterable[int]) -> None:
        """Close the sockets `listening` to new connections in a flood; `waiting`: connections that have not identified themselves yet."""
        if self.count + waiting > _FLOOD and not self.deaf:
            with suppress(OSError):
                for descriptor in listening:
                    packet_filter.drop_all(descriptor)
                self.deaf = True

    def sentence(self) -> str | None:
        """Return a sentence for the user; None if no connection was refused."""
        slow = {address: count for address, count in self.slow.items() if address not in self.members}
        count, addresses = self.count + sum(slow.values()), {**self.addresses, **slow}
        if not count:
            return None
        shown = ", ".join([*addresses][:_SHOWN]) + (", …" if len(addresses) > _SHOWN else "")
        what = "1 connection that was" if count == 1 else f"{count} connections that were"
        return (
            f"rank 0 refused {what} not of this launch (no secret, another one, or no message of ours), from "
            f"{shown or 'an address that was gone before it could be read'}{', and stopped listening' if self.deaf else ''}"
            f"{self._limits()}: "
            "see what runs there; a second launch needs a MASTER_PORT of its own"
        )

    def _limits(self) -> str:
        if not self.held_back:
            return ""
        return f"; new connections from {', '.join([*self.held_back][:_SHOWN])} were held back for a while, because there were too many"


def peer_of(descriptor: int) -> str | None:
    """The address at the other end of a connection that a library holds; None where it is gone already."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            found = copy.getpeername()
    except OSError:
        return None
    return str(found[0]).removeprefix("::ffff:") if isinstance(found, tuple) else "this host"


def closing(port: int) -> list[str]:
    """The addresses at the other end of this host's TCP connections at `port` that are being closed (proc(5), /proc/net/tcp)."""
    found = dict[str, None]()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                _, ours, theirs, state, *_ = line.split()
                if state in _CLOSING and int(ours.rpartition(":")[2], 16) == port:
                    found[_address(theirs.rpartition(":")[0])] = None
    return list(found)


def _address(text: str) -> str:
    """An address as the kernel prints it: words of 32 bits, each in the machine's byte order."""
    words = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    shown = socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)
    return shown.removeprefix("::ffff:")
