"""Host names of this launch or allocation as this host resolves them, and what about them decides whether and how ranks meet."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from collbench.addresses import Family, families_of, is_loopback, is_numeric, own_addresses, resolve, route_to
from collbench.errors import UsageError
from collbench.launch import slurm
from collbench.launch.info import LaunchInfo

Severity = Literal["severe", "warning", "note"]
_MOST_NAMES = 32  # each is a look-up, which may take seconds where DNS does not answer
_SHOWN = 4


@dataclass(frozen=True)
class HostName:
    """A host by its name, as this host resolves it.

    addresses   what the name resolves to here; empty where it does not resolve
    reachable   its addresses without loopback: of this host those of its interfaces, of another one those of its name
    own         whether it is this host
    """

    name: str
    addresses: tuple[str, ...]
    reachable: tuple[str, ...]
    own: bool = False

    @property
    def families(self) -> frozenset[Family]:
        """The address families over which other hosts may reach it."""
        return families_of(self.reachable)


class Kind(Enum):
    """What is notable about host names."""

    OWN_NAME_IS_LOOPBACK = auto()
    OWN_HOST_HAS_NO_ADDRESS = auto()
    MEETING_IS_LOOPBACK = auto()
    MEETING_DOES_NOT_RESOLVE = auto()
    NO_ROUTE_TO_MEETING = auto()
    IPV6_ONLY = auto()
    NO_COMMON_FAMILY = auto()


# By kind its severity, and its sentence with the remedy. {name} and {at} are of the first host that it is about, {names} of all.
_RENDERED: Mapping[Kind, tuple[Severity, str]] = {
    Kind.OWN_NAME_IS_LOOPBACK: (
        "note",
        "this host's name '{name}' resolves to loopback here ({at}), as in Debian's /etc/hosts; a rank 0 on this host listens at every "
        "address, and other hosts connect to {used}; set MASTER_ADDR to choose one address",
    ),
    Kind.OWN_HOST_HAS_NO_ADDRESS: (
        "severe",
        "this host, '{name}', has no address except loopback, so other hosts cannot reach it: bring up its network interface",
    ),
    Kind.MEETING_IS_LOOPBACK: (
        "warning",
        "rank 0's host '{name}' is a loopback address ({at}), which leads each host to itself; if ranks run on other hosts, set "
        "MASTER_ADDR to an address of rank 0's host in the network between the hosts",
    ),
    Kind.MEETING_DOES_NOT_RESOLVE: (
        "severe",
        "rank 0's host '{name}' does not resolve on this host: set MASTER_ADDR to its address, or fix DNS or /etc/hosts",
    ),
    Kind.NO_ROUTE_TO_MEETING: (
        "severe",
        "there is no route from this host to rank 0's host '{name}' ({at}): set MASTER_ADDR to an address that has one",
    ),
    Kind.IPV6_ONLY: (
        "note",
        "IPv6 addresses only: {names}; ranks meet and measure over IPv6, but MPICH's mpiexec needs IPv4 between hosts: start MPICH with "
        "srun --mpi=pmi2",
    ),
    Kind.NO_COMMON_FAMILY: (
        "severe",
        "the hosts have no address family in common ({families}): give every host addresses of one family",
    ),
}


@dataclass(frozen=True)
class NameFinding:
    """Something about host names that decides whether and how ranks meet.

    hosts   those that it is about
    used    the addresses at which other hosts connect, where they differ from what the name resolves to here
    """

    kind: Kind
    hosts: tuple[HostName, ...]
    used: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        """ "severe": the launch fails; "warning": it may fail; "note": it works, but differs from the usual."""
        return _RENDERED[self.kind][0]

    def sentence(self) -> str:
        """Return the finding with its remedy."""
        shown = [host.name for host in self.hosts[:_SHOWN]]
        more = [f"{len(self.hosts) - _SHOWN} more"] if len(self.hosts) > _SHOWN else []
        return _RENDERED[self.kind][1].format(
            name=self.hosts[0].name,
            at=", ".join(self.hosts[0].addresses),
            used=" or ".join(self.used),
            names=", ".join([*shown, *more]),
            families=", ".join(f"{host.name} has only {_families(host)}" for host in self.hosts),
        )


def _families(host: HostName) -> str:
    return " and ".join(family.value for family in Family if family in host.families)


def host_names(env: Mapping[str, str]) -> tuple[HostName, ...]:
    """Return this host, and the other hosts of a Slurm allocation, with their addresses as this host resolves them."""
    here = socket.gethostname()
    own = HostName(here, resolve(here), own_addresses(), own=True)
    others = [name for name in _nodes(env) if name.partition(".")[0] != here.partition(".")[0]]
    return own, *(_other(name) for name in others[:_MOST_NAMES])


def _nodes(env: Mapping[str, str]) -> Sequence[str]:
    if not slurm.in_allocation(env):
        return ()
    try:
        return slurm.hosts_of(env)
    except UsageError:  # reported where the launch is looked for
        return ()


def _other(name: str) -> HostName:
    addresses = resolve(name)
    return HostName(name, addresses, tuple(address for address in addresses if not is_loopback(address)))


def findings(hosts: Sequence[HostName], info: LaunchInfo | None, env: Mapping[str, str]) -> Iterator[NameFinding]:
    """Yield what is notable about these hosts' names, of which the first is this one, and about the name of rank 0's host."""
    own, others = hosts[0], hosts[1:]
    across = bool(others) or (info is not None and info.local_ranks < info.ranks)
    if across and not own.reachable and not _all_here(hosts):
        yield NameFinding(Kind.OWN_HOST_HAS_NO_ADDRESS, (own,))
    elif own.reachable and own.addresses and all(map(is_loopback, own.addresses)):
        yield NameFinding(Kind.OWN_NAME_IS_LOOPBACK, (own,), _used(own, info, env))
    if info is not None and info.meeting.startswith("tcp://") and info.local_ranks < info.ranks:
        yield from _of_meeting(info.meeting.removeprefix("tcp://").strip("[]"), own)
    yield from _of_families([host for host in hosts if host.reachable])


def _all_here(hosts: Sequence[HostName]) -> bool:
    """Whether the nodes have no addresses of their own: several of them on one machine."""
    return not any(host.reachable for host in hosts[1:])


def _used(own: HostName, info: LaunchInfo | None, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return where other hosts connect to this one: at the address that was given, that of Slurm, or those that it has."""
    known = slurm.known_addresses(own.name) if slurm.in_allocation(env) else ()
    given = resolve(env.get("MASTER_ADDR", "")) if info is not None else ()
    return next((found for each in (given, known) if (found := tuple(a for a in each if a in own.reachable))), own.reachable)


def _of_meeting(host: str, own: HostName) -> Iterator[NameFinding]:
    named = _other(host)
    addresses = named.addresses
    if not addresses:
        yield NameFinding(Kind.MEETING_DOES_NOT_RESOLVE, (named,))
    elif all(map(is_loopback, addresses)) and (is_numeric(host) or host.partition(".")[0] != own.name.partition(".")[0]):
        yield NameFinding(Kind.MEETING_IS_LOOPBACK, (named,))
    elif not any(map(route_to, addresses)):
        yield NameFinding(Kind.NO_ROUTE_TO_MEETING, (named,))


def _of_families(hosts: Sequence[HostName]) -> Iterator[NameFinding]:
    ipv6_only = tuple(host for host in hosts if host.families == {Family.IPV6})
    ipv4_only = tuple(host for host in hosts if host.families == {Family.IPV4})
    if ipv6_only and ipv4_only:
        yield NameFinding(Kind.NO_COMMON_FAMILY, (ipv4_only[0], ipv6_only[0]))
    elif ipv6_only:
        yield NameFinding(Kind.IPV6_ONLY, ipv6_only)
