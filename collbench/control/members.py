"""The ranks of a launch with their hosts, processes and addresses, and their names in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from collbench.addresses import LOOPBACK, Family, family_of
from collbench.errors import UsageError
from collbench.reason import Fact
from collbench.units import listed

Rank = Annotated[int, Meta(ge=0, lt=1 << 24)]


class Member(msgspec.Struct, frozen=True):
    """One rank as it described itself."""

    rank: Rank
    host: str
    local_rank: int
    pid: int
    cpus: tuple[int, ...]  # the numbers of the CPUs that it may use
    address: str = LOOPBACK  # at which the ranks of other hosts reach this one
    routes: tuple[tuple[str, str], ...] = ()  # while joining: this rank's address and rank 0's, by address family
    addresses: tuple[str, ...] = ()  # on the first rank of a node, if there are several nodes: its host's for other hosts
    cpu_limit: tuple[int, float] | None = None  # of CPU time, as of a container: (number of the control group on its host, cores)
    began: int = -1  # when its process began, in clock ticks since its host's boot; -1 where unknown

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


class Members:
    """The ranks of a launch. members: all of them by rank, only this one before they have joined; me: this rank."""

    def __init__(self, me: Member) -> None:
        self.me = me
        self.members: tuple[Member, ...] = (me,)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order of their first rank."""
        return tuple(dict.fromkeys(member.host for member in self.members))

    def on_host(self, host: str | None = None) -> list[Member]:
        """Return the ranks of a host (this one by default)."""
        return [member for member in self.members if member.host == (host or self.me.host)]

    @property
    def oversubscribed(self) -> str | None:
        """Return the first host with more ranks than cores that these may use, or None."""
        return next((host for host in self.hosts if len(self.on_host(host)) > self.cores_on(host)), None)

    def cores_on(self, host: str | None = None) -> int:
        """Return how many cores the ranks of a host (this one by default) may use together, at least 1.

        A bound rank adds only its own cores. A limit of CPU time counts as so many whole cores.
        """
        members = self.on_host(host)
        cores = len({cpu for member in members for cpu in member.cpus})
        limits = {member.cpu_limit for member in members}
        if None in limits:
            return cores
        return min(cores, max(1, int(sum(limit[1] for limit in limits if limit))))


def addressed(members: Sequence[Member]) -> list[Member]:
    """Return the members with addresses of one family that work between hosts: IPv4 if every host has it, else IPv6.

    Rank 0's address is the one that the other hosts use. Raises UsageError if the hosts have no family in common.
    """
    others = [member for member in members if member.host != members[0].host]
    routes = {member: {family_of(hub): (address, hub) for address, hub in member.routes} for member in others}
    gaps = []
    for family in Family:
        unrouted = next((member for member in others if family not in routes[member]), None)
        if unrouted is None:
            addresses = {member.rank: routes[member][family][0] for member in others}
            hub = routes[others[0]][family][1] if others else LOOPBACK
            return [replace(member, address=addresses.get(member.rank, hub), routes=()) for member in members]
        gaps.append(f"{unrouted} cannot reach rank 0 over {family.value}")
    raise UsageError(f"the hosts have no address family in common: {', and '.join(gaps)}; give every host addresses of one family")


class HostKilled(Fact, frozen=True):
    """The launcher kills all ranks of a host when one ends. So another rank of the host may have ended first."""

    host: str
    ranks: tuple[int, ...]

    def render(self) -> str:
        """Return the clause that follows a sentence about the first rank of the host."""
        ranks = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"one of the ranks {listed([*map(str, self.ranks)], word='or')}"
        return f"or {ranks} ended first, and mpiexec killed all ranks of {self.host}"


def other_candidates(members: Sequence[Member]) -> dict[int, HostKilled]:
    """Return by the first rank of each host the other ranks there, for launchers that kill all ranks of a host together."""
    by_host: dict[str, list[Member]] = {}
    for member in members:
        by_host.setdefault(member.host, []).append(member)
    return {first.rank: HostKilled(first.host, tuple(mate.rank for mate in mates)) for first, *mates in by_host.values() if mates}


def above(me: Member, members: Sequence[Member]) -> Member:
    """Return the rank that receives the messages of rank `me`: the first rank of its host, or rank 0."""
    first = next(member for member in members if member.host == me.host)
    return members[0] if me == first else first
