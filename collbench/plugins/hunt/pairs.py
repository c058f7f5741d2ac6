"""Detection of slow places and slow pairs in a matrix of all pairs: a place, what it sends, what it receives, or a single pair.

The model, on logarithms: speed of i to j = middle + effect of the sender i + effect of the receiver j + rest, fitted by medians
(`two_way`); for the latency, which is symmetric, one effect per place. A low row is a slow sender, a low column a slow receiver. Both at
one place are a slow place, named once and not with each of its pairs. A single low rest is a slow pair. Assumptions:
- fewer than half of the places are slow, and fewer than half of each place's partners;
- places on one host have other paths between them than places on different hosts, so the two kinds are judged separately. A host with
  slow places only is named once;
- a slow place is slow with all partners. A place that is slow with most but not all may be in the smaller part of a network with
  leaves, sockets or rails: it is not named, and `doubts` reports it;
- a slow pair is an exception in its row and in its column (at most a third of each), and slow pairs are not all the pairs of a round.

Places and pairs are named at a false-alarm rate of less than 1 % of the matrices: 0.4 % for all pairs' bandwidths, 0.2 % for their
latencies, 0.1 % for the places in each. Each rate is shared over all tests (Bonferroni) against the tails of `pair_statistics`. Only
noticeable effects are named: 5 % of a place's bandwidth, 15 % of a pair's (a launch has modes 8 % apart), a latency a fifth (place) or a
third (pair) longer. A pair that was measured again needs only the square root of its share, since chance must have occurred twice.
Simulated in tests/plugins/hunt/test_pair_effects.py (4 to 64 places, noise up to σ = 1.5 % with the tails of t₄, equal noise common to
each round, modes 8 % apart; 200 to 1,000 matrices each): false alarms in at most 1 %. A place at half rate is detected in 99 %; so is a
directed pair from 8 places on, once measured again.

What a matrix cannot distinguish: with two places, the ends from the path; with three, a slow place from a faster path between the other
two (so nothing is named below four); a place that is slow with all partners from one that is alone behind a slow link.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

import msgspec
import numpy as np

from collbench.plugins.hunt.facts import TooFewEndpoints
from collbench.plugins.hunt.pair_statistics import INSIDE_HOST, INTERVAL_WIDTH, LEAST_PLACES, TO_OTHER_HOSTS, Figures, Mask, MatrixView
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.records import NO_VERDICT, NONE_SLOW, PairMatrix
from collbench.records import Record
from collbench.units import first_of, format_percent

# The findings in a matrix of pairs, and their sentences.

_DOES = {"node": "sends and receives", "sender": "sends", "receiver": "receives"}
_CAUSE = {
    "node": "its NIC, cable or slot",
    "sender": "its way out (NIC, cable, or what leads to the NIC)",
    "receiver": "its way in (NIC, cable, or what it does with what arrives)",
}


@dataclass(frozen=True)
class Remeasured:
    """The result of measuring a suspect again.

    places  one, or the two of a pair, the lower first
    state   CONFIRMED, CLEARED or INCONCLUSIVE
    reason  why it is inconclusive, or the count of slow results
    """

    places: tuple[int, ...]
    state: str
    reason: str


class PairFinding(Record, frozen=True):
    """A place or a pair that is slower than the other places explain.

    kind       "node" (slow both ways), "sender", "receiver": places are (i,), or all the places of one host; "pair": (sender, receiver)
    quantity   "bandwidth" or "latency"; a latency has no direction: kinds are "node" and "pair", the pair is unordered
    ratio      its speed over the speed expected from the others, below 1; for a latency the expected over the measured one
    cells      how many of its `of_cells` directed pairs are slow (latency: pairs without direction)
    both_ways  for a pair: whether receiver to sender is slow, too
    where      the paths: "" (all), "to other hosts" or "inside its host"
    latency_ratio  for a bandwidth finding with a slow latency, too: that of the latency
    unknown    for a pair: the places with too few other measured pairs to show that they are healthy
    host       the host, where all of its places are slow
    """

    kind: str
    quantity: str
    places: tuple[int, ...]
    ratio: float
    cells: int
    of_cells: int
    both_ways: bool = False
    where: str = ""
    latency_ratio: float | None = None
    unknown: tuple[int, ...] = msgspec.field(default=(), name="untold")
    host: str | None = None

    def stored(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the finding for JSON, with its sentence; places are indices into the list of places."""
        return {**self.as_json(), "sentence": self.sentence(names)}

    def sentence(self, names: Sequence[str]) -> str:
        """Return what is slow, by how much, and where to look."""
        return self._pair(names) if self.kind == "pair" else self._place(names)

    def name(self, names: Sequence[str]) -> str:
        """Return the place's name, or its host's where all of its places are slow; both names for a pair."""
        if self.kind == "pair":
            return f"{names[self.places[0]]} {'and' if self.both_ways or self.quantity == 'latency' else 'to'} {names[self.places[1]]}"
        return f"{self.host} (all of its {len(self.places)} places)" if self.host else names[self.places[0]]

    def _place(self, names: Sequence[str]) -> str:
        where = f" {self.where}" if self.where else ""
        slow = f"({self.cells} of {self.of_cells} pairs)"
        if self.quantity == "latency":
            cause = "its CPU, its power saving or its NIC"
            return f"{self.name(names)} takes {_times(self.ratio)} as long as the others for a small message{where} {slow}: {cause}"
        reaches = f"at {format_percent(100 * self.ratio)} of what the others do{where}"
        cause = _CAUSE[self.kind] if self.where != INSIDE_HOST else "its cores, memory or GPU link"
        return f"{self.name(names)} {_DOES[self.kind]} {reaches} {slow}: {cause}{self._slow_latency()}"

    def _pair(self, names: Sequence[str]) -> str:
        cause = "the path between them, since both are fast with others"
        if self.unknown:
            places = " or ".join(names[place] for place in self.unknown)
            cause = f"the path between them, or {places}, of which too few other pairs were measured"
        if self.quantity == "latency":
            return f"{self.name(names)} take {_times(self.ratio)} as long as their other pairs suggest for a small message: {cause}"
        reach, ways = ("reach", ", both ways") if self.both_ways else ("reaches", "")
        share = f"{format_percent(100 * self.ratio)} of what their other pairs suggest{ways}"
        return f"{self.name(names)} {reach} {share}: {cause}{self._slow_latency()}"

    def _slow_latency(self) -> str:
        return "" if self.latency_ratio is None else f"; a small message takes {_times(self.latency_ratio)} as long"


