"""The sweep: rounds of disjoint pairs, the fewest that distinguish a slow place from a slow partner; or rounds of groups."""

from __future__ import annotations

import random as draws
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.machine.fabric import Fabric
from collbench.machine.readers.rdma_tools import read_fabric
from collbench.machine.readers.text import printable
from collbench.operations.groups import Pair, Round, schedule
from collbench.plugins.hunt import facts
from collbench.plugins.hunt.fabric_routes import Attached, Routes, Way, attached, host_key, slower
from collbench.plugins.hunt.protocol import GROUPS, PAIRS, HuntLog, Options, RoundRequest, RoundResult
from collbench.reason import Fact
from collbench.units import first_of

# A schedule of pairs that crosses every cable of the fabric: `--cover-links`, from a file of `ibnetdiscover`.
#
# Every cable on any shortest path between the hosts of the hunt must be crossed in both directions; pairs send both ways. The routing
# chooses one of several equal paths, and the file does not contain that choice. A cable counts as crossed if several routings by
# destination lead over it (see `machine.fabric`). So pairs send to many more destinations than there are equal cables. The cover is
# greedy: of the remaining cables, the one that the fewest pairs cross gets the pair that crosses most of the remaining ones, among hosts
# that are free in this round.

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


@dataclass(frozen=True)
class Cover:
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
        left = f"; not crossed: {_listed(self.uncovered)}" if self.uncovered else ""
        claim = f"under each of {self.routings} routings that spread destinations evenly over equal paths"
        other = "" if self.otherwise == 1 else f" ({self.otherwise:.0%} of them under one that was not looked at)"
        return f"{text}, {claim}{other}{left}"


def cover_links(path: Path, names: Sequence[str]) -> Cover:
    """Return the cover of the fabric in a file, for the hosts of these names (one place each).

    Raises UsageError, one sentence, for a file that cannot be read, or that contains fewer than two of the hosts.
    """
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
        there = f"its hosts are called {_listed(sorted(hosts))}" if hosts else "no adapter in it has a host's name"
        required = list(dict.fromkeys(names))
        raise UsageError(
            f"has {'one' if places else 'none'} of the {len(required)} hosts of this job ({_listed(required)}): {there}; "
            "save it on this cluster"
        )
    found = _Greedy(fabric, {host: hosts[host] for host in places}, places)
    pairs = found.pairs()
    leaves = tuple(fabric.label(hosts[host_key(name)][0].leaf) if host_key(name) in hosts else "" for name in names)
    left = tuple(_cables(fabric, found.uncrossed()))
    notes = []
    if missing := [name for name in dict.fromkeys(names) if host_key(name) not in hosts]:
        notes.append(f"the fabric file lacks {_listed(missing)}: their cables are not covered")
    notes += found.notes()
    if slow := [f"{fabric.port(cable.a)} - {fabric.port(cable.b)} ({cable.rate})" for cable in slower(fabric)]:
        notes.append(f"cables slower than others between the same switches, so look at them first: {_listed(slow)}")
    notes += fabric.doubts
    return Cover(pairs, leaves, len(_cables(fabric, found.possible)), left, found.routings, found.otherwise(), tuple(notes))


