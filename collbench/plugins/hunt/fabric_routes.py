"""The shortest paths through an InfiniBand fabric, and where hosts are attached to it."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.machine.fabric import Cable, End, Fabric

# Shortest paths through a fabric: the links that a message between two adapter ports may use, and those that it uses if routing spreads
# by destination.
#
# Switches forward by destination only (InfiniBand Architecture Specification, volume 1, 14.2: linear forwarding tables). If several
# cables lead to equally short paths, a subnet manager assigns the same number of destinations to each. The fabric's file does not contain
# the assignment. So several assignments ("routings") are computed: at every switch, each destination in turn uses the cable with the
# fewest destinations so far. The first routing orders by LID and port number, the others at random.

Way = tuple[End, End]  # a cable in one direction: from a port, to a port

MOST_STEPS = 20_000_000  # each takes some microseconds and bytes


@dataclass(frozen=True)
class Attached:
    """A port of a host's adapter that is connected to a switch. rail: its number among the ports of the host, from 0."""

    host: str
    rail: int
    end: End
    switch: End

    @property
    def leaf(self) -> str:
        """The GUID of the switch."""
        return self.switch[0]

    @property
    def up(self) -> Way:
        """The direction from the adapter to the switch."""
        return self.end, self.switch

    @property
    def down(self) -> Way:
        """The direction from the switch to the adapter."""
        return self.switch, self.end


def attached(fabric: Fabric) -> dict[str, list[Attached]]:
    """Return the ports on switches by host (lower case, without domain), sorted by adapter description, then by port number."""
    found: dict[str, list[tuple[tuple[str, int], End, End]]] = defaultdict(list)
    for cable in fabric.cables:
        for end, far in (cable.ends, cable.ends[::-1]):
            node = fabric.nodes[end[0]]
            if node.host and fabric.nodes[far[0]].kind == "switch":
                found[host_key(node.host)].append(((node.description, end[1]), end, far))
    return {host: [Attached(host, rail, end, far) for rail, (_, end, far) in enumerate(sorted(ports))] for host, ports in found.items()}


def host_key(name: str) -> str:
    """Return the form of a host name that is used to compare hosts: "node07" for "Node07.cluster.example"."""
    return name.lower().partition(".")[0]


