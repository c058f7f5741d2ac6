"""Detection of slow places and slow pairs in a matrix of all pairs: a place, what it sends, what it receives, or a single pair.

The model, on logarithms: speed of i to j = middle + effect of the sender i + effect of the receiver j + residual, fitted by medians
(`two_way`); for the latency, which is symmetric, one effect per place. A low row is a slow sender, a low column a slow receiver. Both at
one place are a slow place, named once and not with each of its pairs. A single low residual is a slow pair. Assumptions:
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
from functools import cached_property
from math import exp
from typing import Any

import msgspec
import numpy as np

from collbench.plugins.hunt.facts import TooFewEndpoints
from collbench.plugins.hunt.pair_statistics import INSIDE_HOST, Mask, MatrixView, views_of
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.records import NO_VERDICT, NONE_SLOW, Figures, PairMatrix
from collbench.records import Record
from collbench.units import first_of, format_percent

_DOES = {"node": "sends and receives", "sender": "sends", "receiver": "receives"}
_CAUSE = {
    "node": "its NIC, cable or slot",
    "sender": "its way out (NIC, cable, or what leads to the NIC)",
    "receiver": "its way in (NIC, cable, or what it does with what arrives)",
}


class Remeasured(msgspec.Struct, frozen=True):
    """The result of measuring a suspect again.

    places  one, or the two of a pair, the lower first
    state   CONFIRMED, CLEARED or INCONCLUSIVE
    reason  why it is inconclusive, or the count of slow results
    kind    that of the suspect; "latency": only its small messages were slow again
    """

    places: tuple[int, ...]
    state: str
    reason: str
    kind: str = ""


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
        return self._pair_sentence(names) if self.kind == "pair" else self._place_sentence(names)

    def name(self, names: Sequence[str]) -> str:
        """Return the place's name, or its host's where all of its places are slow; both names for a pair."""
        if self.kind == "pair":
            return f"{names[self.places[0]]} {'and' if self.both_ways or self.quantity == 'latency' else 'to'} {names[self.places[1]]}"
        return f"{self.host} (all of its {len(self.places)} places)" if self.host else names[self.places[0]]

    def _place_sentence(self, names: Sequence[str]) -> str:
        where = f" {self.where}" if self.where else ""
        slow = f"({self.cells} of {self.of_cells} pairs)"
        if self.quantity == "latency":
            cause = "its CPU, its power saving or its NIC"
            return f"{self.name(names)} takes {_times(self.ratio)} as long as the others for a small message{where} {slow}: {cause}"
        reaches = f"at {format_percent(100 * self.ratio)} of what the others do{where}"
        cause = _CAUSE[self.kind] if self.where != INSIDE_HOST else "its cores, memory or GPU link"
        return f"{self.name(names)} {_DOES[self.kind]} {reaches} {slow}: {cause}{self._latency_words()}"

    def _pair_sentence(self, names: Sequence[str]) -> str:
        cause = "the path between them, since both are fast with others"
        if self.unknown:
            places = " or ".join(names[place] for place in self.unknown)
            cause = f"the path between them, or {places}, of which too few other pairs were measured"
        if self.quantity == "latency":
            return (
                f"a small message between {self.name(names)} takes {_times(self.ratio)} as long as expected from their other pairs: {cause}"
            )
        share = f"{format_percent(100 * self.ratio)} of the bandwidth expected from their other pairs"
        reaches = f"reach {share}, both ways" if self.both_ways else f"reaches {share}"
        return f"{self.name(names)} {reaches}: {cause}{self._latency_words()}"

    def _latency_words(self) -> str:
        return "" if self.latency_ratio is None else f"; a small message takes {_times(self.latency_ratio)} as long"


def _times(ratio: float) -> str:
    return f"{1 / ratio:.2f} times"


_LEAST_HOSTS = 4  # with fewer, a slow host looks the same as a faster path between the others
_ROUND = 4  # disjoint slow pairs as a part of the number of places: a disturbed round
_MOST_NAMES = 8
_LEAST_RATIO = 1e-9
_EVEN = 0.8  # the least speed of a pair in an even matrix, as a part of what its ends suggest
_HARDLY = 0.95  # a loss of more than that means no function at all
_NO_PLACES = "only pairs are judged: endpoints need three partners each (--sample 3, and no --one-to-all)"


def remeasured(judged: Sequence[Mapping[str, Any]] | None) -> list[Remeasured] | None:
    """Return the results in run.json's list of judged suspects; None if there is no such list."""
    if judged is None:
        return None
    return [
        Remeasured(tuple(suspect["places"]), suspect["state"], (suspect["evidence"] or [suspect["state"]])[-1], suspect.get("kind", ""))
        for suspect in judged
    ]


