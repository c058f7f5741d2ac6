"""Measure every candidate again with healthy partners, next to pairs of healthy places as controls, until each is decided.

In each round every candidate gets its next partner, the slowest candidate first. Free healthy places are then paired as controls, for
which a third of the healthy places is reserved. Partners are the places that were used least. If leaves are known, the first partner is
from the candidate's own leaf and the second from another one. For paths inside hosts it is from the same host. A slow pair is itself
measured again, and each of its ends with a healthy partner.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import msgspec

from collbench.plugins.hunt.candidates import SweepResult
from collbench.plugins.hunt.judging import Check, PathCheck, PlaceCheck
from collbench.plugins.hunt.protocol import CONFIRMED, PAIRS, HuntLog, RoundRequest, RoundResult, pair_of
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE
from collbench.plugins.hunt.trials import BANDWIDTH_WAYS, LATENCY, ControlComparison, Measured
from collbench.units import plural

_MOST_CONTROLS = 16
_KEPT = 3  # one of so many healthy places is reserved for controls
_MOST_PATHS = 16
_PAUSE_S = 0.25  # between rounds, so that a burst of other work affects only one of them
_PEERS = 3  # other suspects that each suspect is measured with, if there are so many


class RequestedPair(msgspec.Struct, frozen=True):
    """A pair that a check needs: `place` with `partner`. healthy: whether the partner is healthy."""

    check: Check
    place: int
    partner: int
    healthy: bool


@dataclass
class CrossCheck:
    """The results of the sweep, the location of places (`hosts`, `leaves`), and everything measured (`log`)."""

    log: HuntLog
    selection: SweepResult
    hosts: Sequence[str]
    leaves: Sequence[str] | None
    random: draws.Random
    places: list[PlaceCheck] = field(default_factory=list)
    paths: list[PathCheck] = field(default_factory=list)
    left_out: int = 0
    _used: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Create one check per candidate; of the paths only for the slowest ones."""
        self.places = [PlaceCheck(candidate) for candidate in self.selection.places]
        self.paths = [PathCheck(candidate) for candidate in self.selection.paths[:_MOST_PATHS]]
        self.left_out = len(self.selection.paths) - len(self.paths)
        self._add_paths()
        usual = dict.fromkeys(BANDWIDTH_WAYS, self.selection.middle) if self.selection.middle else {}
        self.comparison = ControlComparison(self.path_kind, usual)

    def run(self, room: int) -> Generator[RoundRequest, RoundResult, bool]:
        """Run rounds until no candidate needs another, at most `room`; return False if that was reached first."""
        requested = self._requested_pairs()
        while requested and room > 0:
            yield from self._round(requested)
            room -= 1
            requested = self._requested_pairs()
        return not requested

    def _add_paths(self) -> None:
        """Add the paths that may be slow instead of a place, which need their own rounds; all checks share the false-alarm rate."""
        checked = {(check.places, check.candidate.of_latency) for check in self.paths}
        for check in self.places:
            path = None if self._needs_partner(check) else check.path(self.log.names)
            if path is not None and (path.places, path.of_latency) not in checked:
                self.paths.append(PathCheck(path))
                checked.add((path.places, path.of_latency))
        for suspect in (*self.places, *self.paths):
            suspect.false_alarm_rate = FALSE_ALARM_RATE / (len(self.places) + len(self.paths))

    def _round(self, requested: Sequence[RequestedPair]) -> Generator[RoundRequest, RoundResult, None]:
        pairs = [pair_of(request.place, request.partner) for request in requested]
        controls = self._controls(pairs)
        why = f"{plural(len(set(pairs)), 'pair')} of suspects again, {len(controls)} of healthy places as controls"
        groups = tuple(dict.fromkeys([*pairs, *controls]))
        answer = yield from self.log.request(RoundRequest(PAIRS, groups, why, "cross-check", pause_s=_PAUSE_S))
        figures = dict(zip(groups, answer.figures, strict=True))
        measured: list[Measured] = [(pair, figures[pair]) for pair in controls if figures[pair].speed is not None]
        self.comparison.learn(measured)
        added: set[tuple[int, int, int]] = set()
        for request, pair in zip(requested, pairs, strict=True):
            # it counts for the bandwidth and for the latency of a place or path
            same_type: Sequence[Check] = self.places if isinstance(request.check, PlaceCheck) else self.paths
            for check in same_type:
                key = (id(check), request.place, request.partner)
                candidate = check.candidate
                if check.places == request.check.places and candidate.inside == request.check.candidate.inside and key not in added:
                    added.add(key)
                    # the sweep's noise of the figures that made the place a candidate
                    noise = dict.fromkeys((LATENCY,) if candidate.of_latency else BANDWIDTH_WAYS, candidate.noise)
                    check.add(self.comparison.trial(request.place, (pair, figures[pair]), measured, request.healthy, noise))
        self._mark_parts()
        self._add_paths()

    def _mark_parts(self) -> None:
        """Mark suspects that are fast with one another. They may form a part of the network, and others another part.

        A suspect that is slow with a place of its own leaf has another cause.
        """
        parts = any(check.fast_with_peer and check.fast_again is None for check in self.places)
        for check in self.places:
            slow_in_own_leaf = any(self._same_leaf(partner, check.place) for partner in check.partners())
            check.in_a_part = parts and not slow_in_own_leaf

    def _requested_pairs(self) -> list[RequestedPair]:
        """Return this round's pairs, with each place at most once. Pairs without a healthy place do not reduce the number of controls."""
        busy: set[int] = set()
        requested = self._peers(busy)
        for path in self._open_paths():
            a, b = path.places
            if path.needs_pair and not busy & {a, b}:
                requested.append(RequestedPair(path, a, b, False))
                busy |= {a, b}
        free = [place for place in self.selection.healthy if place not in busy]
        kept = max(2, len(free) // _KEPT)
        for check, place in self._unsettled():
            free = [healthy for healthy in free if healthy not in busy]
            if place in busy or (len(free) <= kept and requested):
                continue
            partner = None
            if not isinstance(check, PlaceCheck) or check.needs_healthy or check.needs_rounds:
                partner = self._partner(check, place, free)
            if partner is None and isinstance(check, PlaceCheck):
                partner = check.partner_to_repeat
                if partner is None and check.needs_rounds:
                    partner = self._partner(check, place, free, tried=())
            if partner is None or partner in busy:
                continue
            requested.append(RequestedPair(check, place, partner, True))
            busy |= {place, partner}
            self._used[partner] += 1
        return requested

    def _unsettled(self) -> Iterable[tuple[Check, int]]:
        """Yield (check, place) for each place that needs a healthy partner."""
        for check in self.places:
            if self._needs_partner(check):
                yield check, check.place
        for path in self._open_paths():
            for place in path.needs_ends:
                yield path, place

    def _open_paths(self) -> list[PathCheck]:
        """Return the slow paths that neither end explains. The paths of a candidate wait until it is cleared."""
        waits = {check.place for check in self.places if self._needs_partner(check) or check.state() == CONFIRMED}
        return [path for path in self.paths if not waits & set(path.places)]

    def _needs_partner(self, check: PlaceCheck) -> bool:
        """Return whether a check's state can still change. False for a place that is already confirmed by bandwidth or latency."""
        if any(other.place == check.place and other is not check and other.state() == CONFIRMED for other in self.places):
            return False
        untried = set(self.selection.healthy) - {check.place} - check.tried(check.place)
        return check.partner_to_repeat is not None or (check.needs_healthy and bool(untried)) or check.needs_rounds

    def _peers(self, busy: set[int]) -> list[RequestedPair]:
        """Return pairs that show whether slow places are in one part of the network: with a fast partner, or with each other."""
        requested = []
        for check in self.places:
            partner = check.fast_again
            peers = {trial.partner for trial in check.trials if not trial.healthy}
            if partner is None and check.slow_with_all and len(peers) < _PEERS:
                partner = self._peer(check, busy)
            if partner is None or busy & {check.place, partner}:
                continue
            for other in self.places:
                if other.place in (check.place, partner) and other.slow_with_all:
                    peer = partner if other.place == check.place else check.place
                    requested.append(RequestedPair(other, other.place, peer, False))
            busy |= {check.place, partner}
        return requested

    def _peer(self, check: PlaceCheck, busy: set[int]) -> int | None:
        """Return a partner with which the place was fast, else another slow place on another host, one on the same leaf first."""
        tried = check.tried(check.place)
        fast = [place for place in check.candidate.fast_with if place not in tried]
        slow = [other.place for other in self.places if other is not check and other.slow_with_all and other.place not in tried]
        elsewhere = [place for place in slow if self.hosts[place] != self.hosts[check.place]]
        elsewhere = [place for place in elsewhere if pair_of(place, check.place) not in self.log.avoided]
        nearest = sorted(elsewhere, key=lambda place: not self._same_leaf(place, check.place))
        return next((place for place in fast or nearest if place not in busy), None)

    def _partner(self, check: Check, place: int, free: Sequence[int], tried: Collection[int] | None = None) -> int | None:
        """Return the healthy partner that was used least, on the leaf that is next. tried: partners to exclude (None: all earlier ones)."""
        if tried is None:
            tried = check.tried(place)
        inside = check.candidate.inside
        partners = [partner for partner in free if partner not in tried and (self.hosts[partner] == self.hosts[place]) == inside]
        partners = [partner for partner in partners if pair_of(place, partner) not in self.log.avoided]
        if not partners:
            return None
        on_other_leaf = (len(tried) or len(check.trials)) % 2 == 1
        order = self.random.sample(partners, len(partners))
        return min(order, key=lambda partner: (self._same_leaf(partner, place) == on_other_leaf, self._used[partner]))

    def _controls(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return pairs of free healthy places, of each measured kind of path; of other kinds if none of that kind are available."""
        taken = {place for pair in pairs for place in pair}
        slow = {path.places for path in self.paths} | self.log.avoided
        free = [place for place in self.selection.healthy if place not in taken]
        free = self.random.sample(free, len(free))
        kinds: list[Hashable] = list(dict.fromkeys(self.path_kind(*pair) for pair in pairs))
        controls: list[tuple[int, int]] = []
        for turn in range(_MOST_CONTROLS):
            control = self._control(free, kinds[turn % len(kinds)], slow)
            if control is not None:
                controls.append(control)
                free = [place for place in free if place not in control]
        if not controls:
            control = self._control(free, None, slow)
            controls = [] if control is None else [control]
        return controls

    def _control(self, free: Sequence[int], kind: Hashable, slow: Collection[tuple[int, ...]]) -> tuple[int, int] | None:
        """Return the first pair of free places that is not a slow path and of this kind (None: of any kind); None without one."""
        for a, b in combinations(free, 2):
            if pair_of(a, b) not in slow and (kind is None or self.path_kind(a, b) == kind):
                return pair_of(a, b)
        return None

    def path_kind(self, a: int, b: int) -> Hashable:
        """Return the kind of path between two places: within a host, within a leaf, or other."""
        return self.hosts[a] == self.hosts[b], self._same_leaf(a, b)

    def _same_leaf(self, a: int, b: int) -> bool:
        """Return whether two places are known to be on one switch; "" is unknown."""
        return self.leaves is not None and self.leaves[a] == self.leaves[b] != ""