def _times(ratio: float) -> str:
    return f"{1 / ratio:.2f} times"


_LEAST_HOSTS = 4  # with fewer, a slow host looks the same as a faster path between the others
_ROUND = 4  # disjoint slow pairs as a part of the number of places: a disturbed round
_MOST_NAMES = 8
_LEAST_RATIO = 1e-9
_HARDLY = 0.95  # a loss of more than that means no function at all
_NO_PLACES = "only pairs are judged: endpoints need three partners each (--sample 3, and no --one-to-all)"


def remeasured(judged: Sequence[Mapping[str, Any]] | None) -> list[Remeasured] | None:
    """Return the results in run.json's list of judged suspects; None if there is no such list."""
    if judged is None:
        return None
    return [Remeasured(tuple(each["places"]), each["state"], (each["evidence"] or [each["state"]])[-1]) for each in judged]


@dataclass(frozen=True, eq=False)
class PairEffects:
    """A matrix with its findings.

    again       the pairs that were measured again
    remeasured  the results of measuring suspects again; None: not recorded, then only the matrix decides
    """

    matrix: PairMatrix
    again: Collection[tuple[int, int]] = ()
    remeasured: Sequence[Remeasured] | None = None

    def findings(self) -> list[PairFinding]:
        """Return the findings that measuring again confirmed, places first, the worst first; none below four places."""
        return [each for each in self._found if self._judged(each).state == CONFIRMED]

    def inconclusive(self) -> list[str]:
        """Return a sentence for each finding of the matrix that measuring again left inconclusive."""
        judged = [(each, self._judged(each)) for each in self._found]
        return [f"{each.sentence(self.matrix.places)}; {of.reason}" for each, of in judged if of.state == INCONCLUSIVE]

    def _judged(self, found: PairFinding) -> Remeasured:
        """Return the result of measuring a finding's places again; for a whole host, of all its places."""
        if self.remeasured is None:
            return Remeasured(found.places, CONFIRMED, "")
        known = {each.places: each for each in self.remeasured}
        keys = [tuple(sorted(found.places))] if found.kind == "pair" else [(place,) for place in found.places]
        those = [known.get(key, Remeasured(key, INCONCLUSIVE, "inconclusive: not measured again")) for key in keys]
        undecided = next((each for each in those if each.state == INCONCLUSIVE), None)
        if undecided is None and len({each.state for each in those}) > 1:
            return Remeasured(found.places, CLEARED, "only a part of its places was slow again")
        return undecided or those[0]

    @cached_property
    def _found(self) -> list[PairFinding]:
        """Return the findings of the matrix alone, places first, the worst first."""
        places = _once([each for view in self.views for each in self._places(view) if not self._unknown_places(each)])
        pairs = _once([each for view in self.views for each in self._pairs(view)])
        return [*sorted(places, key=lambda each: each.ratio), *sorted(pairs, key=lambda each: each.ratio)]

    @property
    def result(self) -> str:
        """Return `confirmed` if something is slow, `no verdict` if only inconclusive suspects may be, else `nobody`."""
        if self.findings():
            return CONFIRMED
        return NO_VERDICT if self.inconclusive() else NONE_SLOW

    def doubts(self) -> list[str]:
        """Return why a slow place or pair is not named, and how slow a pair must be to be detected; a sentence each."""
        if self.matrix.n in (2, 3):
            return [TooFewEndpoints(2 if self.matrix.n == 2 else 3).render()]
        pairs_only = [_NO_PLACES] if self.views and not any(view.can_name_places for view in self.views) else []
        return [*self.inconclusive(), *pairs_only, *(sentence for view in self.views for sentence in self._doubts(view))]

    @cached_property
    def views(self) -> list[MatrixView]:
        """Return the views: bandwidth, then latency; each by paths inside hosts and between them, where both exist."""
        if self.matrix.n < LEAST_PLACES:
            return []
        inside = self.matrix.inside
        kinds = [(TO_OTHER_HOSTS, ~inside), (INSIDE_HOST, inside & ~np.eye(self.matrix.n, dtype=bool))]
        mixed = all(bool(kind.any()) for _, kind in kinds)
        with np.errstate(all="ignore"):
            errors = (np.log(self.matrix.high) - np.log(self.matrix.low)) / INTERVAL_WIDTH
            spread = np.full_like(errors, np.nan) if self.matrix.latency_spread is None else self.matrix.latency_spread
            quantities = (
                ("bandwidth", _finite(np.log(self.matrix.bandwidth)), errors),
                ("latency", _finite(-np.log(self.matrix.latency_s)), _finite(np.log(spread)) / INTERVAL_WIDTH),
            )
        return [
            MatrixView(quantity, where if mixed else "", np.where(kind, speeds, np.nan), errors, self._repeated)
            for quantity, speeds, errors in quantities
            for where, kind in kinds
            if np.isfinite(speeds[kind]).any()
        ]

    @cached_property
    def _repeated(self) -> Mask:
        mask = np.zeros((self.matrix.n, self.matrix.n), bool)
        for a, b in self.again:
            mask[a, b] = mask[b, a] = True
        return mask

    def _places(self, view: MatrixView) -> list[PairFinding]:
        """Return a finding per slow place, and a single one for a host with slow places only."""
        slow = np.flatnonzero(view.senders().steady | view.receivers().steady)
        # if one direction is slow, the other one may be slow
        sends, receives = view.senders(twice=True).steady, view.receivers(twice=True).steady
        found = {int(place): _place(view, int(place), bool(sends[place]), bool(receives[place])) for place in slow}
        known = np.flatnonzero(view.fit.known_rows | view.fit.known_columns)  # the places with measured effects
        for host in dict.fromkeys(self.matrix.hosts):
            members = {int(place) for place in known if self.matrix.hosts[place] == host}
            if len(members) > 1 and members <= found.keys():
                found[min(members)] = _host(host, [found.pop(place) for place in sorted(members)])
        return list(found.values())

    def _unknown_places(self, found: PairFinding) -> bool:
        """Return whether it is a host among so few that the others may be unusually fast instead."""
        return len(found.places) > 1 and len(set(self.matrix.hosts)) < _LEAST_HOSTS

    def _pairs(self, view: MatrixView) -> list[PairFinding]:
        mask = view.exceptions(view.slow_cells(view.remeasured))
        found = [_pair(view, mask, a, b) for a, b in _worst_first(view, mask) if not (a > b and mask[b, a])]
        # many disjoint pairs that were measured only once are what a disturbance of one round leaves
        once = [each.places for each in found if not self._repeated[each.places]]
        ends = {place for pair in once for place in pair}
        return [] if len(once) >= max(3, self.matrix.n // _ROUND) and len(ends) == 2 * len(once) else found

    def _doubts(self, view: MatrixView) -> Iterator[str]:
        what = f"{view.quantity}{f' {view.where}' if view.where else ''}"
        uneven = np.flatnonzero(view.senders().uneven | view.receivers().uneven)
        if len(uneven):
            places = self._listed(uneven.tolist())
            yield f"{what}: {places} slow with most partners but not with all, as a smaller part of a network is: not named"
        for host in (each for each in self._places(view) if self._unknown_places(each)):
            yield f"{what}: {host.name(self.matrix.places)} is slow, or the paths between the other hosts are fast: of so few none is named"
        slow = view.slow_cells(view.remeasured)
        crowded = np.flatnonzero((slow & ~view.exceptions(slow)).any(axis=1))
        if len(crowded):
            yield f"{what}: {self._listed(crowded.tolist())} slow with several partners, more than exceptions and fewer than all: not named"
        if view.exceptions(slow).any() and not self._pairs(view):
            yield f"{what}: slow pairs that have no place in common, as a disturbed round leaves them: not named, measure again"
        yield f"{what}: {_visible(view)}"

    def _listed(self, places: Sequence[int]) -> str:
        return f"{first_of((self.matrix.places[place] for place in places), _MOST_NAMES)} {'is' if len(places) == 1 else 'are'}"


def _finite(values: Figures) -> Figures:
    return np.where(np.isfinite(values), values, np.nan)


def _worst_first(view: MatrixView, mask: Mask) -> list[tuple[int, int]]:
    rows, columns = np.nonzero(np.triu(mask) if view.symmetric else mask)
    order = np.argsort(view.fit.rest[rows, columns])
    return [(int(rows[each]), int(columns[each])) for each in order]


def _place(view: MatrixView, place: int, sends: bool, receives: bool) -> PairFinding:
    kind = "node" if view.symmetric or (sends and receives) else "sender" if sends else "receiver"
    parts = [(view.fit.rows, view.speeds)] if sends else []
    if receives and not view.symmetric:
        parts.append((view.fit.columns, view.speeds.T))
    behind = [(row := speeds[place] - view.fit.middle)[np.isfinite(row)] < effects[place] / 2 for effects, speeds in parts]
    ratio = _ratio([effects[place] for effects, _ in parts])
    return PairFinding(
        kind, view.quantity, (place,), ratio, sum(int(each.sum()) for each in behind), sum(map(len, behind)), where=view.where
    )


def _host(host: str, found: Sequence[PairFinding]) -> PairFinding:
    kinds = {each.kind for each in found}
    first, ratio = found[0], float(np.median([each.ratio for each in found]))
    places = tuple(place for each in found for place in each.places)
    cells, of_cells = sum(each.cells for each in found), sum(each.of_cells for each in found)
    kind = first.kind if len(kinds) == 1 else "node"
    return first.replace(kind=kind, places=places, ratio=ratio, cells=cells, of_cells=of_cells, host=host)


def _pair(view: MatrixView, mask: Mask, a: int, b: int) -> PairFinding:
    both = bool(mask[b, a]) and not view.symmetric
    depths = view.fit.rest[[a, b], [b, a]] if both else view.fit.rest[[a], [b]]
    unknown = tuple(place for place, is_known in ((a, view.fit.known_rows[a]), (b, view.fit.known_columns[b])) if not is_known)
    known = 1 if view.symmetric else int(view.measured[a, b]) + int(view.measured[b, a])
    return PairFinding("pair", view.quantity, (a, b), _ratio(depths), 1 + both, known, both_ways=both, where=view.where, unknown=unknown)


def _ratio(depths: Sequence[float] | Figures) -> float:
    """Return the mean depth as a ratio; above 0 even for the impossible figures that a file may have."""
    return max(exp(float(np.mean(depths))), _LEAST_RATIO)


def _once(found: Sequence[PairFinding]) -> list[PairFinding]:
    """Return one finding for each place or pair: a slow latency becomes part of the slow bandwidth, other paths join the first ones."""
    kept: dict[frozenset[int], PairFinding] = {}
    for each in found:
        key = frozenset(each.places)
        first = kept.setdefault(key, each)
        if first.quantity != each.quantity:
            kept[key] = first.replace(latency_ratio=each.ratio)
        elif first is not each and first.where != each.where:
            kept[key] = first.replace(where="", cells=first.cells + each.cells, of_cells=first.of_cells + each.of_cells)
    return list(kept.values())


def _visible(view: MatrixView) -> str:
    """Return from which slowness on a single pair is named."""
    if not view.can_name_pairs:
        return "of so few pairs no single one is named"
    once, twice = (1 - exp(-view.depth(repeated)) for repeated in (False, True))
    if once < _HARDLY:
        again = f", if measured again from {format_percent(100 * twice)} on" if once - twice >= 0.005 else ""
        return f"a single pair is named from {format_percent(100 * once)} below expectation on{again}"
    again = f", but for those measured again, from {format_percent(100 * twice)} below expectation on" if twice < _HARDLY else ""
    return f"the pairs scatter too much to name a single one{again}; raise --max-time, or measure on an idle system"
