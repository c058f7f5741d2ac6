"""Who knocked without being of this launch: counted, with the addresses, in bounded memory, for one sentence to the user.

When everybody is in and strangers come in a flood, the port goes deaf: the kernel then drops who knocks, and the measurement is left alone.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MOST = 64  # addresses that are remembered
_SHOWN = 3
_LOOK_S = 1.0
_FLOOD = 1000
_SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction of classic BPF: return 0 bytes of the packet (include/uapi/linux/filter.h)
_CLOSING = frozenset({"04", "05", "06", "08", "09", "0B"})  # TCP_FIN_WAIT1 … TCP_CLOSING, include/net/tcp_states.h


class Strangers:
    """count: refused connections; addresses: where they came from, as far as that could be told; deaf: whether nobody is heard any more."""

    def __init__(self) -> None:
        self.count = 0
        self.deaf = False
        self._look_at = 0.0
        self.addresses: dict[str, None] = {}

    def note(self, address: str | None, port: int | None = None) -> None:
        """One more was refused. Without its address, those of connections that were just closed at our `port` are noted, now and then."""
        self.count += 1
        if len(self.addresses) < _MOST:
            self.addresses |= dict.fromkeys([address] if address else self._closing(port))

    def _closing(self, port: int | None) -> list[str]:
        """A flood leaves thousands of lines in the kernel's table: it is read once a second at most."""
        if port is None or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK_S
        return closing(port)

    def flooded(self, waiting: int, listening: Iterable[int]) -> None:
        """Closes the sockets `listening` to new connections in a flood; `waiting`: connections that have not identified themselves yet."""
        if self.count + waiting > _FLOOD and not self.deaf:
            with suppress(OSError):
                for descriptor in listening:
                    deafen(descriptor)
                self.deaf = True

    def sentence(self) -> str | None:
        """What the user should know; None where nobody was refused."""
        if not self.count:
            return None
        shown = ", ".join([*self.addresses][:_SHOWN]) + (", …" if len(self.addresses) > _SHOWN else "")
        what = "1 connection that was" if self.count == 1 else f"{self.count} connections that were"
        return (
            f"rank 0 refused {what} not of this launch (no secret, another one, or no message of ours), from "
            f"{shown or 'an address that was gone before it could be read'}{', and stopped listening' if self.deaf else ''}: "
            "see what runs there; a second launch needs a MASTER_PORT of its own"
        )


def peer_of(descriptor: int) -> str | None:
    """The address at the other end of a connection that a library holds; None where it is gone already."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            found = copy.getpeername()
    except OSError:
        return None
    return str(found[0]).removeprefix("::ffff:") if isinstance(found, tuple) else "this host"


def deafen(descriptor: int) -> None:
    """The kernel drops whoever wants to connect to this listening socket from now on; who is connected stays. Raises OSError."""
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


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
