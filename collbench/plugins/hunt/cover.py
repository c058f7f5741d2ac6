"""The pairs that cross every cable of an InfiniBand fabric (`--cover-links`, from a file of `ibnetdiscover`), and its shortest paths.

Every cable on any shortest path between the hosts of the hunt must be crossed in both directions; pairs send both ways. The routing
chooses one of several equal paths, and the file does not contain that choice. A cable counts as crossed if several routings by
destination lead over it (see `Routes`). So pairs send to many more destinations than there are equal cables. The cover is greedy: of the
remaining cables, the one that the fewest pairs cross gets the pair that crosses most of the remaining ones, among hosts that are free in
this round.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path

import msgspec

from collbench.errors import UsageError
from collbench.machine.fabric import Cable, End, Fabric
from collbench.machine.readers.rdma_tools import read_fabric
from collbench.machine.readers.text import printable
from collbench.units import first_of

Way = tuple[End, End]  # a cable in one direction: from a port, to a port

MOST_STEPS = 20_000_000  # each takes some microseconds and bytes


class Attached(msgspec.Struct, frozen=True):
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
    by_host: dict[str, list[tuple[tuple[str, int], End, End]]] = defaultdict(list)
    for cable in fabric.cables:
        for end, far in (cable.ends, cable.ends[::-1]):
            node = fabric.nodes[end[0]]
            if node.host and fabric.nodes[far[0]].kind == "switch":
                by_host[host_key(node.host)].append(((node.description, end[1]), end, far))
    return {host: [Attached(host, rail, end, far) for rail, (_, end, far) in enumerate(sorted(ports))] for host, ports in by_host.items()}


def host_key(name: str) -> str:
    """Return the form of a host name that is used to compare hosts: "node07" for "Node07.cluster.example"."""
    return name.lower().partition(".")[0]


class Routes:
    """The shortest paths between the ports of one rail: `ports`, under each of several possible routings. Creation computes all tables.

    Switches forward by destination only (InfiniBand Architecture Specification, volume 1, 14.2: linear forwarding tables). If several
    cables lead to equally short paths, a subnet manager assigns the same number of destinations to each. The fabric's file does not
    contain the assignment. So several assignments ("routings") are computed: at every switch, each destination in turn uses the cable
    with the fewest destinations so far. The first routing orders by LID and port number, the others at random.

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
        ways: set[Way] = set()
        for leaf, distance in self._distance.items():
            reached = [start for start in self._distance if start != leaf and start in distance]
            ways |= set(self._all_ways(reached, leaf))
        for port in self.ports:
            if any(peer.end != port.end and peer.leaf in self._distance[port.leaf] for peer in self.ports):
                ways |= {port.up, port.down}
        return ways

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
        waiting = deque(starts)
        seen = set(waiting)
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
        distance = {leaf: 0}
        waiting = deque([leaf])
        while waiting:
            switch = waiting.popleft()
            for _, (peer, _) in self._onward.get(switch, ()):
                if peer not in distance:
                    distance[peer] = distance[switch] + 1
                    waiting.append(peer)
        return distance


def slower(fabric: Fabric) -> list[Cable]:
    """Return the cables that are slower than other cables between the same two switches. An operator should check them."""
    parallel: dict[frozenset[str], list[Cable]] = defaultdict(list)
    for cable in fabric.cables:
        if cable.bits_per_s and all(fabric.nodes[guid].kind == "switch" for guid, _ in cable.ends):
            parallel[frozenset(guid for guid, _ in cable.ends)].append(cable)
    slow = []
    for cables in parallel.values():
        fastest = max(cable.bits_per_s or 0 for cable in cables)
        slow += [cable for cable in cables if (cable.bits_per_s or 0) < fastest]
    return slow


