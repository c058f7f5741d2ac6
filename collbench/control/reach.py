"""Whether a host is there at all: its kernel answers a connection, whatever its processes do."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterable

from collbench.addresses import tcp_socket

_PORT = 9  # where nothing listens: a host that is there refuses at once


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
