"""A simulated cluster that answers the requests of a hunt, with known faulty places.

A message is as slow as the slower of its ends, a collective as its slowest place or path. The noise is the one of
`tests/plugins/hunt/pair_matrices`: σ·t₄/√2 of each figure, places 0.5 % apart, as much as σ common to all of a round, one pair in ten
(for good) with a second mode 8 % slower that it takes in a fifth of the cases; and one round in ten runs in such a mode as a whole.
"""

from dataclasses import dataclass, field

import numpy as np

from collbench.plugins.hunt.protocol import GROUPS, INSIDE, NIC, PAIRS, GroupFigure, HuntLog, RoundRequest, RoundResult

RATE, LATENCY_S, INSIDE_RATE = 10e9, 20e-6, 40e9
_MODE, _HAS_MODE, _IN_MODE, _ROUND_IN_MODE = 0.08, 0.1, 0.2, 0.1
_PLACES_APART = 0.005


class MadeUp:
    """n healthy places; make some faulty, then `answer` requests. The seed determines all noise."""

    def __init__(self, n, seed=0, sigma=0.015):
        self.n, self.sigma, self.drawn = n, sigma, np.random.default_rng(seed)
        self.names = tuple(f"node{number:03d}" for number in range(n))
        self.hosts = self.names
        self.sends, self.receives, self.latency, self.inside = (np.ones(n) for _ in range(4))
        self.apart = self.drawn.normal(0, _PLACES_APART, n)
        self.modal = self.drawn.random((n, n)) < _HAS_MODE
        self.kinds = {}
        self.paths = {}
        self.scales = {}  # by place (places of a group, at least, in which it is slow; ratio)
        self.nics = ()
        self.of_nic = {}
        self.dead = {}
        self.corrupting = set()
        self.no_latency = False
        self.part_of, self.across = (0,) * n, 1.0
        self._asked = 0
        self._dies_at = {}

    def log(self):
        return HuntLog(self.names)

    def node(self, place, ratio=0.5):
        return self._slow(place, "node", ratio, ratio)

    def sender(self, place, ratio=0.5):
        return self._slow(place, "sender", ratio, 1.0)

    def receiver(self, place, ratio=0.5):
        return self._slow(place, "receiver", 1.0, ratio)

    def slow_latency(self, place, ratio=0.5):
        """Make only small messages slow: they take 1/ratio as long."""
        self.latency[place], self.kinds[place] = ratio, "latency"
        return self

    def busy(self, place, ratio=0.5):
        """Give its CPU other work: messages in both directions, small ones and collectives inside are slow."""
        self.latency[place] = self.inside[place] = ratio
        return self.node(place, ratio)

    def slow_inside(self, place, ratio=0.5):
        """Make it slow among its own ranks: messages to others are fast, collectives of groups are slow."""
        self.inside[place], self.kinds[place] = ratio, "inside"
        return self

    def path(self, a, b, ratio=0.5):
        """Make the path between two places slow in both directions; both are healthy with others."""
        self.paths[min(a, b), max(a, b)] = ratio
        return self

    def scale(self, place, least, ratio=0.5):
        """Make it slow only in groups of at least `least` places."""
        self.scales[place], self.kinds[place] = (least, ratio), "scale"
        return self

    def rails(self, *nics):
        """Give every place these interfaces, each with an equal share of its rate."""
        self.nics = nics
        return self

    def slow_nic(self, place, nic, ratio=0.5):
        """Make one interface slow; messages over all interfaces wait for the slowest."""
        self.of_nic[place, nic] = ratio
        return self.node(place, ratio)

    def all_slow(self, ratio):
        self.sends *= ratio
        self.receives *= ratio
        return self

    def parts(self, of_place, ratio=0.5):
        """Divide the network: messages between places of different parts are slower, and no place is faulty."""
        self.part_of, self.across = tuple(of_place), ratio
        return self

    def dies(self, place, after=0, why="it does not answer any longer"):
        """Give no figure for any group with it, from the request of that number on."""
        self._dies_at[place] = (after, why)
        return self

    def answer(self, ask):
        """Return figures with new noise; the common part is drawn once per request."""
        for place, (after, why) in self._dies_at.items():
            if self._asked >= after:
                self.dead[place] = why
        self._asked += 1
        in_mode = _MODE if self.drawn.random() < _ROUND_IN_MODE else 0.0
        common = self.drawn.normal(0, self.sigma, 2) - in_mode
        return RoundResult(tuple(self._figure(ask, group, common) for group in ask.groups))

    def _figure(self, ask, group, common):
        lost = [place for place in group if place in self.dead]
        if lost:
            return GroupFigure(None, na=f"{self.names[lost[0]]}: {self.dead[lost[0]]}")
        wrong = 7 if self.corrupting & set(group) else 0
        if ask.kind in (GROUPS, INSIDE):
            speed = self._group(group) if ask.kind == GROUPS else INSIDE_RATE * float(self.inside[group[0]])
            speed *= self._noise(group, common[0])
            return GroupFigure(speed, low=speed * (1 - self.sigma), high=speed * (1 + self.sigma), wrong=wrong)
        both_ways = zip((group, group[::-1]), common, strict=True)
        ways = [self._message(way[0], way[1], ask.nic) * self._noise(way, off) for way, off in both_ways]
        slower = min(ways)
        latency = LATENCY_S / min(self.latency[list(group)]) / self._noise(group, common[0], 2.0)
        low, high = slower * (1 - self.sigma), slower * (1 + self.sigma)
        return GroupFigure(ways[0], ways[1], None if self.no_latency or ask.kind == NIC else latency, low, high, wrong)

    def _message(self, sender, receiver, nic):
        path = self.paths.get((min(sender, receiver), max(sender, receiver)), 1.0)
        path *= self.across if self.part_of[sender] != self.part_of[receiver] else 1.0
        if nic is not None:
            return RATE / len(self.nics) * path * min(self.of_nic.get((place, nic), 1.0) for place in (sender, receiver))
        return RATE * path * min(float(self.sends[sender]), float(self.receives[receiver]))

    def _group(self, group):
        slowest = min(min(self.sends[place], self.receives[place], self.inside[place]) for place in group)
        large = [ratio for place, (least, ratio) in self.scales.items() if place in group and len(group) >= least]
        ring = zip(group, group[1:] + group[:1], strict=True)
        paths = [self.paths.get((min(pair), max(pair)), 1.0) for pair in ring]
        return RATE * min(float(slowest), *large, *paths)

    def _noise(self, places, common, wider=1.0):
        own = wider * self.sigma / np.sqrt(2) * self.drawn.standard_t(4)
        modal = len(places) == 2 and self.modal[places[0], places[1]] and self.drawn.random() < _IN_MODE
        return float(np.exp(min(self.apart[list(places)]) + own + common - _MODE * modal))

    def _slow(self, place, kind, sends, receives):
        self.sends[place], self.receives[place], self.kinds[place] = sends, receives, kind
        return self


@dataclass
class Played:
    result: object
    asks: list[RoundRequest] = field(default_factory=list)


def play(conversation, made):
    """Answer every request of a generator until it returns; check each request."""
    asks = []
    try:
        ask = next(conversation)
        while True:
            check(ask, made.n)
            asks.append(ask)
            ask = conversation.send(made.answer(ask))
    except StopIteration as stop:
        return Played(stop.value, asks)


def check(ask, n):
    """Check a request: existing places, in disjoint groups of the right size."""
    places = [place for group in ask.groups for place in group]
    assert ask.groups, "an empty request"
    assert len(places) == len(set(places)), f"groups that are not disjoint: {ask.groups}"
    assert all(0 <= place < n for place in places)
    assert (ask.nic is not None) == (ask.kind == NIC)
    for group in ask.groups:
        assert len(group) == 1 if ask.kind == INSIDE else len(group) >= 2
        assert ask.kind not in (PAIRS, NIC) or (len(group) == 2 and group[0] < group[1]), f"{group} is not a pair, the lower first"
