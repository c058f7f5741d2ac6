"""The ceiling of groups that run at the same time: each group's by its own job, and what they share of their hosts' NICs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collbench.machine.peak.ceiling import Ceiling, nothing
from collbench.machine.peak.collective import KIND, OPERATIONS, ceilings
from collbench.machine.peak.domain import joined_by_clique
from collbench.machine.peak.job import Job
from collbench.machine.peak.link import Link
from collbench.machine.peak.node import Node
from collbench.measure.crossing import Least, least
from collbench.operations.cell import Cell
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation
from collbench.operations.traffic import elements

Layout = tuple[tuple[str, tuple[int, ...]], ...]
Found = tuple[Ceiling, Ceiling | None]
MakeNode = Callable[[str, tuple[int, ...], tuple[int, ...]], Node]


@dataclass(frozen=True)
class Running:
    """A cell's groups on their hosts.

    groups      ranks of the job, in the order of their rank within the group
    host_of     the host of each rank of the job
    leaving     what a host's NICs carry for all ranks that use them, by host
    oversubscription   the fabric carries so many times less
    """

    operation: Operation
    cell: Cell
    groups: Groups
    host_of: Sequence[str]
    leaving: Mapping[str, Link]
    oversubscription: float = 1.0

    def crosses(self, group: Sequence[int]) -> bool:
        """Whether its ranks are on several hosts."""
        return len({self.host_of[rank] for rank in group}) > 1

    def layout(self, group: Sequence[int]) -> Layout:
        """A group's ranks by host in the order in which they appear; of a rooted operation the root's host first, and on it the root."""
        root = group[self.cell.root or 0] if self.operation.rooted else group[0]
        by_host: dict[str, list[int]] = {}
        for rank in (root, *(other for other in group if other != root)):
            by_host.setdefault(self.host_of[rank], []).append(rank)
        return tuple((host, tuple(ranks)) for host, ranks in by_host.items())

    def least(self, group: tuple[int, ...]) -> Least:
        """What one group must send out of and into its hosts at least, in bytes."""
        return least(self.operation, self.cell, (group,), {rank: self.host_of[rank] for rank in group})


def ceiling_of(running: Running, node_of: MakeNode) -> Found:
    """(ring reference, else hard limit; hard limit) of the slowest group, whose figures the row has.

    node_of: makes a node of a host, those of a group's ranks that are there, and the group. Groups that cross hosts share the NICs
    there: no algorithm passes what all of them together must send, and a ring has its part of each host's NICs.
    """
    if running.operation.neighbours:
        return _of_neighbours(running)
    if running.operation.name not in OPERATIONS:
        return nothing(f"no ceiling is known for {running.operation.name}"), None
    found = [ceilings(running.operation.name, _job(running, group, node_of)) for group in running.groups]
    bounds = [each.bound for each in found if each.bound]
    rings = [each.ring for each in found if each.ring]
    silent = next((each for each in bounds if each.bytes_per_s is None), None)
    if silent or not bounds:
        return replace(silent or nothing("it moves nothing"), model="ring"), None
    bound, ring = _slowest(bounds), _slowest(rings) if rings else None
    shared = _Shared.of(running)
    bound = _slowest([bound, *shared.bounds()])
    ring = _slowest([ring, *shared.rings()]) if ring else None
    return ring or bound, _no_less(bound, ring)


def _of_neighbours(running: Running) -> Found:
    """(what messages sent by every rank itself can reach, hard limit), by the hosts' NICs alone.

    What two neighbours on one host both get (neighbor_allgather) would have to come there only once: the bound counts it once.
    """
    crossing = tuple(group for group in running.groups if running.crosses(group))
    shared = _Shared(running, tuple(running.least(group) for group in crossing))
    bounds, messages = shared.bounds(), _messages_out(running, crossing)
    if not bounds:
        return nothing(f"no ceiling is known for {running.operation.name} inside a host"), None
    if silent := next((running.leaving[host].name for host in messages if running.leaving[host].bytes_per_s is None), None):
        return nothing(f"the rate between nodes is unknown: {silent}"), None
    reached = [shared.of_ring(host, count / 2) for host, count in sorted(messages.items())]
    return _slowest(reached), _no_less(_slowest(bounds), _slowest(reached))


def _messages_out(running: Running, groups: Groups) -> Counter[str]:
    """By host how many messages, half a size each, its ranks send to neighbours on other hosts; as many come in."""
    rings = [list(zip(group, [*group[1:], group[0]], strict=True)) for group in groups]
    ways = [way for ring in rings for a, b in ring for way in ((a, b), (b, a))]
    return Counter(running.host_of[a] for a, b in ways if running.host_of[a] != running.host_of[b])


def _job(running: Running, group: tuple[int, ...], node_of: MakeNode) -> Job:
    layout = running.layout(group)
    nodes = joined_by_clique([node_of(host, ranks, group) for host, ranks in layout])
    return Job(nodes, running.oversubscription, traffic=_traffic(running, group, layout) if running.operation.uneven else None)


def _traffic(running: Running, group: Sequence[int], layout: Layout) -> Sequence[Sequence[float]]:
    """Bytes from rank to rank, in the order of the nodes' ranks."""
    cell, place = running.cell, {rank: index for index, rank in enumerate(group)}
    order = [place[rank] for _, ranks in layout for rank in ranks]
    parts = elements(cell.traffic, len(group), running.operation.count(cell, len(group)))
    matrix: list[list[float]] = (parts[np.ix_(order, order)] * cell.dtype.size).tolist()
    return matrix


