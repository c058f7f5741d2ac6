"""What is named in a matrix of pairs, and the sentence that says it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.results.rounds import STATES
from collbench.units import format_percent

CONFIRMED, CLEARED, INCONCLUSIVE = STATES
_RANK = re.compile(r"rank [0-9]+ \((.+)\)", re.DOTALL)  # as `pairs` names a rank's place; whatever else ends in brackets is a name itself
_DOES = {"node": "sends and receives", "sender": "sends", "receiver": "receives"}
_CAUSE = {
    "node": "its NIC, cable or slot",
    "sender": "its way out (NIC, cable, or what leads to the NIC)",
    "receiver": "its way in (NIC, cable, or what it does with what arrives)",
}


@dataclass(frozen=True)
class Remeasured:
    """What measuring a suspect again showed.

    places  one, or the two of a pair, the lower first; state: one of `STATES`; reason: why it is inconclusive, or what was counted
    """

    places: tuple[int, ...]
    state: str
    reason: str


@dataclass(frozen=True)
class PairFinding:
    """A place or a pair that is slower than the others explain.

    kind       "node" (slow both ways), "sender", "receiver": places are (i,), or all the places of one host; "pair": (sender, receiver)
    quantity   "bandwidth" or "latency"; a latency has no direction: kinds are "node" and "pair", the pair is unordered
    ratio      the speed it reaches of what is expected from the others, below 1; of a latency the inverse of how much longer it takes
    cells      how many of its `of_cells` directed pairs are slow (latency: pairs without direction)
    both_ways  of a pair: whether receiver to sender is slow, too
    where      which paths: "" (all that there are), "to other hosts" or "inside its host"
    latency    of a bandwidth finding whose latency is slow, too: what it reaches there
    untold     of a pair: the places of which too few other pairs were measured to say that they are well
    """

    kind: str
    quantity: str
    places: tuple[int, ...]
    ratio: float
    cells: int
    of_cells: int
    both_ways: bool = False
    where: str = ""
    latency: float | None = None
    untold: tuple[int, ...] = ()

    def sentence(self, names: Sequence[str]) -> str:
        """What is slow, by how much, and where to look."""
        return self._pair(names) if self.kind == "pair" else self._place(names)

    def name(self, names: Sequence[str]) -> str:
        """The place's name, or its host's where all of its places are slow; of a pair both."""
        if self.kind == "pair":
            return f"{names[self.places[0]]} {'and' if self.both_ways or self.quantity == 'latency' else 'to'} {names[self.places[1]]}"
        first = names[self.places[0]]
        return first if len(self.places) == 1 else f"{hosts_of(names)[self.places[0]]} (all of its {len(self.places)} places)"

    def _place(self, names: Sequence[str]) -> str:
        where = f" {self.where}" if self.where else ""
        slow = f"({self.cells} of {self.of_cells} pairs)"
        if self.quantity == "latency":
            cause = "its CPU, its power saving or its NIC"
            return f"{self.name(names)} takes {_times(self.ratio)} as long as the others for a small message{where} {slow}: {cause}"
        reaches = f"at {format_percent(100 * self.ratio)} of what the others do{where}"
        cause = _CAUSE[self.kind] if self.where != "inside its host" else "its cores, memory or GPU link"
        return f"{self.name(names)} {_DOES[self.kind]} {reaches} {slow}: {cause}{self._slow_latency()}"

    def _pair(self, names: Sequence[str]) -> str:
        cause = "the path between them, since both are well with others" if not self.untold else self._unsure(names)
        if self.quantity == "latency":
            return f"{self.name(names)} take {_times(self.ratio)} as long as their other pairs suggest for a small message: {cause}"
        reach, ways = ("reach", ", both ways") if self.both_ways else ("reaches", "")
        share = f"{format_percent(100 * self.ratio)} of what their other pairs suggest{ways}"
        return f"{self.name(names)} {reach} {share}: {cause}{self._slow_latency()}"

    def _unsure(self, names: Sequence[str]) -> str:
        who = " or ".join(names[place] for place in self.untold)
        return f"the path between them, or {who}, of which too few other pairs were measured"

    def _slow_latency(self) -> str:
        return "" if self.latency is None else f"; a small message takes {_times(self.latency)} as long"


def hosts_of(names: Sequence[str]) -> tuple[str, ...]:
    """The host of each place: "rank 3 (node1)" is on node1, a place with another kind of name is a host of its own."""
    return tuple(match[1] if (match := _RANK.fullmatch(name)) else name for name in names)


def _times(ratio: float) -> str:
    return f"{1 / ratio:.2f} times"
