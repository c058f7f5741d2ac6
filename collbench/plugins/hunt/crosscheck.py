"""Measure every candidate again with healthy partners, next to pairs of healthy places as controls, until each is decided.

In each round every candidate gets its next partner, the slowest candidate first. Free healthy places are then paired as controls, for
which a third of the healthy places is reserved. Partners are the places that were used least. If leaves are known, the first partner is
from the candidate's own leaf and the second from another one. For paths inside hosts it is from the same host.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.judging import (
    BANDWIDTH_WAYS,
    FAST,
    SLOW,
    Check,
    Measured,
    PlaceCheck,
    Scale,
    SweepResult,
    judge_trials,
    many_as_slow,
)
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, PAIRS, HuntLog, RoundRequest, RoundResult, Suspect, pair_of
from collbench.plugins.hunt.significance import CHANCE, LATENCY, RECEIVES, SENDS, RepeatOutcome, Repeats, Trial, repeats
from collbench.reason import Fact
from collbench.units import plural

# A single slow pair: it is measured again, and each of its ends with a healthy partner.

_MOST_UNCLEAR = 4  # times that an unclear pair is measured
_MOST = 2  # partners for each end


@dataclass
class PathCheck(Check):
    """A slow pair, measured again, and each of its ends with healthy partners."""

    @property
    def needs_pair(self) -> bool:
        """Return whether the pair itself must be measured (again)."""
        if self._pair == FAST or self._like_others:
            return False
        if self._pair != SLOW:
            return len(self.again) < _MOST_UNCLEAR
        return all(self._is_healthy(place) for place in self.places) and self.outcome is RepeatOutcome.OPEN

    @property
    def again(self) -> list[Trial]:
        """The trials of the pair itself."""
        return [trial for trial in self.trials if {trial.place, trial.partner} == set(self.places)]

    def of_end(self, place: int) -> list[Trial]:
        """Return the trials of an end with healthy partners."""
        return [trial for trial in self.trials if trial.place == place and trial.partner not in self.places]

    @property
    def repeats(self) -> Repeats:
        """Return the counts of the pair's trials."""
        return repeats(self.again, self.candidate.ways, max(self.candidate.fast, self.candidate.least / 2))

    @property
    def needs_ends(self) -> list[int]:
        """Return the ends that were not as fast as others with a healthy partner, while they have partners left to try."""
        if self._pair != SLOW:
            return []
        return [place for place in self.places if not self._is_healthy(place) and len(self.of_end(place)) < _MOST]

    def tried(self, place: int) -> set[int]:
        """Return the places that this end was measured with, and both ends."""
        return {trial.partner for trial in self.of_end(place)} | set(self.places)

    def state(self) -> str:
        """Return the current state."""
        if self._pair == FAST:
            return CLEARED
        if self._like_others:
            return INCONCLUSIVE
        slow = self._pair == SLOW and self.outcome is RepeatOutcome.SLOW
        return CONFIRMED if slow and all(self._is_healthy(place) for place in self.places) else INCONCLUSIVE

    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return the path as a suspect in its current state."""
        of_ends = [trial for place in self.places for trial in self.of_end(place)]
        evidence: list[Fact] = [trial.evidence(names) for trial in self.again]
        evidence += [*(trial.evidence(names, end=True) for trial in of_ends), *self._reason(names)]
        trials, partners = [trial for trial in self.again if trial.depths], [trial.partner for trial in of_ends if trial.depths]
        return self.suspect_of("path", self.state(), trials, partners, evidence)

    @property
    def _pair(self) -> str:
        trials = [trial for trial in self.again if trial.depths]
        return judge_trials(self.candidate, trials) if trials else ""

    @property
    def _like_others(self) -> bool:
        return many_as_slow(self.candidate, self.again)

    def _is_healthy(self, place: int) -> bool:
        """Return whether an end is as fast as the others with a healthy partner, in both directions: either one may be slow."""
        ways = (LATENCY,) if self.candidate.of_latency else BANDWIDTH_WAYS
        trials = [[trial.depths[way] for way in ways if way in trial.depths] for trial in self.of_end(place)]
        return any(depths and max(depths) < self.candidate.fast for depths in trials)

    def _reason(self, names: Sequence[str]) -> Sequence[Fact]:
        if self.state() == CONFIRMED:
            return [self.repeats.counts]
        if self.state() != INCONCLUSIVE:
            return []
        if self._pair != SLOW:
            return [facts.SlowOnce() if self._pair else facts.NotRetested()]
        if self._like_others:
            return [facts.ControlsAsSlow()]
        ends = [facts.EndNotCleared(names[place]) for place in self.places if not self._is_healthy(place)]
        return ends or [self.repeats.counts, self.repeats.reason]


_MOST_CONTROLS = 16
_KEPT = 3  # one of so many healthy places is reserved for controls
_MOST_PATHS = 16
_PAUSE_S = 0.25  # between rounds, so that a burst of other work affects only one of them
_PEERS = 3  # other suspects that each suspect is measured with, if there are so many

SuspectCheck = PlaceCheck | PathCheck


@dataclass(frozen=True)
class RequestedPair:
    """A pair that a case needs: `place` with `partner`. healthy: whether the partner is healthy."""

    case: SuspectCheck
    place: int
    partner: int
    healthy: bool


@dataclass
class CrossCheck:
    """The results of the sweep (`found`), the location of places (`hosts`, `leaves`), and everything measured (`log`)."""

    log: HuntLog
    found: SweepResult
    hosts: Sequence[str]
    leaves: Sequence[str] | None
    random: draws.Random
    places: list[PlaceCheck] = field(default_factory=list)
    paths: list[PathCheck] = field(default_factory=list)
    left_out: int = 0
    _used: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Create one case per candidate; of the paths only for the slowest ones."""
        self.places = [PlaceCheck(each) for each in self.found.places]
        self.paths = [PathCheck(each) for each in self.found.paths[:_MOST_PATHS]]
        self.left_out = len(self.found.paths) - len(self.paths)
        self._add_paths()
        medians = {way: self.found.middle for way in (SENDS, RECEIVES) if self.found.middle}
        self.scale = Scale(self.alike, medians)

    def run(self, room: int) -> Generator[RoundRequest, RoundResult, bool]:
        """Run rounds until no candidate needs another, at most `room`; return False if that was reached first."""
        while requested := self._requested_pairs():
            if room <= 0:
                return False
            room -= 1
            yield from self._round(requested)
        return True

    def _add_paths(self) -> None:
        """Add the paths that may be slow instead of a place, which need their own rounds; all cases share the chance."""
        known = {(case.places, case.candidate.of_latency) for case in self.paths}
        for case in self.places:
            path = None if self._needs_partner(case) else case.path(self.log.names)
            if path is not None and (path.places, path.of_latency) not in known:
                self.paths.append(PathCheck(path))
                known.add((path.places, path.of_latency))
        for check in (*self.places, *self.paths):
            check.chance = CHANCE / (len(self.places) + len(self.paths))

    def _round(self, requested: Sequence[RequestedPair]) -> Generator[RoundRequest, RoundResult, None]:
        pairs = [pair_of(wish.place, wish.partner) for wish in requested]
        controls = self._controls(pairs)
        numbers = f"{plural(len(set(pairs)), 'pair')} of suspects again, {len(controls)} of healthy places as controls"
        groups = tuple(dict.fromkeys([*pairs, *controls]))
        answer = yield from self.log.request(RoundRequest(PAIRS, groups, numbers, "cross-check", pause_s=_PAUSE_S))
        figures = dict(zip(groups, answer.figures, strict=True))
        measured: list[Measured] = [(pair, figures[pair]) for pair in controls if figures[pair].speed is not None]
        self.scale.learn(measured)
        added: set[tuple[int, int, int]] = set()
        for wish, pair in zip(requested, pairs, strict=True):
            # it counts for the bandwidth and for the latency of a place or path
            of_kind: Sequence[SuspectCheck] = self.places if isinstance(wish.case, PlaceCheck) else self.paths
            for case in of_kind:
                key, candidate = (id(case), wish.place, wish.partner), case.candidate
                if case.places == wish.case.places and candidate.inside == wish.case.candidate.inside and key not in added:
                    added.add(key)
                    # the sweep's noise of the figures that made the place a candidate
                    noise = dict.fromkeys((LATENCY,) if candidate.of_latency else BANDWIDTH_WAYS, candidate.noise)
                    case.add(self.scale.trial(wish.place, (pair, figures[pair]), measured, wish.healthy, noise))
        self._mark_parts()
        self._add_paths()

    def _mark_parts(self) -> None:
        """Mark suspects that are fast with one another. They may form a part of the network, and others another part.

        A suspect that is slow with a place of its own leaf has another cause.
        """
        parts = any(case.fast_with_peer and case.fast_again is None for case in self.places)
        for case in self.places:
            own = any(self._same_leaf(each, case.place) for each in case.partners())
            case.in_a_part = parts and not own

    def _requested_pairs(self) -> list[RequestedPair]:
        """Return this round's pairs, with each place at most once. Pairs without a healthy place do not reduce the number of controls."""
        busy: set[int] = set()
        requested = [*self._peers(busy), *self._pairs_again(busy)]
        free = [place for place in self.found.healthy if place not in busy]
        kept = max(2, len(free) // _KEPT)
        for case, place in self._unsettled():
            free = [each for each in free if each not in busy]
            if place in busy or (len(free) <= kept and requested):
                continue
            partner = self._partner(case, place, free) if isinstance(case, PathCheck) or case.needs_healthy or case.needs_rounds else None
            if partner is None and isinstance(case, PlaceCheck):
                partner = case.partner_to_repeat
                if partner is None and case.needs_rounds:
                    partner = self._partner(case, place, free, tried=())
            if partner is None or partner in busy:
                continue
            requested.append(RequestedPair(case, place, partner, True))
            busy |= {place, partner}
            self._used[partner] += 1
        return requested

    def _unsettled(self) -> Iterable[tuple[SuspectCheck, int]]:
        """Return (case, place) of each case that needs a healthy partner."""
        for case in self.places:
            if self._needs_partner(case):
                yield case, case.place
        for path in self._open_paths():
            for place in path.needs_ends:
                yield path, place

    def _open_paths(self) -> list[PathCheck]:
        """Return the slow paths that neither end explains. The paths of a candidate wait until it is cleared."""
        waits = {case.place for case in self.places if self._needs_partner(case) or case.state() == CONFIRMED}
        return [path for path in self.paths if not waits & set(path.places)]

    def _needs_partner(self, case: PlaceCheck) -> bool:
        """Return whether a case's state can still change. False for a place that is already confirmed by bandwidth or latency."""
        others = [each for each in self.places if each.place == case.place and each is not case]
        if any(each.state() == CONFIRMED for each in others):
            return False
        met = {each for each in self.found.healthy if each != case.place} <= case.tried(case.place)
        return case.partner_to_repeat is not None or (case.needs_healthy and not met) or case.needs_rounds

    def _pairs_again(self, busy: set[int]) -> list[RequestedPair]:
        requested = []
        for path in self._open_paths():
            a, b = path.places
            if path.needs_pair and not busy & {a, b}:
                requested.append(RequestedPair(path, a, b, False))
                busy |= {a, b}
        return requested

    def _peers(self, busy: set[int]) -> list[RequestedPair]:
        """Return pairs that show whether slow places are in one part of the network: with a fast partner, or with each other."""
        requested = []
        for case in self.places:
            partner = case.fast_again
            peers = {trial.partner for trial in case.trials if not trial.healthy}
            if partner is None and case.slow_with_all and len(peers) < _PEERS:
                partner = self._peer(case, busy)
            if partner is None or busy & {case.place, partner}:
                continue
            for each in self.places:
                if each.place in (case.place, partner) and each.slow_with_all:
                    requested.append(RequestedPair(each, each.place, partner if each.place == case.place else case.place, False))
            busy |= {case.place, partner}
        return requested

    def _peer(self, case: PlaceCheck, busy: set[int]) -> int | None:
        """Return a partner with which the place was fast, else another slow place on another host, one on the same leaf first."""
        tried = case.tried(case.place)
        fast = [place for place in case.candidate.fast_with if place not in tried]
        others = [each.place for each in self.places if each is not case and each.slow_with_all and each.place not in tried]
        apart = [place for place in others if self.hosts[place] != self.hosts[case.place]]
        nearest = sorted(apart, key=lambda place: not self._same_leaf(place, case.place))
        return next((place for place in fast or nearest if place not in busy), None)

    def _partner(self, case: SuspectCheck, place: int, free: Sequence[int], tried: Collection[int] | None = None) -> int | None:
        """Return the healthy partner that was used least, on the leaf that is next. tried: partners to exclude (None: all earlier ones)."""
        if tried is None:
            tried = case.tried(place)
        those = [each for each in free if each not in tried and (self.hosts[each] == self.hosts[place]) == case.candidate.inside]
        if not those:
            return None
        other_leaf = (len(tried) or len(case.trials)) % 2 == 1
        order = self.random.sample(those, len(those))
        return min(order, key=lambda each: (self._same_leaf(each, place) == other_leaf, self._used[each]))

    def _controls(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return pairs of free healthy places, of each measured kind of path; of other kinds if none of that kind are available."""
        taken = {place for pair in pairs for place in pair}
        slow = {path.places for path in self.paths}
        free = [place for place in self.found.healthy if place not in taken]
        free = self.random.sample(free, len(free))
        kinds: list[Hashable] = list(dict.fromkeys(self.alike(*pair) for pair in pairs))
        found: list[tuple[int, int]] = []
        for turn in range(_MOST_CONTROLS):
            pair = self._control(free, kinds[turn % len(kinds)], slow)
            if pair is not None:
                found.append(pair)
                free = [place for place in free if place not in pair]
        return found or [pair for pair in [self._control(free, None, slow)] if pair is not None]

    def _control(self, free: Sequence[int], kind: Hashable, slow: Collection[tuple[int, ...]]) -> tuple[int, int] | None:
        for at, a in enumerate(free):
            for b in free[at + 1 :]:
                if pair_of(a, b) not in slow and (kind is None or self.alike(a, b) == kind):
                    return pair_of(a, b)
        return None

    def alike(self, a: int, b: int) -> Hashable:
        """Return the kind of path between two places: within a host, within a leaf, or other."""
        return self.hosts[a] == self.hosts[b], self._same_leaf(a, b)

    def _same_leaf(self, a: int, b: int) -> bool:
        """Return whether two places are known to be on one switch; "" is unknown."""
        return self.leaves is not None and self.leaves[a] == self.leaves[b] != ""