def _onward(fabric: Fabric) -> dict[str, list[Way]]:
    """Return the link directions to other switches, by switch, in the order of its ports."""
    ways: dict[str, list[Way]] = defaultdict(list)
    for cable in fabric.cables:
        if all(fabric.nodes[guid].kind == "switch" for guid, _ in cable.ends):
            ways[cable.a[0]].append((cable.a, cable.b))
            ways[cable.b[0]].append((cable.b, cable.a))
    return {guid: sorted(onward) for guid, onward in ways.items()}


CoverPair = tuple[int, int]
Hosts = tuple[str, str]
Element = tuple[int, Way]  # a direction between switches under a routing

# (hosts, routings, tests): for that many hosts, every cable must be crossed under so many routings. The tests are further routings,
# with which the choice of pairs is checked.
_ROUTINGS = ((128, 16, 4), (1024, 8, 4))
_FEW_ROUTINGS = (2, 1)  # with more hosts, so that the computation takes seconds

_LEAST_HOSTS = 2
_MOST_RAILS = 16
_MOST_NAMED = 6
_LONGEST_NAME = 200
_MOST_LOOKED_AT = 16  # pairs over a cable, of which the best one is used


class Cover(msgspec.Struct, frozen=True):
    """The pairs that cross the cables.

    pairs      the lower place first, in the order of their rounds; no place is twice in one round
    leaf_of    by place its switch, "" if the file does not contain it
    links      number of cables on shortest paths between the places; uncovered: those that no pair crosses ("leaf1 port 17 - …")
    routings   number of routings under which every other cable is crossed
    otherwise  share of the cables' directions that the pairs cross under further routings that the choice did not use (the worst of them)
    notes      sentences: hosts that were not found, problems in the fabric
    """

    pairs: tuple[CoverPair, ...]
    leaf_of: tuple[str, ...]
    links: int
    uncovered: tuple[str, ...]
    routings: int
    otherwise: float
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> tuple[tuple[CoverPair, ...], ...]:
        """Return the pairs by round, those that are measured at the same time."""
        return packed(self.pairs)

    def sentence(self) -> str:
        """Return how many cables are crossed, and which are not."""
        crossed = self.links - len(self.uncovered)
        text = f"{len(self.pairs)} pairs in {len(self.rounds)} rounds cross {crossed} of {self.links} cables, both ways"
        uncovered = f"; not crossed: {_listed(self.uncovered)}" if self.uncovered else ""
        claim = f"under each of {self.routings} routings that spread destinations evenly over equal paths"
        worst_share = "" if self.otherwise == 1 else f" ({self.otherwise:.0%} of them under one that was not looked at)"
        return f"{text}, {claim}{worst_share}{uncovered}"


def cover_links(path: Path, names: Sequence[str]) -> Cover:
    """Return the cover of a fabric file for the host of each place. Raises UsageError if it is unreadable or has fewer than two of them."""
    fabric = read_fabric(path)
    try:
        return cover(fabric, names)
    except UsageError as error:
        raise UsageError(f"fabric file '{printable(str(path))}' {error}") from error


