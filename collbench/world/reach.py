"""Whether a host is there at all: its kernel acknowledges what it is sent, and answers a connection, whatever its processes do."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterable

from collbench.addresses import tcp_socket

_INFO_BYTES = 104
_UNACKED = struct.Struct("=24xI")  # struct tcp_info, linux/tcp.h: eight bytes, four words, then tcpi_unacked
_PORT = 9  # where nobody listens: a host that is there refuses at once


def unacknowledged(descriptor: int) -> bool:
    """Whether something that was sent on this TCP connection has not been acknowledged by the kernel at its other end.

    A stopped process's kernel acknowledges; one that cannot be reached does not. False for what is no TCP connection.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return False
    return len(told) >= _UNACKED.size and _UNACKED.unpack_from(told)[0] > 0


def answering(addresses: Iterable[str], within_s: float) -> str | None:
    """The first of these addresses whose host accepts or refuses a connection within so many seconds; None where none does."""
    knocking = {}
    try:
        for address in addresses:
            knock = tcp_socket(address, socket.SOCK_NONBLOCK)
            knocking[knock.fileno()] = knock, address
            if knock.connect_ex((address, _PORT)) in (0, errno.ECONNREFUSED):
                return address
        return _first(knocking, time.monotonic() + within_s)
    except OSError:
        return None
    finally:
        for knock, _ in knocking.values():
            knock.close()


def _first(knocking: dict[int, tuple[socket.socket, str]], until: float) -> str | None:
    poll, left = select.poll(), len(knocking)
    for descriptor in knocking:
        poll.register(descriptor, select.POLLOUT)
    while left and (more := until - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(int(more * 1000) + 1):
            knock, address = knocking[descriptor]
            if knock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
                return address
            poll.unregister(descriptor)
            left -= 1
    return None