def packed(pairs: Iterable[CoverPair]) -> tuple[tuple[CoverPair, ...], ...]:
    """Return rounds of disjoint pairs: each pair is in the first round in which both places are free."""
    rounds: list[list[CoverPair]] = []
    busy: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        number = next(number for number in range(len(rounds) + 1) if not any(number in busy[place] for place in pair))
        rounds += [[]] if number == len(rounds) else []
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
        self._left = set(self._crossers)

    def pairs(self) -> tuple[CoverPair, ...]:
        """Return the pairs by rounds, the lower place first."""
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
            for one, two in (ends for pair in self._met for ends in self._ends(*pair)):
                ways.update(self.routes[one.rail].between(one.leaf, two, routing) or ())
            shares.append(len(ways & self.possible) / max(1, len(self.possible)))
        return min(shares)

    def _adapters(self) -> set[Way]:
        """Return the adapter ports of the hosts that are in a pair."""
        hosts = {host for pair in self._met for host in pair}
        return {way for port in self._ports.values() if port.host in hosts for way in (port.up, port.down)}

    def notes(self) -> list[str]:
        """Return the notes on rails, and on hosts without a path between them."""
        several = f"hosts have up to {self.rails} ports on the fabric: the cables of each are crossed if messages go over all of them"
        lonely = [host for host in self.places if not self._reached(host)]
        apart = f"{_listed(lonely)}: no path to any other host that takes part, on the same port of both"
        return [several] * (self.rails > 1) + [apart] * bool(lonely)

    def _pairs_by_element(self) -> dict[Element, list[tuple[str, Attached]]]:
        """Return by direction and routing some of the leaves and destinations of the messages over it."""
        found: dict[Element, list[tuple[str, Attached]]] = defaultdict(list)
        once: dict[Element, Element] = {}  # there are millions, but few different ones
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
        """Return the free pair that crosses a direction and most of the remaining ones; None without one."""
        able = [(leaf, target) for leaf, target in self._crossers[element] if target.host in free]
        pairs: list[Hosts] = []
        for leaf, target in able[:: max(1, len(able) // _MOST_LOOKED_AT)]:
            sources = (host for host in self._on[target.rail, leaf] if host in free and host != target.host)
            pairs += [(host, target.host) for host in islice(sources, 2)]
        return max(pairs, key=lambda pair: len(self._elements(*pair) & self._left), default=None)

    def _others(self, met: set[str]) -> Iterator[Hosts]:
        """Yield pairs for hosts that are in none: with each other if possible, else with any host."""
        for host in self.places:
            partners = self._reached(host) if host not in met else []
            other = next((other for other in partners if other not in met), partners[0] if partners else None)
            if other:
                met |= {host, other}
                yield host, other

    def _reached(self, host: str) -> list[str]:
        """Return the other hosts with a path to this one."""
        ports = [self._ports[host, rail] for rail in range(self.rails) if (host, rail) in self._ports]
        joined = (self._joined[port.rail, self.routes[port.rail].part(port.leaf)] for port in ports)
        return [other for other in dict.fromkeys(chain.from_iterable(joined)) if other != host]

    def _elements(self, a: str, b: str) -> frozenset[Element]:
        """Return the directions between switches that the messages of two hosts cross, both ways, over all rails, by routing."""
        return frozenset[Element]().union(*(self._sent.get((one.leaf, two), ()) for one, two in self._ends(a, b)))

    def _ends(self, a: str, b: str) -> list[tuple[Attached, Attached]]:
        """Return sources and destinations: the same rail's ports of both hosts, both ways."""
        ports = [(self._ports.get((a, rail)), self._ports.get((b, rail))) for rail in range(self.rails)]
        return [ends for one, two in ports if one and two for ends in ((one, two), (two, one))]


def _cables(fabric: Fabric, ways: Iterable[Way]) -> list[str]:
    """Return the cables of these directions, each once, as text."""
    ends = sorted({(min(way), max(way)) for way in ways})
    return [f"{fabric.port(a)} - {fabric.port(b)}" for a, b in ends]


def _listed(names: Sequence[str]) -> str:
    return first_of((printable(name, _LONGEST_NAME) for name in names), _MOST_NAMED)


# A sweep by collectives over overlapping groups, for jobs in which pairs take too long: about log₂ N rounds instead of N - 1.
#
# Each round splits all places into disjoint groups of one size that run an all-reduce at the same time. A collective is as slow as its
# slowest member. So a fast group shows that all its members are healthy, and a slow place is in a slow group every time. This is group
# testing without feedback (Du and Hwang, Combinatorial Group Testing, 2000). Groups are random, but two places meet as rarely as possible.
# There are four times as many groups as expected slow places (a sixteenth of all, at most 8), so that most groups are fast.
#
# The limit is loose: a place found here is only a candidate, and is measured again with healthy partners. Groups detect a place that is
# slow with all partners. They do not detect a slow path between two healthy places, nor the latency of small messages.

LEAST_PLACES = 8  # with fewer a round has too few groups to compare
LEAST_RATIO = 1e-9  # the ratio of places that could not be measured
_MOST_FAULTY = 8
_EXPECTED_FAULTY = 16  # one of so many places is expected to be slow
_LARGEST_GROUP = 16
_FORGIVEN = 5  # figures from which on one fast group is regarded as chance
_LEAST_DEPTH = 0.04
_SCALES = 2.5
_T4_QUANTILES = (0.271, 1.533)  # of Student's t with 4 degrees of freedom: its 60th and 90th percentile
_UPPER, _LEAST_GROUPS = 0.75, 4

Groups = tuple[tuple[int, ...], ...]


class SlowMember(NamedTuple):
    """A place with slow groups only: the ratio of their speed to that of the others, and the evidence."""

    place: int
    ratio: float
    why: Fact


Ratios = NDArray[np.float64]


def group_size(n: int) -> int:
    """Return the places in a group, for four groups per expected slow place: 2 of 8, 4 of 16 to 128, 16 of 512."""
    faulty = min(_MOST_FAULTY, max(1, n // _EXPECTED_FAULTY))
    return max(2, min(_LARGEST_GROUP, n // (4 * faulty)))


def rounds_groups(n: int, options: Options) -> int:
    """Return how many rounds `sweep_groups` takes: ⌈log₂ n⌉ + 1, or fewer by the options."""
    own = (n - 1).bit_length() + 1
    return own if options.rounds is None else max(1, min(own, options.rounds))


def sweep_groups(log: HuntLog, options: Options, random: draws.Random) -> Generator[RoundRequest, RoundResult, list[SlowMember]]:
    """Return the places that may be slow, the worst first. Raises ValueError below LEAST_PLACES."""
    n = len(log.names)
    if n < LEAST_PLACES:
        raise ValueError(f"{n} places make too few groups")
    all_rounds, rest = rounds_groups(n, options), f", {n % group_size(n)} rest" if n % group_size(n) else ""
    ratios, lost = np.full((all_rounds, n), np.nan), [list[str]() for _ in range(n)]
    for number, groups in enumerate(partitions(n, group_size(n), all_rounds, random)):
        why = f"groups of {group_size(n)}, round {number + 1} of {all_rounds}{rest}"
        answer = yield from log.request(RoundRequest(GROUPS, groups, why))
        known = log_ratios(answer)
        if np.isnan(known).all():  # without any measurement the round has no effect
            continue
        for group, ratio, figure in zip(groups, known, answer.figures, strict=True):
            ratios[number, list(group)] = ratio
            for place in group if np.isnan(ratio) else ():
                lost[place].append(figure.na or "no reason was given")
    return slow_members(ratios, lost)


def slow_members(ratios: Ratios, lost: Sequence[Sequence[str]]) -> list[SlowMember]:
    """Return the places that are in slow groups every time, and those without any measured group, the worst first.

    ratios  [rounds × places], as logarithms, of each place's group; NaN: not measured
    lost    by place the reasons why its groups have no figures

    A group is slow if it is beyond the noise of the faster half of all groups, and at least 4 % behind.
    """
    limit, every = log(LEAST_RATIO), np.unique(ratios[np.isfinite(ratios)])
    if len(every):
        near, far = np.quantile(every, (0.6, 0.9))
        limit = -max(_LEAST_DEPTH, _SCALES * float(far - near) / (_T4_QUANTILES[1] - _T4_QUANTILES[0]))
    found = []
    for place, whys in enumerate(lost):
        known = np.sort(ratios[np.isfinite(ratios[:, place]), place])
        if not len(known):
            found += [SlowMember(place, LEAST_RATIO, facts.GroupsNotMeasured(len(whys), whys[-1]))] if whys else []
        elif known[-2 if len(known) >= _FORGIVEN else -1] <= limit:
            ratio = exp(float(np.median(known)))
            found.append(SlowMember(place, ratio, facts.SlowGroups(int((known <= limit).sum()), len(known), ratio)))
    return sorted(found, key=lambda each: each.ratio)


def partitions(n: int, size: int, number: int, random: draws.Random) -> Iterator[Groups]:
    """Yield `number` random splits of n places into groups of one size. Two places meet in as few of them as possible.

    If the size does not divide n, the places that were left out least so far are left out.
    """
    met = np.zeros((n, n), np.int64)
    rested = np.zeros(n, np.int64)
    for _ in range(number):
        order = random.sample(range(n), n)
        resting = sorted(order, key=lambda place: rested[place])[: n % size]
        rested[resting] += 1
        groups = _apart([place for place in order if place not in set(resting)], size, met)
        for group in groups:
            met[np.ix_(group, group)] += 1
        yield tuple(tuple(sorted(group)) for group in groups)


def log_ratios(answer: RoundResult) -> Ratios:
    """Return how far each group is behind the fast ones, as a logarithm; NaN if not measured.

    The fast speed is the limit of the upper quarter (of three groups or fewer the fastest one), so that nearly three quarters
    of the groups may be slow.
    """
    speeds = np.array([figure.speed if figure.speed else np.nan for figure in answer.figures])
    if np.isnan(speeds).all():
        return speeds
    return np.asarray(np.log(speeds / np.nanquantile(speeds, _UPPER if len(speeds) >= _LEAST_GROUPS else 1)))


def _apart(order: Sequence[int], size: int, met: NDArray[np.int64]) -> list[list[int]]:
    """Assign each place to the group that it has met least (meetings squared, so that no pair meets twice before all have met)."""
    groups: list[list[int]] = [[] for _ in range(len(order) // size)]
    cost, members = np.zeros((len(groups), met.shape[0])), np.zeros(len(groups))
    for place in order:
        chosen = int(np.argmin(np.where(members < size, cost[:, place] + members / (size * len(order)), np.inf)))
        groups[chosen].append(place)
        members[chosen] += 1
        cost[chosen] += met[place] ** 2
    return groups


LEAST_PARTNERS = 3  # with fewer a place has no effect of its own
_ALL = 8  # up to so many places every pair is measured
_PARTNERS = 8  # partners of each of more places: mostly healthy ones, even if a quarter is slow
_UP_TO = 64  # and one more with each doubling above


def rounds(n: int, options: Options) -> int:
    """Return the number of rounds: all for n ≤ 8, else 8 to 64 places, 11 for 512; at least those that the cover needs.

    With an odd number of places each is left out once, so it takes one more.
    """
    every = n - 1 + n % 2
    count = options.rounds if options.rounds is not None else every if n <= _ALL else partners(n) + n % 2
    return max(min(count, every), len(packed(options.cover or ())))


def least_rounds(n: int, options: Options) -> int:
    """Return the fewest rounds that give a result for every place, and the required cover."""
    return max(min(LEAST_PARTNERS + n % 2, n - 1 + n % 2), len(packed(options.cover or ())))


def partners(n: int) -> int:
    """Return with how many others each of more than eight places is measured."""
    return _PARTNERS + max(0, ((n - 1) // _UP_TO).bit_length())


def sweep_pairs(log: HuntLog, options: Options, number: int, random: draws.Random) -> Generator[RoundRequest, RoundResult, None]:
    """Run `number` rounds: first those of the cover, with new pairs of the free places, then random round-robin rounds."""
    n, covering = len(log.names), packed(options.cover or ())
    met = {pair for pairs in covering for pair in pairs}
    plan: list[Round] = []
    for pairs in covering:
        plan.append((*pairs, *_free(n, pairs, met, random)))
        met |= set(plan[-1])
    if number > len(plan):
        plan += schedule(n, most=number - len(plan), seed=random.getrandbits(32)).rounds()
    for at, pairs in enumerate(plan):
        yield from log.request(RoundRequest(PAIRS, pairs, f"round {at + 1} of {number}"))


def _free(n: int, pairs: Sequence[Pair], met: set[Pair], random: draws.Random) -> Iterator[Pair]:
    """Yield pairs of the places that are in none of `pairs`, with new partners if possible."""
    busy = {place for pair in pairs for place in pair}
    free = random.sample(order := [place for place in range(n) if place not in busy], len(order))
    while len(free) > 1:
        place = free.pop()
        other = next((each for each in free if (min(place, each), max(place, each)) not in met), free[0])
        free.remove(other)
        yield min(place, other), max(place, other)