def cover(fabric: Fabric, names: Sequence[str]) -> Cover:
    """Return the pairs of places, by the names of their hosts. Only the first place of a host takes part. Raises UsageError."""
    hosts = attached(fabric)
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        if host_key(name) in hosts:
            places.setdefault(host_key(name), place)
    if len(places) < _LEAST_HOSTS:
        file_hosts = f"its hosts are called {_listed(sorted(hosts))}" if hosts else "no adapter in it has a host's name"
        required = list(dict.fromkeys(names))
        raise UsageError(
            f"has {'one' if places else 'none'} of the {len(required)} hosts of this job ({_listed(required)}): {file_hosts}; "
            "save it on this cluster"
        )
    greedy = _Greedy(fabric, {host: hosts[host] for host in places}, places)
    pairs = greedy.pairs()
    leaves = tuple(fabric.label(hosts[host_key(name)][0].leaf) if host_key(name) in hosts else "" for name in names)
    uncovered = tuple(_cables(fabric, greedy.uncrossed()))
    notes = []
    missing = [name for name in dict.fromkeys(names) if host_key(name) not in hosts]
    if missing:
        notes.append(f"the fabric file lacks {_listed(missing)}: their cables are not covered")
    if greedy.rails > 1:
        notes.append(f"hosts have up to {greedy.rails} ports on the fabric: the cables of each are crossed if messages go over all of them")
    lonely = [host for host in places if not greedy.reached(host)]
    if lonely:
        notes.append(f"{_listed(lonely)}: no path to any other host that takes part, on the same port of both")
    slow = [f"{fabric.port(cable.a)} - {fabric.port(cable.b)} ({cable.rate})" for cable in slower(fabric)]
    if slow:
        notes.append(f"cables slower than others between the same switches, so look at them first: {_listed(slow)}")
    notes += fabric.doubts
    return Cover(pairs, leaves, len(_cables(fabric, greedy.possible)), uncovered, greedy.routings, greedy.otherwise(), tuple(notes))


def packed(pairs: Iterable[CoverPair]) -> tuple[tuple[CoverPair, ...], ...]:
    """Return rounds of disjoint pairs: each pair is in the first round in which both places are free."""
    rounds: list[list[CoverPair]] = []
    busy: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        number = next(number for number in range(len(rounds) + 1) if not any(number in busy[place] for place in pair))
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(pair)
        for place in pair:
            busy[place].add(number)
    return tuple(map(tuple, rounds))


