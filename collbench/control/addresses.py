"""The addresses of the control plane: the ports of a launch, rank 0's addresses, and the socket of each node's ranks."""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from collbench.addresses import (
    LOOPBACK,
    Family,
    HubAddresses,
    Scope,
    family_of,
    is_loopback,
    own_addresses,
    resolve,
    route_to,
    tcp_socket,
)
from collbench.control.security import Secret
from collbench.errors import RunFailed, UsageError
from collbench.launch import mpi
from collbench.launch.info import LaunchInfo, meeting_at
from collbench.launch.mpi import mpi_mismatch, size_disagrees

# Launches with MPI only: rank 0's address and a new token are broadcast over the communicator.


def with_meeting(info: LaunchInfo) -> LaunchInfo:
    """Return the launch with rank 0's address and the token of its secret. Starts MPI with thread level single.

    All ranks must call it. Raises RunFailed before MPI_Init if MPI and the launcher disagree. Raises UsageError if rank 0's
    host has no address that all hosts can reach.
    """
    MPI = mpi.load()  # noqa: N806 (mpi4py's name of the module)
    mismatch = mpi_mismatch(MPI.Get_library_version(), info, os.environ)
    if mismatch:
        raise RunFailed(f"{mismatch}; or set MASTER_ADDR to rank 0's host: then the ranks connect without MPI")
    mpi.initialise(MPI)
    disagrees = size_disagrees(MPI.COMM_WORLD.Get_size(), info)
    if disagrees:
        raise RunFailed(disagrees)
    world = MPI.COMM_WORLD
    here = socket.gethostname()
    local = own_addresses()
    outwards = (route_to("192.0.2.1"), route_to("2001:db8::1"))  # documentation networks (RFC 5737, RFC 3849); no packet is sent
    likely = [address for address in (*resolve(here), *outwards) if address in local]  # those of its name, then those of its routes
    host, addresses, token = world.bcast((here, list(dict.fromkeys([*likely, *local])), secrets.token_hex(16)), root=0)
    reached = world.allgather(None if here == host else [address for address in addresses if _reaches(address)])
    away = [reached_there for reached_there in reached if reached_there is not None]
    common = [address for address in addresses if all(address in reached_there for reached_there in away)]
    if away and not common:
        raise UsageError(
            f"rank 0's host {host} has no address that all other hosts can reach (it has {', '.join(addresses) or 'only loopback'}): "
            "set MASTER_ADDR to its address in the network between the hosts, and pass MASTER_ADDR to all ranks"
        )
    return replace(info, meeting=meeting_at(common[0] if common else LOOPBACK), token=str(token), secret="token")


def finalise() -> None:
    """Finalize MPI, for a command that ends without a communicator of its own."""
    from mpi4py import MPI

    mpi.finalise(MPI)


def _reaches(address: str) -> bool:
    """Return whether this host has a route to `address`. An address of this host, such as a bridge's, does not count."""
    source = route_to(address)
    return source is not None and source != address and not is_loopback(source)


# Whether a host is up. Its kernel accepts or refuses a connection even if the host's processes are stopped.

_PORT = 9  # the discard port, usually unused: a host that is up refuses the connection at once


def answering(addresses: Iterable[str], within_s: float) -> str | None:
    """Return the first address with a host that accepts or refuses a connection within `within_s` seconds; None if none does."""
    answers = (0, errno.ECONNREFUSED)
    end = time.monotonic() + within_s
    with ExitStack() as stack, selectors.DefaultSelector() as waiting, suppress(OSError):
        for address in addresses:
            attempt = stack.enter_context(tcp_socket(address, socket.SOCK_NONBLOCK))
            if attempt.connect_ex((address, _PORT)) in answers:
                return address
            waiting.register(attempt, selectors.EVENT_WRITE, address)
        while waiting.get_map() and time.monotonic() < end:
            for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                tried: Any = key.fileobj
                if tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in answers:
                    return str(key.data)
                waiting.unregister(tried)
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
    """Wait until the host name in the address `meeting` resolves. Return whether it does within `patience_s` seconds.

    The name of a pod may appear seconds after the pod starts.
    """
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
_FIRST, _COUNT, _APART = 20000, 12000, 1237  # below the kernel's range of ephemeral ports
_SHORT = 24  # characters of the hash in the socket's name, which other users cannot guess


def candidate_ports(secret: Secret, purpose: str = "ports") -> list[int]:
    """Return the ports that all ranks of a launch derive from its secret for one purpose."""
    seed = int.from_bytes(secret.derived(purpose)[:8], "big")
    return [_FIRST + (seed + _APART * k) % _COUNT for k in range(_CANDIDATES)]


def node_place(info: LaunchInfo, secret: Secret) -> str:
    """Return the address at which the first rank of this node listens for the node's other ranks.

    It is an abstract Unix socket: it has no file, and disappears with its process.
    """
    if info.meeting.startswith("ipc://"):
        return info.meeting
    return f"ipc://@collbench-{secret.derived(f'node {socket.gethostname()} {info.node}').hex()[:_SHORT]}"


def hub_places(info: LaunchInfo, secret: Secret) -> list[str]:
    """Return the addresses at which rank 0 may listen for other nodes, the most likely first.

    They contain the name of rank 0's host if it does not resolve.
    """
    try:
        addresses = [hub for _, hub in routes_to(info.meeting)]
    except UsageError:
        addresses = list(resolve(host_of(info.meeting))) or [host_of(info.meeting)]
    if all(map(is_loopback, addresses)):
        addresses = addresses[:1]
    ports = [info.port] if info.port else candidate_ports(secret)
    return [f"{meeting_at(address)}:{port}" for port in ports for address in addresses]


def open_listener(hub: HubAddresses) -> str | None:
    """Return the sentence that rank 0 listens at every address of its host; None if it listens only at those of its name."""
    if hub.scope is Scope.GIVEN:
        return None
    why = f"'{hub.host}' is not one of its addresses"
    if hub.scope is Scope.NAME_IS_LOOPBACK:
        why = f"its name '{hub.host}' resolves to loopback there ({', '.join(hub.resolved)})"
    return f"rank 0 listens at every address of its host, because {why}; set MASTER_ADDR to choose one address"