class Routes:
    """The paths between the ports of one rail: `ports`, under each of several possible routings. Creation computes all tables.

    Raises UsageError at once when there are so many switches and ports that the computation would take too long.
    """

    def __init__(self, fabric: Fabric, ports: Sequence[Attached], routings: int = 1) -> None:
        self._onward = _onward(fabric)
        self.ports = sorted(ports, key=lambda port: (fabric.lids.get(port.end, 0), port.end))
        leaves = dict.fromkeys(port.leaf for port in self.ports)
        self._check(len(self.ports) ** 2 + len(leaves) * sum(map(len, self._onward.values())))
        self._distance = {leaf: self._distances(leaf) for leaf in leaves}
        longest = max((distance.get(leaf, 0) for distance in self._distance.values() for leaf in leaves), default=0)
        self._check(routings * len(self.ports) * len(leaves) * max(1, longest))
        self._part = {leaf: next(first for first, distance in self._distance.items() if leaf in distance) for leaf in leaves}
        self._near: dict[tuple[str, str], list[Way]] = {}
        self._tables = [self._routing(number) for number in range(routings)]

    @property
    def leaves(self) -> list[str]:
        """The GUIDs of the switches that the ports are connected to."""
        return list(self._distance)

    def part(self, leaf: str) -> str:
        """Return the connected part of the fabric that a leaf switch is in, as the first of its leaf switches."""
        return self._part[leaf]

    def possible(self) -> set[Way]:
        """Return every link direction that lies on a shortest path between two of the ports."""
        found: set[Way] = set()
        leaves = {port.leaf for port in self.ports}
        for leaf, distance in self._distance.items():
            reached = [start for start in leaves if start != leaf and start in distance]
            found |= set(self._all_ways(reached, leaf))
        met = [port for port in self.ports if self._meets(port)]
        return found | {way for port in met for way in (port.up, port.down)}

    def between(self, leaf: str, target: Attached, routing: int = 0) -> tuple[Way, ...] | None:
        """Return the link directions between switches from a leaf switch to a port, in order; None without a path."""
        ways: list[Way] = []
        table = self._tables[routing][target]
        while leaf != target.leaf:
            if leaf not in table:
                return None
            ways.append(table[leaf])
            leaf = ways[-1][1][0]
        return tuple(ways)

    def _check(self, steps: int) -> None:
        if steps > MOST_STEPS:
            switches = len({port.leaf for port in self.ports})
            raise UsageError(
                f"lists {len(self.ports)} ports on {switches} switches for the hosts of this job: it would take too long to find all "
                "ways between them; hunt without --cover-links, or among fewer nodes"
            )

    def _routing(self, number: int) -> Mapping[Attached, Mapping[str, Way]]:
        """Return the forwarding tables by destination: per switch the link to use. Number 0 orders by LID and port, others at random."""
        drawn = random.Random(number)
        order = drawn.sample(self.ports, len(self.ports)) if number else self.ports
        ways = sorted(way for onward in self._onward.values() for way in onward)
        rank = {way: place for place, way in enumerate(drawn.sample(ways, len(ways)) if number else ways)}
        taken = dict.fromkeys(ways, 0)
        return {port: self._table(port, taken, rank) for port in order}

    def _table(self, target: Attached, taken: dict[Way, int], rank: Mapping[Way, int]) -> dict[str, Way]:
        table: dict[str, Way] = {}
        waiting = deque(leaf for leaf in self._distance if leaf in self._distance[target.leaf])
        while waiting:
            switch = waiting.popleft()
            choices = () if switch in table else self._nearer(switch, target.leaf)
            if choices:
                way = table[switch] = min(choices, key=lambda way: (taken[way], rank[way]))
                taken[way] += 1
                waiting.append(way[1][0])
        return table

    def _all_ways(self, starts: Iterable[str], leaf: str) -> Iterator[Way]:
        waiting, seen = deque(starts), set(starts)
        while waiting:
            for way in self._nearer(waiting.popleft(), leaf):
                yield way
                if way[1][0] not in seen:
                    seen.add(way[1][0])
                    waiting.append(way[1][0])

    def _nearer(self, switch: str, leaf: str) -> list[Way]:
        """Return the link directions from a switch that lead one step nearer to a leaf switch."""
        if (switch, leaf) not in self._near:
            distance = self._distance[leaf]
            self._near[switch, leaf] = [way for way in self._onward.get(switch, ()) if distance.get(way[1][0], -1) == distance[switch] - 1]
        return self._near[switch, leaf]

    def _distances(self, leaf: str) -> dict[str, int]:
        """Return the number of cables between each reachable switch and this one."""
        distance, waiting = {leaf: 0}, deque([leaf])
        while waiting:
            switch = waiting.popleft()
            for _, (peer, _) in self._onward.get(switch, ()):
                if peer not in distance:
                    distance[peer] = distance[switch] + 1
                    waiting.append(peer)
        return distance

    def _meets(self, port: Attached) -> bool:
        return any(other.end != port.end and other.leaf in self._distance[port.leaf] for other in self.ports)


def slower(fabric: Fabric) -> list[Cable]:
    """Return the cables that are slower than other cables between the same two switches. An operator should check them."""
    parallel: dict[frozenset[str], list[Cable]] = defaultdict(list)
    for cable in fabric.cables:
        if cable.bits_per_s and all(fabric.nodes[guid].kind == "switch" for guid, _ in cable.ends):
            parallel[frozenset(guid for guid, _ in cable.ends)].append(cable)
    fastest = {nodes: max(each.bits_per_s or 0 for each in cables) for nodes, cables in parallel.items()}
    return [cable for nodes, cables in parallel.items() for cable in cables if (cable.bits_per_s or 0) < fastest[nodes]]


def _onward(fabric: Fabric) -> dict[str, list[Way]]:
    """Return the link directions to other switches, by switch, in the order of its ports."""
    ways: dict[str, list[Way]] = defaultdict(list)
    for cable in fabric.cables:
        if all(fabric.nodes[guid].kind == "switch" for guid, _ in cable.ends):
            ways[cable.a[0]].append((cable.a, cable.b))
            ways[cable.b[0]].append((cable.b, cable.a))
    return {guid: sorted(each) for guid, each in ways.items()}