class _Greedy:
    """The directions to cross under each routing, and the greedy choice of pairs. places: by host."""

    def __init__(self, fabric: Fabric, hosts: Mapping[str, Sequence[Attached]], places: Mapping[str, int]) -> None:
        self.places = places
        self.rails = min(max(map(len, hosts.values())), _MOST_RAILS)
        by_rail = [[ports[rail] for ports in hosts.values() if len(ports) > rail] for rail in range(self.rails)]
        self.routings, self._held_out = next((numbers for most, *numbers in _ROUTINGS if len(hosts) <= most), _FEW_ROUTINGS)
        self.routes = [Routes(fabric, ports, self.routings + self._held_out) for ports in by_rail]
        self.possible = set[Way]().union(*(routes.possible() for routes in self.routes))
        self._ports = {(port.host, port.rail): port for ports in by_rail for port in ports}
        self._on: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._joined: dict[tuple[int, str], list[str]] = defaultdict(list)
        for port in self._ports.values():
            self._on[port.rail, port.leaf].append(port.host)
            self._joined[port.rail, self.routes[port.rail].part(port.leaf)].append(port.host)
        self._sent: dict[tuple[str, Attached], tuple[Element, ...]] = {}
        self._crossers = self._pairs_by_element()
        self._remaining = set(self._crossers)

    def pairs(self) -> tuple[CoverPair, ...]:
        """Return the pairs by rounds, the lower place first."""
        chosen: list[Hosts] = []
        scarce = sorted(self._remaining, key=lambda element: (len(self._crossers[element]), element))
        while self._remaining:
            free = set(self.places)
            for element in scarce:
                best = self._best(element, free) if element in self._remaining else None
                if best:
                    self._remaining -= self._elements(*best)
                    free -= set(best)
                    chosen.append(best)
        chosen += self._others({host for pair in chosen for host in pair})
        self._met = chosen
        sides = [(self.places[a], self.places[b]) for a, b in chosen]
        return tuple((min(pair), max(pair)) for pair in sides)

    def uncrossed(self) -> set[Way]:
        """Return the directions that no pair crosses under some routing. Call it after `pairs`."""
        used = Counter(way for _, way in self._crossers)
        return {way for way in self.possible if used[way] < self.routings} - self._adapters()

    def otherwise(self) -> float:
        """Return the share of all directions that the pairs cross under the worst of the test routings. Call it after `pairs`."""
        shares = []
        for routing in range(self.routings, self.routings + self._held_out):
            ways = self._adapters()
            for source, target in (ends for pair in self._met for ends in self._ends(*pair)):
                ways.update(self.routes[source.rail].between(source.leaf, target, routing) or ())
            shares.append(len(ways & self.possible) / max(1, len(self.possible)))
        return min(shares)

    def _adapters(self) -> set[Way]:
        """Return the adapter ports of the hosts that are in a pair."""
        hosts = {host for pair in self._met for host in pair}
        return {way for port in self._ports.values() if port.host in hosts for way in (port.up, port.down)}

    def _pairs_by_element(self) -> dict[Element, list[tuple[str, Attached]]]:
        """Return by direction and routing some of the leaves and destinations of the messages over it."""
        crossers: dict[Element, list[tuple[str, Attached]]] = defaultdict(list)
        once: dict[Element, Element] = {}  # there are millions, but few different ones
        for routes in self.routes:
            for target, leaf in product(routes.ports, routes.leaves):
                elements = [
                    once.setdefault((routing, way), (routing, way))
                    for routing in range(self.routings)
                    for way in routes.between(leaf, target, routing) or ()
                ]
                if elements:
                    self._sent[leaf, target] = tuple(elements)
                for element in elements:
                    crossers[element].append((leaf, target))
        return dict(crossers)

    def _best(self, element: Element, free: set[str]) -> Hosts | None:
        """Return the free pair that crosses a direction and most of the remaining ones; None without one."""
        able = [(leaf, target) for leaf, target in self._crossers[element] if target.host in free]
        pairs: list[Hosts] = []
        for leaf, target in able[:: max(1, len(able) // _MOST_LOOKED_AT)]:
            sources = (host for host in self._on[target.rail, leaf] if host in free and host != target.host)
            pairs += [(host, target.host) for host in islice(sources, 2)]
        return max(pairs, key=lambda pair: len(self._elements(*pair) & self._remaining), default=None)

    def _others(self, met: set[str]) -> Iterator[Hosts]:
        """Yield pairs for hosts that are in none: with each other if possible, else with any host."""
        for host in self.places:
            partners = self.reached(host) if host not in met else []
            partner = next((partner for partner in partners if partner not in met), partners[0] if partners else None)
            if partner:
                met |= {host, partner}
                yield host, partner

    def reached(self, host: str) -> list[str]:
        """Return the other hosts with a path to this one."""
        ports = [self._ports[host, rail] for rail in range(self.rails) if (host, rail) in self._ports]
        joined = (self._joined[port.rail, self.routes[port.rail].part(port.leaf)] for port in ports)
        return [peer for peer in dict.fromkeys(chain.from_iterable(joined)) if peer != host]

    def _elements(self, a: str, b: str) -> frozenset[Element]:
        """Return the directions between switches that the messages of two hosts cross, both ways, over all rails, by routing."""
        return frozenset[Element]().union(*(self._sent.get((source.leaf, target), ()) for source, target in self._ends(a, b)))

    def _ends(self, a: str, b: str) -> list[tuple[Attached, Attached]]:
        """Return sources and destinations: the same rail's ports of both hosts, both ways."""
        ends = []
        for rail in range(self.rails):
            port_of_a = self._ports.get((a, rail))
            port_of_b = self._ports.get((b, rail))
            if port_of_a and port_of_b:
                ends += [(port_of_a, port_of_b), (port_of_b, port_of_a)]
        return ends


def _cables(fabric: Fabric, ways: Iterable[Way]) -> list[str]:
    ends = sorted({(min(way), max(way)) for way in ways})
    return [f"{fabric.port(a)} - {fabric.port(b)}" for a, b in ends]


def _listed(names: Sequence[str]) -> str:
    return first_of((printable(name, _LONGEST_NAME) for name in names), _MOST_NAMED)
