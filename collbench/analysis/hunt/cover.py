"""A schedule of pairs that crosses every cable of the fabric: `--cover-links`, where a file of `ibnetdiscover` tells the fabric.

To be crossed is every cable on any shortest path between hosts that take part, both ways; pairs send both ways. Which of several equal
paths a message takes is the routing's choice, and the file does not tell it. A cable counts as crossed if it is under each of several
routings that spread by destination (see `fabric_routes`), so that pairs send to many more destinations than there are equal cables.
Cover by greed: of the cables that are left, the one that fewest pairs cross is given the pair that crosses most of what is left, among
hosts that are free in this round.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path

from collbench.errors import UsageError
from collbench.machine.fabric import Fabric
from collbench.machine.fabric_routes import Attached, Routes, Way, attached, host_key, slower
from collbench.machine.readers.ibnetdiscover import read_fabric
from collbench.machine.readers.text import printable

Pair = tuple[int, int]
Hosts = tuple[str, str]
Element = tuple[int, Way]  # a way between switches under a routing

# Up to so many hosts under so many routings every cable is to be crossed, and so many more the choice of pairs knows nothing of.
_ROUTINGS = ((128, 16, 4), (1024, 8, 4))
_FEW_ROUTINGS = (2, 1)  # of more hosts: the analysis is to take seconds

_LEAST_HOSTS = 2
_MOST_RAILS = 16
_MOST_NAMED = 6
_LONGEST_NAME = 200
_MOST_LOOKED_AT = 16  # pairs that cross a cable, of which the best is taken


@dataclass(frozen=True)
class Cover:
    """Which pairs cross the cables.

    pairs      the lower place first, in the order of their rounds; no place is twice in one round
    leaf_of    by place the switch it hangs on, "" where the file does not tell
    links      how many cables lie on shortest paths between the places; uncovered: those that no pair crosses ("leaf1 port 17 - …")
    routings   under so many ways to spread destinations each of the others is crossed
    otherwise  share of the cables' directions that the pairs cross under further routings, of which nothing was known when they were chosen
               (the worst of them)
    notes      sentences: who was not found, what is odd in the fabric
    """

    pairs: tuple[Pair, ...]
    leaf_of: tuple[str, ...]
    links: int
    uncovered: tuple[str, ...]
    routings: int
    otherwise: float
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> tuple[tuple[Pair, ...], ...]:
        """The pairs that are measured at the same time."""
        return packed(self.pairs)

    def sentence(self) -> str:
        """What is crossed, and what is not."""
        crossed = self.links - len(self.uncovered)
        said = f"{len(self.pairs)} pairs in {len(self.rounds)} rounds cross {crossed} of {self.links} cables, both ways"
        left = f"; not crossed: {_listed(self.uncovered)}" if self.uncovered else ""
        claim = f"under each of {self.routings} routings that spread destinations evenly over equal paths"
        other = "" if self.otherwise == 1 else f" ({self.otherwise:.0%} of them under one that was not looked at)"
        return f"{said}, {claim}{other}{left}"


def cover_links(path: Path, names: Sequence[str]) -> Cover:
    """The cover of the fabric that a file tells, for the hosts of these names (a place each).

    Raises UsageError, one sentence, for a file that cannot be read, or in which fewer than two of the hosts are.
    """
    fabric = read_fabric(path)
    try:
        return cover(fabric, names)
    except UsageError as error:
        raise UsageError(f"fabric file '{printable(str(path))}' {error}") from error


def cover(fabric: Fabric, names: Sequence[str]) -> Cover:
    """Pairs of places, by the names of their hosts; of several places on one host the first takes part. Raises UsageError."""
    hosts = attached(fabric)
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        if host_key(name) in hosts:
            places.setdefault(host_key(name), place)
    if len(places) < _LEAST_HOSTS:
        raise UsageError(_too_few(names, hosts, len(places)))
    found = _Greedy(fabric, {host: hosts[host] for host in places}, places)
    pairs = found.pairs()
    leaves = tuple(fabric.label(hosts[host_key(name)][0].leaf) if host_key(name) in hosts else "" for name in names)
    left = tuple(_cables(fabric, found.uncrossed()))
    notes = (*_missing(names, hosts), *found.notes(), *_odd(fabric))
    return Cover(pairs, leaves, len(_cables(fabric, found.possible)), left, found.routings, found.otherwise(), notes)


def packed(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Rounds of disjoint pairs: each pair in the first in which both its places are free."""
    rounds: list[list[Pair]] = []
    busy: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        number = next(number for number in range(len(rounds) + 1) if not any(number in busy[place] for place in pair))
        rounds += [[]] if number == len(rounds) else []
        rounds[number].append(pair)
        for place in pair:
            busy[place].add(number)
    return tuple(map(tuple, rounds))