class PairEffects(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A matrix with its findings.

    again       the pairs that were measured again
    remeasured  the results of measuring suspects again; None: not recorded, then only the matrix decides
    """

    matrix: PairMatrix
    again: Collection[tuple[int, int]] = ()
    remeasured: Sequence[Remeasured] | None = None

    def findings(self) -> list[PairFinding]:
        """Return the findings that measuring again confirmed, places first, the worst first; none below four places."""
        return [finding for finding in self._of_matrix if self._judged(finding).state == CONFIRMED]

    def inconclusive(self) -> list[str]:
        """Return a sentence for each finding of the matrix that measuring again left inconclusive."""
        judged = [(finding, self._judged(finding)) for finding in self._of_matrix]
        return [f"{finding.sentence(self.matrix.places)}; {again.reason}" for finding, again in judged if again.state == INCONCLUSIVE]

    def _judged(self, finding: PairFinding) -> Remeasured:
        """Return the result of measuring a finding's places again; for a whole host, of all its places."""
        if self.remeasured is None:
            return Remeasured(finding.places, CONFIRMED, "")
        by_places = {result.places: result for result in self.remeasured}
        keys = [tuple(sorted(finding.places))] if finding.kind == "pair" else [(place,) for place in finding.places]
        results = [by_places.get(key, Remeasured(key, INCONCLUSIVE, "inconclusive: not measured again")) for key in keys]
        undecided = next((result for result in results if result.state == INCONCLUSIVE), None)
        if undecided is None and len({result.state for result in results}) > 1:
            return Remeasured(finding.places, CLEARED, "only a part of its places was slow again")
        if finding.quantity == "bandwidth" and any(result.state == CONFIRMED and result.kind == "latency" for result in results):
            return undecided or Remeasured(finding.places, INCONCLUSIVE, "inconclusive: only its small messages were slow again")
        return undecided or results[0]

    @cached_property
    def _of_matrix(self) -> list[PairFinding]:
        """Return the findings of the matrix alone, places first, the worst first."""
        of_places = [finding for view in self.views for finding in self._places(view) if not self._is_one_of_few_hosts(finding)]
        slow_latencies = {finding.places for finding in of_places if finding.quantity == "latency"}
        by_latency = {place for result in self.remeasured or () if result.kind == "latency" for place in result.places}
        # where only small messages were slow again, the finding is about these
        kept = [
            finding
            for finding in of_places
            if finding.quantity == "latency" or finding.places not in slow_latencies or not by_latency.issuperset(finding.places)
        ]
        places = _merged(kept)
        pairs = _merged([finding for view in self.views for finding in self._pairs(view)])
        return [*sorted(places, key=lambda finding: finding.ratio), *sorted(pairs, key=lambda finding: finding.ratio)]

    @property
    def result(self) -> str:
        """Return `confirmed` if something is slow, `no verdict` if only inconclusive suspects may be, else `nobody`."""
        if self.findings():
            return CONFIRMED
        return NO_VERDICT if self.inconclusive() else NONE_SLOW

    def uneven_pair(self) -> PairFinding | None:
        """Return the pair furthest below what its two ends suggest, named or not; None if all reach 80 % of that."""
        uneven = None
        for view in self.views:
            residuals = view.fit.residuals
            if not np.isfinite(residuals).any():
                continue
            a, b = (int(place) for place in np.unravel_index(np.nanargmin(residuals), residuals.shape))
            if exp(float(residuals[a, b])) < (_EVEN if uneven is None else uneven.ratio):
                uneven = _pair(view, np.zeros_like(view.measured), a, b)
        return uneven

    def doubts(self) -> list[str]:
        """Return why a slow place or pair is not named, and how slow a pair must be to be detected; a sentence each."""
        if self.matrix.n in (2, 3):
            return [TooFewEndpoints(2 if self.matrix.n == 2 else 3).render()]
        sentences = self.inconclusive()
        if self.views and not any(view.can_name_places for view in self.views):
            sentences.append(_NO_PLACES)
        for view in self.views:
            sentences += self._doubts(view)
        return sentences

    @cached_property
    def views(self) -> list[MatrixView]:
        """Return the views of the matrix, see `views_of`."""
        return views_of(self.matrix, self.again)

    def _places(self, view: MatrixView) -> list[PairFinding]:
        """Return a finding per slow place, and a single one for a host with slow places only."""
        slow = np.flatnonzero(view.senders().slow_with_all | view.receivers().slow_with_all)
        # if one direction is slow, the other one may be slow
        sends = view.senders(twice=True).slow_with_all
        receives = view.receivers(twice=True).slow_with_all
        by_place = {int(place): _place(view, int(place), bool(sends[place]), bool(receives[place])) for place in slow}
        measured = np.flatnonzero(view.fit.has_row_effect | view.fit.has_column_effect)
        for host in dict.fromkeys(self.matrix.hosts):
            members = {int(place) for place in measured if self.matrix.hosts[place] == host}
            if len(members) > 1 and members <= by_place.keys():
                by_place[min(members)] = _host(host, [by_place.pop(place) for place in sorted(members)])
        return list(by_place.values())

    def _is_one_of_few_hosts(self, finding: PairFinding) -> bool:
        """Return whether it is a host among so few that the others may be unusually fast instead."""
        return len(finding.places) > 1 and len(set(self.matrix.hosts)) < _LEAST_HOSTS

    def _pairs(self, view: MatrixView) -> list[PairFinding]:
        mask = view.exceptions(view.slow_cells(view.remeasured))
        rows, columns = np.nonzero(np.triu(mask) if view.symmetric else mask)
        order = np.argsort(view.fit.residuals[rows, columns])  # the worst first
        cells = zip(rows[order].tolist(), columns[order].tolist(), strict=True)
        findings = [_pair(view, mask, a, b) for a, b in cells if not (a > b and mask[b, a])]
        # many disjoint pairs that were measured only once are what a disturbance of one round leaves
        once = [finding.places for finding in findings if not view.remeasured[finding.places]]
        ends = {place for pair in once for place in pair}
        return [] if len(once) >= max(3, self.matrix.n // _ROUND) and len(ends) == 2 * len(once) else findings

    def _doubts(self, view: MatrixView) -> Iterator[str]:
        kind = f"{view.quantity} {view.where}".rstrip()
        uneven = np.flatnonzero(view.senders().slow_with_most | view.receivers().slow_with_most)
        if len(uneven):
            places = self._listed(uneven.tolist())
            yield f"{kind}: {places} slow with most partners but not with all, as a smaller part of a network is: not named"
        for host in filter(self._is_one_of_few_hosts, self._places(view)):
            yield f"{kind}: {host.name(self.matrix.places)} is slow, or the paths between the other hosts are fast: of so few none is named"
        slow = view.slow_cells(view.remeasured)
        crowded = np.flatnonzero((slow & ~view.exceptions(slow)).any(axis=1))
        if len(crowded):
            yield f"{kind}: {self._listed(crowded.tolist())} slow with several partners, more than exceptions and fewer than all: not named"
        if view.exceptions(slow).any() and not self._pairs(view):
            yield f"{kind}: slow pairs that have no place in common, as a disturbed round leaves them: not named, measure again"
        yield f"{kind}: {_detectable(view)}"

    def _listed(self, places: Sequence[int]) -> str:
        return f"{first_of((self.matrix.places[place] for place in places), _MOST_NAMES)} {'is' if len(places) == 1 else 'are'}"


def _place(view: MatrixView, place: int, sends: bool, receives: bool) -> PairFinding:
    parts = [(view.fit.rows, view.speeds)] if sends else []
    if receives and not view.symmetric:
        parts.append((view.fit.columns, view.speeds.T))
    kind = "node"
    if len(parts) == 1 and not view.symmetric:
        kind = "sender" if sends else "receiver"
    slow_cells = cells = 0
    for effects, speeds in parts:
        above_middle = (speeds[place] - view.fit.middle)[np.isfinite(speeds[place])]
        slow_cells += int((above_middle < effects[place] / 2).sum())
        cells += len(above_middle)
    ratio = _ratio([effects[place] for effects, _ in parts])
    return PairFinding(kind, view.quantity, (place,), ratio, slow_cells, cells, where=view.where)


def _host(host: str, findings: Sequence[PairFinding]) -> PairFinding:
    kinds = {finding.kind for finding in findings}
    return findings[0].replace(
        kind=findings[0].kind if len(kinds) == 1 else "node",
        places=tuple(place for finding in findings for place in finding.places),
        ratio=float(np.median([finding.ratio for finding in findings])),
        cells=sum(finding.cells for finding in findings),
        of_cells=sum(finding.of_cells for finding in findings),
        host=host,
    )


def _pair(view: MatrixView, mask: Mask, a: int, b: int) -> PairFinding:
    both_ways = bool(mask[b, a]) and not view.symmetric
    residuals = view.fit.residuals[[a, b], [b, a]] if both_ways else view.fit.residuals[[a], [b]]
    unknown = tuple(place for place, has_effect in ((a, view.fit.has_row_effect[a]), (b, view.fit.has_column_effect[b])) if not has_effect)
    measured = 1 if view.symmetric else int(view.measured[a, b]) + int(view.measured[b, a])
    return PairFinding("pair", view.quantity, (a, b), _ratio(residuals), 1 + both_ways, measured, both_ways, view.where, unknown=unknown)


def _ratio(effects: Sequence[float] | Figures) -> float:
    """Return the mean effect as a ratio; above 0 even for the impossible figures that a file may have."""
    return max(exp(float(np.mean(effects))), _LEAST_RATIO)


def _merged(findings: Sequence[PairFinding]) -> list[PairFinding]:
    """Return one finding for each place or pair: a slow latency becomes part of the slow bandwidth, other paths join the first ones."""
    kept: dict[frozenset[int], PairFinding] = {}
    for finding in findings:
        key = frozenset(finding.places)
        first = kept.setdefault(key, finding)
        if first.quantity != finding.quantity:
            kept[key] = first.replace(latency_ratio=finding.ratio)
        elif first is not finding and first.where != finding.where:
            kept[key] = first.replace(where="", cells=first.cells + finding.cells, of_cells=first.of_cells + finding.of_cells)
    return list(kept.values())


def _detectable(view: MatrixView) -> str:
    """Return how slow a single pair must be to be detected."""
    if not view.can_name_pairs:
        return "there are too few pairs to detect a single slow one"
    once = 1 - exp(-view.detectable(twice=False))
    twice = 1 - exp(-view.detectable(twice=True))
    if once < _HARDLY:
        again = f" (measured again: {_loss_text(view, twice)})" if once - twice >= 0.005 else ""
        return f"a single slow pair is detected at {_loss_text(view, once)}{again}"
    again = f", except for one that was measured again, at {_loss_text(view, twice)}" if twice < _HARDLY else ""
    return f"the pairs scatter too much to detect a single slow one{again}; use a longer --max-time, or measure on an idle system"


def _loss_text(view: MatrixView, loss: float) -> str:
    """Return a loss of speed: "15 % or more below the expected bandwidth", "2.5 times the expected latency or more"."""
    if view.symmetric:
        return f"{1 / max(1 - loss, _LEAST_RATIO):.2g} times the expected latency or more"
    return f"{format_percent(100 * loss)} or more below the expected bandwidth"
