"""The addresses by which this host and rank 0's host reach each other."""

from __future__ import annotations

import time

from collbench.addresses import Family, family_of, is_loopback, resolve, route_to
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo

_ASK_AGAIN_S = 0.2


def routes_to(meeting: str) -> tuple[tuple[str, str], ...]:
    """Return (this host's address, rank 0's address), one pair for each address family, IPv4 first; empty for a meeting on this host.

    Raises UsageError where rank 0's host does not resolve, or cannot be routed to.
    """
    if not meeting.startswith("tcp://"):
        return ()
    host = host_of(meeting)
    addresses = resolve(host)
    if not addresses:
        raise UsageError(f"rank 0's host '{host}' does not resolve to an address on this host: set MASTER_ADDR to its address")
    routes: dict[Family, tuple[str, str]] = {}
    for address in addresses:
        own = route_to(address)
        if own:
            routes.setdefault(family_of(address), (own, address))
    if not routes:
        raise UsageError(f"there is no route from this host to rank 0's host '{host}' ({', '.join(addresses)}): set MASTER_ADDR")
    return tuple(routes.values())


def hub_hosts(info: LaunchInfo) -> list[str]:
    """Return the addresses at which this host may find rank 0, the most likely one first; its name where that does not resolve."""
    try:
        found = [hub for _, hub in routes_to(info.meeting)]
    except UsageError:
        found = list(resolve(host_of(info.meeting))) or [host_of(info.meeting)]
    return found[:1] if all(map(is_loopback, found)) else found


def host_of(meeting: str) -> str:
    """Return the host of a meeting "tcp://host"."""
    return meeting.removeprefix("tcp://").strip("[]")


def await_name(meeting: str, patience_s: float) -> bool:
    """Wait until the host of a meeting resolves, and return whether it does: the name of a pod appears only seconds after its start."""
    if not meeting.startswith("tcp://"):
        return True
    host, end = host_of(meeting), time.monotonic() + patience_s
    while not resolve(host):
        if time.monotonic() >= end:
            return False
        time.sleep(_ASK_AGAIN_S)
    return True