class _Greedy:
    """The ways to cross under each routing, and pairs until all are that can be. places: by host."""

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
        self._crossers = self._who_crosses()
        self._left = set(self._crossers)

    def pairs(self) -> tuple[Pair, ...]:
        """The lower place first, by rounds."""
        chosen: list[Hosts] = []
        scarce = sorted(self._left, key=lambda element: (len(self._crossers[element]), element))
        while self._left:
            free = set(self.places)
            for element in scarce:
                best = self._best(element, free) if element in self._left else None
                if best:
                    self._left -= self._elements(*best)
                    free -= {*best}
                    chosen.append(best)
        chosen += self._others({host for pair in chosen for host in pair})
        self._met = chosen
        return tuple(self._pair(*pair) for pair in chosen)

    def uncrossed(self) -> set[Way]:
        """The ways that under some routing no pair crosses; to be asked after `pairs`."""
        used = Counter(way for _, way in self._crossers)
        return {way for way in self.possible if used[way] < self.routings} - self._adapters()

    def otherwise(self) -> float:
        """Share of all ways that the pairs cross under the worst of the routings that were held out; to be asked after `pairs`."""
        shares = []
        for routing in range(self.routings, self.routings + self._held_out):
            ways = self._adapters()
            for one, two in (ends for pair in self._met for ends in self._ends(*pair)):
                ways.update(self.routes[one.rail].between(one.leaf, two, routing) or ())
            shares.append(len(ways & self.possible) / max(1, len(self.possible)))
        return min(shares)

    def _adapters(self) -> set[Way]:
        """Of all ports of hosts that are in a pair."""
        hosts = {host for pair in self._met for host in pair}
        return {way for port in self._ports.values() if port.host in hosts for way in (port.up, port.down)}

    def notes(self) -> list[str]:
        """Of rails, and of hosts that no path joins."""
        several = f"hosts have up to {self.rails} ports on the fabric: the cables of each are crossed if messages go over all of them"
        lonely = [host for host in self.places if not self._reached(host)]
        apart = f"{_listed(lonely)}: no path to any other host that takes part, on the same port of both"
        return [several] * (self.rails > 1) + [apart] * bool(lonely)

    def _who_crosses(self) -> dict[Element, list[tuple[str, Attached]]]:
        """By way and routing some of the leaves and destinations whose messages go over it."""
        found: dict[Element, list[tuple[str, Attached]]] = defaultdict(list)
        once: dict[Element, Element] = {}  # millions of them are few that differ
        for routes in self.routes:
            for target, leaf in product(routes.ports, routes.leaves):
                ways = ((routing, routes.between(leaf, target, routing) or ()) for routing in range(self.routings))
                key, elements = (leaf, target), [(routing, way) for routing, each in ways for way in each]
                if elements:
                    self._sent[key] = tuple(once.setdefault(element, element) for element in elements)
                for element in self._sent.get(key, ()):
                    found[element].append(key)
        return dict(found)

    def _best(self, element: Element, free: set[str]) -> Hosts | None:
        """Of the pairs that cross a way, and are free, the one that crosses most of what is left."""
        able = [(leaf, target) for leaf, target in self._crossers[element] if target.host in free]
        spread = able[:: max(1, len(able) // _MOST_LOOKED_AT)]
        pairs = [(host, target.host) for leaf, target in spread for host in self._free_on(leaf, target, free)]
        return max(pairs, key=lambda pair: len(self._elements(*pair) & self._left), default=None)

    def _free_on(self, leaf: str, target: Attached, free: set[str]) -> Iterator[str]:
        return islice((host for host in self._on[target.rail, leaf] if host in free and host != target.host), 2)

    def _others(self, met: set[str]) -> Iterator[Hosts]:
        """Pairs for hosts that are in none: with one another if they can, else with any."""
        for host in self.places:
            partners = self._reached(host) if host not in met else []
            other = next((other for other in partners if other not in met), partners[0] if partners else None)
            if other:
                met |= {host, other}
                yield host, other

    def _reached(self, host: str) -> list[str]:
        """The other hosts that a path joins with this one."""
        ports = [self._ports[host, rail] for rail in range(self.rails) if (host, rail) in self._ports]
        joined = (self._joined[port.rail, self.routes[port.rail].part(port.leaf)] for port in ports)
        return [other for other in dict.fromkeys(chain.from_iterable(joined)) if other != host]

    def _elements(self, a: str, b: str) -> frozenset[Element]:
        """All between switches that the messages of two hosts cross, both ways, over all rails, by routing."""
        return frozenset[Element]().union(*(self._sent.get((one.leaf, two), ()) for one, two in self._ends(a, b)))

    def _ends(self, a: str, b: str) -> list[tuple[Attached, Attached]]:
        """Who sends to whom: the same rail's ports of both hosts, both ways."""
        ports = [(self._ports.get((a, rail)), self._ports.get((b, rail))) for rail in range(self.rails)]
        return [ends for one, two in ports if one and two for ends in ((one, two), (two, one))]

    def _pair(self, a: str, b: str) -> Pair:
        first, second = sorted((self.places[a], self.places[b]))
        return first, second


def _cables(fabric: Fabric, ways: Iterable[Way]) -> list[str]:
    """The cables of these ways, each once, in words."""
    ends = sorted({(min(way), max(way)) for way in ways})
    return [f"{fabric.port(a)} - {fabric.port(b)}" for a, b in ends]


def _too_few(names: Sequence[str], hosts: Mapping[str, object], found: int) -> str:
    there = f"its hosts are called {_listed(sorted(hosts))}" if hosts else "no adapter in it has a host's name"
    what = "none" if not found else "one"
    asked = list(dict.fromkeys(names))
    return f"tells of {what} of the {len(asked)} hosts of this job ({_listed(asked)}): {there}; save it on this cluster"


def _missing(names: Sequence[str], hosts: Mapping[str, object]) -> list[str]:
    missing = [name for name in dict.fromkeys(names) if host_key(name) not in hosts]
    return [f"the fabric's file does not tell of {_listed(missing)}: their cables are not looked at"] if missing else []


def _odd(fabric: Fabric) -> list[str]:
    slow = [f"{fabric.port(cable.a)} - {fabric.port(cable.b)} ({cable.rate})" for cable in slower(fabric)]
    said = f"cables slower than others between the same switches, so look at them first: {_listed(slow)}"
    return [said] * bool(slow) + list(fabric.doubts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(printable(name, _LONGEST_NAME) for name in names[:_MOST_NAMED])}{more}"
