"""The addresses of the control plane: the ports of a launch, rank 0's addresses, and the socket of each node's ranks."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any

from collbench.addresses import (
    Family,
    HubAddresses,
    Scope,
    family_of,
    is_loopback,
    resolve,
    route_to,
    tcp_socket,
)
from collbench.control.security import Secret
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo, meeting_at

# Whether a host is up. Its kernel accepts or refuses a connection even if the host's processes are stopped.

_PORT = 9  # the discard port, usually unused: a host that is up refuses the connection at once


def answering(addresses: Iterable[str], within_s: float) -> str | None:
    """Return the first address with a host that accepts or refuses a connection within `within_s` seconds; None if none does."""
    answers = (0, errno.ECONNREFUSED)
    end = time.monotonic() + within_s
    with ExitStack() as stack, selectors.DefaultSelector() as waiting, suppress(OSError):
        for address in addresses:
            attempt = stack.enter_context(tcp_socket(address, socket.SOCK_NONBLOCK))
            code = attempt.connect_ex((address, _PORT))
            if code in answers:
                return address
            if code == errno.EINPROGRESS:  # any other error is final, such as that of an address without a route
                waiting.register(attempt, selectors.EVENT_WRITE, address)
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                ready: Any = key.fileobj
                if ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in answers:
                    return str(key.data)
                waiting.unregister(ready)
    return None


# The addresses by which this host and rank 0's host reach each other.

_RETRY_S = 0.2


def routes_to(meeting: str) -> tuple[tuple[str, str], ...]:
    """Return (this host's address, rank 0's address) for each address family, IPv4 first; empty if the ranks are on one host.

    Raises UsageError if rank 0's host name does not resolve, or if it cannot be routed to.
    """
    if not meeting.startswith("tcp://"):
        return ()
    host = host_of(meeting)
    addresses = resolve(host)
    if not addresses:
        raise UsageError(f"rank 0's host '{host}' does not resolve to an address on this host: set MASTER_ADDR to its address")
    routes: dict[Family, tuple[str, str]] = {}
    for address in addresses:
        source = route_to(address)
        if source:
            routes.setdefault(family_of(address), (source, address))
    if not routes:
        raise UsageError(f"rank 0's host '{host}' ({', '.join(addresses)}) cannot be reached from this host: no route; set MASTER_ADDR")
    return tuple(routes.values())


def host_of(meeting: str) -> str:
    """Return the host in the address "tcp://host"."""
    return meeting.removeprefix("tcp://").strip("[]")


def await_name(meeting: str, patience_s: float) -> bool:
    """Wait until the host name in the address `meeting` resolves. Return whether it does within `patience_s` seconds."""
    if not meeting.startswith("tcp://"):
        return True
    host = host_of(meeting)
    end = time.monotonic() + patience_s
    while not resolve(host):
        if time.monotonic() >= end:
            return False
        time.sleep(_RETRY_S)
    return True


_CANDIDATES = 8
_PORTS = range(20000, 32000)  # below the kernel's range of ephemeral ports
_PORT_STEP = 1237
_HASH_DIGITS = 24  # of the hash in the socket's name, which other users cannot guess


def candidate_ports(secret: Secret, purpose: str = "ports") -> list[int]:
    """Return the ports that all ranks of a launch derive from its secret for one purpose."""
    seed = int.from_bytes(secret.derived(purpose)[:8], "big")
    return [_PORTS[(seed + _PORT_STEP * k) % len(_PORTS)] for k in range(_CANDIDATES)]


def node_place(info: LaunchInfo, secret: Secret) -> str:
    """Return the address at which the first rank of this node listens for the others: an abstract Unix socket, which has no file."""
    if info.meeting.startswith("ipc://"):
        return info.meeting
    return f"ipc://@collbench-{secret.derived(f'node {socket.gethostname()} {info.node}').hex()[:_HASH_DIGITS]}"


def hub_places(info: LaunchInfo, secret: Secret) -> list[str]:
    """Return the addresses at which rank 0 may listen for other nodes, the most likely first: of its host, or the unresolved name."""
    try:
        addresses = [hub for _, hub in routes_to(info.meeting)]
    except UsageError:
        addresses = list(resolve(host_of(info.meeting))) or [host_of(info.meeting)]
    if all(map(is_loopback, addresses)):
        addresses = addresses[:1]
    ports = [info.port] if info.port else candidate_ports(secret)
    return [f"{meeting_at(address)}:{port}" for port in ports for address in addresses]


def open_listener_note(hub: HubAddresses) -> str | None:
    """Return the sentence that rank 0 listens at every address of its host; None if it listens only at those of its name."""
    if hub.scope is Scope.GIVEN:
        return None
    why = f"'{hub.host}' is not one of its addresses"
    if hub.scope is Scope.NAME_IS_LOOPBACK:
        why = f"its name '{hub.host}' resolves to loopback there ({', '.join(hub.resolved)})"
    return f"rank 0 listens at every address of its host, because {why}; set MASTER_ADDR to choose one address"