@dataclass(frozen=True)
class _Shared:
    """What the groups that cross hosts must move together: bytes per host and direction, and by how many of them."""

    running: Running
    least: tuple[Least, ...]

    @classmethod
    def of(cls, running: Running) -> _Shared:
        """One group alone is wholly told by its job, but for the edges of a sendrecv ring under the real rank map."""
        crossing = [group for group in running.groups if running.crosses(group)]
        alone = len(crossing) == 1 and running.operation.name != "sendrecv"
        return cls(running, () if alone else tuple(running.least(group) for group in crossing))

    def bounds(self) -> list[Ceiling]:
        """What no algorithm passes: each host's NICs carry what all groups must send or receive there, all NICs the sum of that."""
        out, into = _sums(each.out for each in self.least), _sums(each.into for each in self.least)
        moved = self._moved()
        found = []
        for host in sorted(set(out) | set(into)):
            busier = max(out[host], into[host])
            link = self.running.leaving[host]
            found.append(self._ceiling(host, link.known * moved / busier, self._sharing(host, busier), "bound"))
        total = sum(each.total for each in self.least)
        if found and total:
            together = sum(self.running.leaving[host].known for host in set(out) | set(into))
            slowest = min(set(out) | set(into), key=lambda host: (self.running.leaving[host].known, host))
            found.append(self._ceiling(slowest, together * moved / total, self._sharing(slowest, 0.0), "bound"))
        return found

    def rings(self) -> list[Ceiling]:
        """Each group's ring has one edge out of a host and one into it, as far as its algorithm needs them."""
        return [
            self._ceiling(host, self.running.leaving[host].known / self._groups(host), self._sharing(host, 0.0), "ring")
            for host in sorted({host for each in self.least for host in (*each.out, *each.into)})
        ]

    def of_ring(self, host: str, sizes: float) -> Ceiling:
        """Where a host sends so many sizes in an iteration."""
        return self._ceiling(host, self.running.leaving[host].known / sizes, self._sharing(host, 0.0), "ring")

    def _moved(self) -> float:
        """Bytes that the busbw counts in one iteration."""
        operation, cell = self.running.operation, self.running.cell
        return cell.size_bytes * operation.bus_factor(len(self.running.groups[0]))

    def _groups(self, host: str) -> int:
        """How many groups share the busier direction of a host's NICs."""
        return max(sum(1 for each in self.least if each.out.get(host)), sum(1 for each in self.least if each.into.get(host)))

    def _sharing(self, host: str, busier: float) -> str:
        """Who shares a host's NICs, in words."""
        if self.running.operation.name == "sendrecv":
            edges = round(busier / self._moved()) if busier else 1
            return f" shared by {edges} edges of the ring{'s' if len(self.running.groups) > 1 else ''}" if edges > 1 else ""
        groups = self._groups(host)
        return f" shared by {groups} groups" if groups > 1 else ""

    def _ceiling(self, host: str, rate: float, sharing: str, model: str) -> Ceiling:
        link, names = self.running.leaving[host], Counter(each.name for each in self.running.leaving.values())
        where = f" of {host}" if len(names) > 1 else ""
        return Ceiling(KIND, rate, f"{link.name}{where}{sharing}", model, link.source)


def _sums(each: Iterable[Mapping[str, float]]) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for one in each:
        for host, amount in one.items():
            found[host] += amount
    return found


def _slowest(found: Sequence[Ceiling]) -> Ceiling:
    """The first of the lowest."""
    return min(found, key=lambda each: each.bytes_per_s or 0.0)


def _no_less(bound: Ceiling, ring: Ceiling | None) -> Ceiling:
    """The bound without the rounding that would put it a hair below the ring."""
    return replace(bound, bytes_per_s=ring.bytes_per_s) if ring and (bound.bytes_per_s or 0.0) < (ring.bytes_per_s or 0.0) else bound
