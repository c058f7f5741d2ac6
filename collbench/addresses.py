"""Host names and IP addresses of both families: resolution, the addresses of this host, listening sockets, and where rank 0 listens."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from enum import Enum

import msgspec

LOOPBACK = "127.0.0.1"
_MOST_ADDRESSES = 8


class Family(Enum):
    """An address family, by the name that users read."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


def family_of(address: str) -> Family:
    """Return the family of a numeric address."""
    return Family.IPV6 if ":" in address else Family.IPV4


def families_of(addresses: Iterable[str]) -> frozenset[Family]:
    """Return the families of numeric addresses."""
    return frozenset(map(family_of, addresses))


def is_loopback(address: str) -> bool:
    """Return whether a numeric address never leaves its host."""
    return address.startswith("127.") or address == "::1"


def is_link_local(address: str) -> bool:
    """Return whether a numeric address is valid on one link only, so that it needs an interface."""
    return address.startswith(("169.254.", "fe80:"))


def is_numeric(host: str) -> bool:
    """Return whether a host is given as an address, not as a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def bracketed(address: str) -> str:
    """Return an address or name as it is written before a port: IPv6 addresses in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def resolve(host: str) -> tuple[str, ...]:
    """Return the addresses of a host, IPv4 first; empty if it does not resolve. Link-local addresses are included only without others."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError, ValueError):
        return ()
    addresses = sorted(dict.fromkeys(str(entry[4][0]) for entry in entries), key=lambda address: family_of(address).value)
    return tuple(address for address in addresses if not is_link_local(address)) or tuple(addresses)


def own_addresses() -> tuple[str, ...]:
    """Return the addresses at which other hosts may reach this one, eight at most: neither loopback nor link-local."""
    import psutil

    found = [one.address for each in psutil.net_if_addrs().values() for one in each if one.family in (socket.AF_INET, socket.AF_INET6)]
    return tuple(address for address in found if not is_loopback(address) and not is_link_local(address))[:_MOST_ADDRESSES]


def is_loopback_up() -> bool:
    """Return whether the loopback interface is up, or unknown. Without it this host cannot reach its own addresses."""
    import psutil

    loopback = psutil.net_if_stats().get("lo")
    return loopback is None or loopback.isup


def interfaces() -> tuple[str, ...]:
    """Return the names of this host's interfaces that have an IP address."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return tuple(name for name, entries in psutil.net_if_addrs().items() if any(entry.family in families for entry in entries))


def is_own(address: str) -> bool:
    """Return whether this host has the address."""
    try:
        listen_at(address).close()
    except OSError:
        return False
    return True


def route_to(address: str) -> str | None:
    """Return this host's address on the route to another address; None without a route. Sends nothing."""
    with socket.socket(_number(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def listen_at(address: str, backlog: int | None = None, port: int = 0) -> socket.socket:
    """Return a TCP socket that listens at one address of this host, on this port, or on a free one (0). Raises OSError."""
    return socket.create_server((address, port), family=_number(address), backlog=backlog)


def free_port(address: str) -> int:
    """Return a TCP port of this address that is free now, for a program that does not accept an open socket. Raises OSError."""
    with listen_at(address) as listener:
        return int(listener.getsockname()[1])


def tcp_socket(address: str, flags: int = 0) -> socket.socket:
    """Return a TCP socket of the address's family, not connected."""
    return socket.socket(_number(address), socket.SOCK_STREAM | flags)


def _number(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if family_of(address) is Family.IPV6 else socket.AF_INET


class Scope(Enum):
    """The reason for the addresses at which rank 0 listens."""

    GIVEN = "at the addresses of the given host"
    NAME_IS_LOOPBACK = "the name is this host's, but resolves to loopback here"
    NOT_OWN = "the given name is not an address of this host"


class HubAddresses(msgspec.Struct, frozen=True):
    """The addresses at which rank 0 listens for ranks on other hosts.

    host       rank 0's host as the launcher or the user named it
    resolved   its addresses as this host resolves it
    listens    the addresses that rank 0 binds; empty: every address of its host
    """

    host: str
    resolved: tuple[str, ...]
    listens: tuple[str, ...]

    @property
    def scope(self) -> Scope:
        """Return the reason for these addresses."""
        if self.listens:
            return Scope.GIVEN
        return Scope.NAME_IS_LOOPBACK if any(map(is_loopback, self.resolved)) else Scope.NOT_OWN

    @property
    def loopback_only(self) -> bool:
        """Return whether no other host can connect."""
        return bool(self.listens) and all(map(is_loopback, self.listens))


def hub_addresses(host: str) -> HubAddresses:
    """Return where rank 0 listens on this host, if `host` is this host.

    /etc/hosts of Debian and Ubuntu maps a host's own name to 127.0.1.1. Other hosts resolve the name to an address that this
    host cannot determine, so rank 0 then listens at every address. A loopback address that the user gave is used unchanged.
    """
    resolved = resolve(host)
    own = tuple(address for address in resolved if is_own(address))
    loopback = any(map(is_loopback, resolved))
    if loopback:
        return HubAddresses(host, resolved, own[:1] if is_numeric(host) or host == "localhost" else ())
    return HubAddresses(host, resolved, own)
