"""Confirmed, cleared or inconclusive: the outcome of one candidate's trials, and the partners it still needs.

A place is slow with a partner if two conditions hold for its mean over the ways that were slow before. It is behind the controls by more
than half of its depth, and by more than chance explains. It is as fast as the others if it is behind by less than half. Its depth is that
of the sweep, or that of its partners (their median, of two the larger) if that is more. Two healthy partners must agree. Otherwise a third
one is measured, and partners that differ or are unclear are measured again. A place that is slow with healthy partners is also measured
with other suspects, or with a partner with which it was fast. If these pairs are as fast as pairs of other places, the network has parts,
and the place is in the smaller one.

The result can only make a place a suspect. `significance` confirms it: enough rounds that chance does not explain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.pair_statistics import (
    CELLS,
    INSIDE_HOST,
    INTERVAL_WIDTH,
    PLACES,
    TAILS,
    Figures,
    Mask,
    MatrixView,
    noise_scale,
    quantile,
)
from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, GroupFigure, Suspect
from collbench.plugins.hunt.records import PairMatrix
from collbench.plugins.hunt.significance import CHANCE, LATENCY, MOST_ROUNDS, RECEIVES, SENDS, RepeatOutcome, Repeats, Trial, repeats
from collbench.plugins.hunt.sweep import SlowMember
from collbench.reason import Fact
from collbench.stats.median import t_quantile

# The candidates to measure again after a sweep, and the healthy places to compare them with.
#
# The limits are loose: a candidate needs only the square root of a finding's share of false alarms (`analysis.pair_statistics`). It may
# be fast with some of its partners, and becomes a suspect only if it is slow again. Two other groups are candidates. The first are places
# that were fast with no partner: if half of a slow place's partners are slow, a fit by medians blames these partners. The second are the
# worst quarter of the other places, if they are noticeably slow. For both groups the sweep does not count, so the repetition needs more
# evidence. If a place was as fast as others with a partner, the network may have parts; that pair is measured again.

BANDWIDTH_WAYS = (SENDS, RECEIVES)
MEANS_DEGREES = 8.0  # means have lighter tails than single figures
_WAYS: dict[tuple[str, ...], facts.Ways] = {
    (SENDS, RECEIVES): "sends and receives", (SENDS,): "sends", (RECEIVES,): "receives", (LATENCY,): "small messages",
}  # fmt: skip
_FAST = 0.5  # of the depth: a place that is slow by less is as fast as the others
_DOUBTFUL = 0.5  # of the effect that makes a place a suspect: a slower place is not used as a healthy partner
_ALL_MEET = 8
_LEAST_HEALTHY = 3  # a partner and a control pair
_FAR_LESS = 0.25  # of the deepest candidate's depth; half of that depth counts as fast
_WORST = 4  # one of so many places


@dataclass(frozen=True)
class Candidate:
    """A place or path to measure again.

    places     one; or two of a path, the lower first
    ways       the slow ones of "sends", "receives", "latency" as seen from the first place; judged by their mean
    depth      how far below expectation, as a logarithm, above 0
    least      the smallest depth that is reported
    tail       how many scales of noise chance may explain with each of two partners; pooled: in the mean of all of them
    share      of false alarms that remains for the repeated measurement
    noise      the scale of one figure in the sweep, 0: unknown
    why        the sweep's evidence
    inside     whether it is about paths inside a host, if there are others
    fast_with  partners with which it was as fast as the others in the sweep, the fastest first
    doubtful   whether the sweep does not count as evidence
    any_way    whether `ways` are only a guess, because groups were measured: a single one of them may be slow
    """

    places: tuple[int, ...]
    ways: tuple[str, ...]
    depth: float
    least: float
    tail: float
    pooled: float
    share: float
    noise: float
    why: tuple[Fact, ...]
    inside: bool = False
    fast_with: tuple[int, ...] = ()
    doubtful: bool = False
    any_way: bool = False

    @property
    def fast(self) -> float:
        """The largest depth at which it counts as fast as the others."""
        return self.depth * _FAST

    @property
    def ratio(self) -> float:
        """The speed that it reached relative to the others."""
        return exp(-self.depth)

    @property
    def of_latency(self) -> bool:
        """Whether it is about the latency of small messages."""
        return LATENCY in self.ways

    @property
    def least_of_pair(self) -> float:
        """The smallest depth at which a single pair is reported."""
        return CELLS["latency" if self.of_latency else "bandwidth"].least


@dataclass(frozen=True)
class SweepResult:
    """The result of the sweep.

    healthy   places to compare with; middle: the usual speed of a pair, bytes per second
    deferred  candidates that are not measured again, since too few healthy places would remain for comparison
    """

    places: tuple[Candidate, ...]
    paths: tuple[Candidate, ...]
    healthy: tuple[int, ...]
    middle: float | None = None
    deferred: tuple[Candidate, ...] = ()


def find_candidates(matrix: PairMatrix, lost: Collection[int] = ()) -> SweepResult:
    """Return the candidates of a matrix of pairs, the slowest first, and the healthy places (not slow, not lost), the best known first.

    A healthy place that is half as slow as candidates comes last, and is left out if three others remain.
    """
    views = PairEffects(matrix).views
    known = [candidate for view in views for candidate in _places(view) if candidate.places[0] not in lost]
    places, deferred = _bandwidth_first(_fewer(_once(known), matrix.n), matrix.n - len(lost))
    paths = _once([candidate for view in views for candidate in _paths(view) if not set(candidate.places) & set(lost)])
    out = {candidate.places[0] for candidate in places} | set(lost)
    worst, measured = np.zeros(matrix.n), np.zeros(matrix.n, dtype=bool)
    for view in views:
        worst = np.minimum(worst, np.minimum(view.fit.rows, view.fit.columns) / PLACES[view.quantity].least)
        measured |= view.measured.any(axis=1) & view.measured.any(axis=0)
    healthy = [place for place in range(matrix.n) if place not in out and measured[place]]
    sure = [place for place in healthy if worst[place] > -_DOUBTFUL]
    if len(sure) >= max(3, len(healthy) // 2):
        healthy = sure
    middle = next((exp(view.fit.middle) for view in views if view.quantity == "bandwidth"), None)
    return SweepResult(places, paths, tuple(healthy), middle, deferred)


def candidates_of_groups(members: Sequence[SlowMember], n: int, lost: Collection[int] = ()) -> SweepResult:
    """Return the same from the slow members of groups, which do not show the slow way of a place, nor the part of chance."""
    level = PLACES["bandwidth"]
    places = _once([
        Candidate(
            (each.place,), BANDWIDTH_WAYS, max(-log(min(max(each.ratio, 1e-9), 1)), level.least), level.least,
            *again_tails(level.chance, 2 * n), 0.0, (each.why,), any_way=True,
        )
        for each in members if each.place not in lost
    ])  # fmt: skip
    out = {each.places[0] for each in places} | set(lost)
    return SweepResult(places, (), tuple(place for place in range(n) if place not in out))


def _bandwidth_first(places: tuple[Candidate, ...], n: int) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the candidates, and those that are left out because all together would leave too few healthy places of n.

    Left out are places that are slow for small messages only, or by far less than the slowest one, which is compared with them.
    """
    deepest = max((each.depth for each in places if not each.of_latency), default=0.0)
    slow = {each.places for each in places if not each.of_latency and each.depth >= _FAR_LESS * deepest}
    if not slow or n - len({each.places for each in places}) >= _LEAST_HEALTHY:
        return places, ()
    return tuple(each for each in places if each.places in slow), tuple(each for each in places if each.places not in slow)


def _fewer(places: Sequence[Candidate], n: int) -> tuple[Candidate, ...]:
    """Return the candidates without the doubtful ones that would leave no healthy majority."""
    sure = {each.places for each in places if not each.doubtful}
    doubtful = dict.fromkeys(each.places for each in places if each.places not in sure)
    room = list(doubtful)[: max(0, (n - 1) // 2 - len(sure))]
    kept = [each for each in places if each.doubtful and (each.places in sure or each.places in room)]
    return tuple(each for each in places if not each.doubtful or each in kept)


def _places(view: MatrixView) -> Iterator[Candidate]:
    """Yield places that are slow with most partners by more than the sweep's chance, or noticeably slow and among the worst.

    A place that was noticeably slow with each of its partners, sending or receiving, is slow, too; with few places, of which all pairs
    are measured, medians decide.
    """
    sends, receives = view.senders(twice=True), view.receivers(twice=True)
    level, known_ways = PLACES[view.quantity], np.array([view.fit.known_rows, view.fit.known_columns])
    behind = np.where(view.measured, view.speeds - view.fit.middle, -np.inf)
    best = np.array([behind.max(axis=1), behind.max(axis=0)])
    never_fast = (best < -level.least) & known_ways & (view.measured.shape[0] > _ALL_MEET)
    low = np.array([sends.steady | sends.uneven, receives.steady | receives.uneven]) | never_fast
    effects = np.array([view.fit.rows, view.fit.columns])
    known: Mask = view.fit.known_rows | view.fit.known_columns
    tests = max(1, int(known.sum())) * (1 if view.symmetric else 2)
    noticed = (effects < -level.least) & known & view.can_name_places & ~low.any(axis=0)
    worst = [place for place in np.argsort(effects.min(axis=0)) if noticed[:, place].any()][: max(1, len(known) // _WORST)]
    for place in np.flatnonzero(low.any(axis=0)):
        yield _place(view, int(place), low[:, place], again_tails(level.chance, tests))
    for place in worst:
        yield replace(_place(view, int(place), noticed[:, place], again_tails(level.chance, tests, counts=False)), doubtful=True)


def _place(view: MatrixView, place: int, low: Mask, tails: tuple[float, float, float]) -> Candidate:
    """Return the place as a candidate. If one way is slow, the other one also counts if it is at least half as slow."""
    effects = np.array([view.fit.rows[place], view.fit.columns[place]])
    if (effects > -PLACES[view.quantity].least).all():  # it was fast with no partner, and the fit blames the partners
        effects = np.array([float(np.nanmedian(cases)) - view.fit.middle for cases in (view.speeds[place], view.speeds[:, place])])
    slow = low | (effects < effects.min() * _FAST)
    ways, depth = _slow_ways(view, slow), -float(effects[slow].mean())
    # the partners with which it was slow in none of the ways, the fastest first
    speeds = [view.speeds[place] if way != RECEIVES else view.speeds[:, place] for way in ways]
    behind: Figures = np.min([each - view.fit.middle for each in speeds], axis=0)  # NaN if one of them is unknown
    not_slow = np.flatnonzero(np.nan_to_num(behind, nan=-np.inf) > -depth * _FAST)
    fast, met = tuple(int(each) for each in not_slow[np.argsort(-behind[not_slow])]), int(view.measured[place].sum())
    why = facts.SlowInSweep(_WAYS[ways], exp(-depth), met - len(fast), met, view.where)
    noise, inside = max(view.noise, view.error), view.where == INSIDE_HOST
    return Candidate((place,), ways, depth, PLACES[view.quantity].least, *tails, noise, (why,), inside, fast)


def _paths(view: MatrixView) -> Iterator[Candidate]:
    """Yield pairs that are slower than their places explain, and the worst one by the others' noise if it is noticeably slow."""
    mask, level, noise = view.exceptions(view.slow_cells(np.array(True))), CELLS[view.quantity], max(view.noise, view.error)
    tail = view.depth(twice=True) / noise if noise > 0 else 0.0
    pairs = np.argwhere(np.triu(mask | mask.T)).tolist()
    rest = np.where(view.measured, view.fit.rest, np.nan)
    if not pairs and view.can_name_pairs and np.nanmin(rest) < -level.least:
        lowest, mask = rest == np.nanmin(rest), rest < -level.least
        a, b = np.argwhere(np.triu(lowest | lowest.T))[0].tolist()
        pairs, others = [[a, b]], rest.copy()
        others[[a, b], [b, a]] = np.nan
        tail = quantile(level.chance / int(view.measured.sum()), TAILS)  # the whole share, since the sweep does not count
        noise = max(noise_scale(others), view.error)
    for a, b in pairs:
        slow = np.array([mask[a, b], mask[b, a]])
        ways, depth = _slow_ways(view, slow), -float(np.array([view.fit.rest[a, b], view.fit.rest[b, a]])[slow].mean())
        why = facts.PairSlowInSweep(_WAYS[ways], exp(-depth))
        yield Candidate((a, b), ways, depth, level.least, tail, tail, level.chance, noise, (why,), view.where == INSIDE_HOST)


def _slow_ways(view: MatrixView, slow: Mask) -> tuple[str, ...]:
    return (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)


def _once(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return one candidate for the bandwidth and one for the latency of each place or path: the slowest one.

    Each is judged by separate rounds, so that a changing latency does not hide a low bandwidth.
    """
    kept: dict[tuple[tuple[int, ...], bool], Candidate] = {}
    for each in sorted(found, key=lambda each: -each.depth / each.least):
        key = each.places, each.of_latency
        first = kept.setdefault(key, each)
        if first is not each:
            kept[key] = replace(first, why=(*first.why, *each.why))
    return tuple(sorted(kept.values(), key=lambda each: -each.depth))


def again_tails(chance: float, tests: int, counts: bool = True) -> tuple[float, float, float]:
    """Return (tail, pooled, share) of a `Candidate`. If the sweep counts, its share is the square root of the allowed chance."""
    share = (chance / max(1, tests)) ** (0.5 if counts else 1.0)
    return quantile(sqrt(share), TAILS), quantile(share, MEANS_DEGREES), share


# A pair measured again, compared with pairs of healthy places at the same time (the controls).

Alike = Callable[[int, int], Hashable]
Measured = tuple[tuple[int, ...], GroupFigure]
WAYS = (SENDS, RECEIVES, LATENCY)
_LEAST_RESTS = 8  # the scatter of fewer controls is not valid
_MEDIAN_SHARE = 1.8  # factor of the variance that the median of m figures with the tails of t₄ adds to one figure, times 1/m


@dataclass
class Scale:
    """The comparison: controls of the same round and kind of path, and their scatter.

    alike   returns the kind of path between two places (host, leaf). Controls of other kinds are used only if there are none of that kind
    typical  by way the sweep's result, for rounds without any control
    rests   by way the distances of single controls from the middle of their round
    errors  standard errors of controls from their own intervals
    """

    alike: Alike
    typical: Mapping[str, float] = field(default_factory=dict)
    rests: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    errors: list[float] = field(default_factory=list)

    def learn(self, controls: Sequence[Measured]) -> None:
        """Add the scatter of controls, once per round."""
        for low, high in ((figure.low, figure.high) for _, figure in controls):
            if low and high and high > low:
                self.errors.append(log(high / low) / INTERVAL_WIDTH)
        kinds = {self.alike(pair[0], pair[1]) for pair, _ in controls}
        for way in WAYS:
            for kind in kinds:
                values = self._values(way, [each for each in controls if self.alike(each[0][0], each[0][1]) == kind])
                self.rests[way] += list(values - np.median(values)) if len(values) > 1 else []

    def trial(self, place: int, measured: Measured, controls: Sequence[Measured], healthy: bool, noise: Mapping[str, float]) -> Trial:
        """Return the trial of `place`, its pair compared with the controls. noise: the sweep's noise of the place, by way."""
        pair, figure = measured
        partner = pair[1] if place == pair[0] else pair[0]
        if figure.speed is None:
            return Trial(place, partner, healthy, na=figure.na)
        kind = self.alike(pair[0], pair[1])
        own = [each for each in controls if self.alike(each[0][0], each[0][1]) == kind]
        those = own or list(controls)
        values = {way: value for way, value in _rates_at(place == pair[0], figure).items() if value}
        typical, depths, noises, control_depths = {}, {}, {}, {}
        for way, value in values.items():
            measured_way = _measured_way(way, place == pair[0])
            logs = np.sort(self._values(measured_way, those))
            # of an even number of controls the faster middle one, since a control that is not healthy is slower
            middle = float(np.exp(logs[len(logs) // 2])) if len(logs) else self.typical.get(measured_way)
            if middle:
                typical[way], depths[way] = middle, log(middle / value)
                noises[way] = self._noise(way, noise.get(way, 0.0), len(those))
                control_depths[way] = tuple(float(log(middle) - each) for each in self._values(measured_way, those))
        waited = max(0.0, figure.cpu_wait - float(np.median([control.cpu_wait for _, control in those] or [0.0])))
        return Trial(
            place, partner, healthy, len(those), bool(own), depths, noises, values, typical, control_depths, None, waited, figure.flipped
        )

    def _values(self, way: str, controls: Sequence[Measured]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.log([value for _, figure in controls if (value := _rates_at(True, figure).get(way))])

    def _noise(self, way: str, known: float, controls: int) -> float:
        rests = np.array(self.rests[way])
        shown = noise_scale(rests) if len(rests) >= _LEAST_RESTS else 0.0
        error = float(np.median(self.errors)) if self.errors and way != LATENCY else 0.0
        return max(known, shown, error) * sqrt(1 + _MEDIAN_SHARE / max(1, controls))


def _rates_at(first: bool, figure: GroupFigure) -> dict[str, float | None]:
    """Return by way the speeds and the latency as seen from the first place of a pair, or from the second."""
    there, back = (figure.speed, figure.backward) if first else (figure.backward, figure.speed)
    return {SENDS: there, RECEIVES: back, LATENCY: 1 / figure.latency_s if figure.latency_s else None}


def _measured_way(way: str, first: bool) -> str:
    """Return the way of the controls that was measured at the same time: the two directions of a pair follow each other."""
    return way if first or way == LATENCY else SENDS if way == RECEIVES else RECEIVES


SLOW, FAST, UNCLEAR = "slow", "fast", "unclear"
_ENOUGH = 2  # healthy partners
_MOST_PARTNERS = 3
_TIMES, _TIMES_UNCLEAR = 2, 3  # measurements with one partner
_MOST_TRIALS = 8  # to find out whether it is slow, before the rounds that confirm it
_LEAST_SCATTER = 4  # trials: fewer have no valid scatter
_STAYS, _JOINS = 0.25, 0.75  # of the slower way's depth, from which the other way counts as slow, too
_MOST_SLOW_CONTROLS = 0.3


@dataclass
class Check(ABC):
    """A candidate and its trials, measured again. chance: its share of `CHANCE`."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)
    chance: float = CHANCE

    @property
    def places(self) -> tuple[int, ...]:
        """The place, or the two of a path, the lower first."""
        return self.candidate.places

    def add(self, trial: Trial) -> None:
        """Add the result of a measurement."""
        self.trials.append(trial)

    @property
    @abstractmethod
    def repeats(self) -> Repeats:
        """Return the counts of the trials that decide."""

    @property
    def outcome(self) -> RepeatOutcome:
        """Return whether the trials show more than chance."""
        return self.repeats.outcome(self.chance, self.candidate.least)

    def suspect_of(self, kind: str, state: str, trials: Sequence[Trial], partners: Iterable[int], evidence: Iterable[Fact]) -> Suspect:
        """Return it as a suspect with the ratio of these trials, or of the sweep without any."""
        ratio = exp(-mean_depth(self.candidate, trials)[0]) if trials else self.candidate.ratio
        return Suspect(kind, self.places, state, ratio, *self.repeats.interval, tuple(partners), (*self.candidate.why, *evidence))


@dataclass
class PlaceCheck(Check):
    """A candidate place. in_a_part: other suspects show that the network has parts, and the place may be in one of them."""

    in_a_part: bool = False
    _met: dict[bool, dict[int, str]] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """The place."""
        return self.places[0]

    def add(self, trial: Trial) -> None:
        """Add the result of a measurement. If groups did not show which way is slow, this does."""
        super().add(trial)
        self._met.clear()
        if self.candidate.any_way and trial.healthy and trial.depths:
            self.candidate = _narrowed(self.candidate, self._healthy_trials())

    def tried(self, place: int) -> set[int]:
        """Return all partners planned for it, with or without figures."""
        return {trial.partner for trial in self.trials}

    def partners(self, healthy: bool = True) -> dict[int, str]:
        """Return the partners with a figure, and the outcome with each; the healthy ones, or the others."""
        if healthy not in self._met:
            those = [trial for trial in self.trials if trial.healthy == healthy and self._has_figures(trial)]
            # places that may be slow are judged by the sweep only: they must reach the usual speed
            candidate, met = self._as_deep if healthy else self.candidate, dict.fromkeys(trial.partner for trial in those)
            self._met[healthy] = {each: judge_trials(candidate, [trial for trial in those if trial.partner == each]) for each in met}
        return self._met[healthy]

    @property
    def slow_with_all(self) -> bool:
        """Return whether it is confirmed, apart from the partners it may be fast with."""
        found = list(self.partners().values())
        if len(found) < _ENOUGH or FAST in found:
            return False
        return UNCLEAR not in found or self._slow_in_the_mean()

    @property
    def needs_healthy(self) -> bool:
        """Return whether another healthy partner is needed."""
        found = list(self.partners().values())
        agreed = self.slow_with_all or set(found) == {FAST}
        return not self._exhausted and len(found) < (_ENOUGH if agreed else _MOST_PARTNERS)

    @property
    def partner_to_repeat(self) -> int | None:
        """Return a partner that differs from the others, or is unclear, and was not measured often enough; else None."""
        found = self.partners()
        if self._exhausted or len(found) < _ENOUGH or self.slow_with_all or set(found.values()) == {FAST}:
            return None
        majority = max((SLOW, FAST), key=list(found.values()).count)
        times = {partner: len(self._trials_with(partner)) for partner, how in found.items() if how != majority}
        odd = [partner for partner, met in times.items() if met < (_TIMES_UNCLEAR if found[partner] == UNCLEAR else _TIMES)]
        return min(odd, key=lambda partner: times[partner]) if odd else None

    @property
    def repeats(self) -> Repeats:
        """Return the counts of the trials with healthy partners."""
        return repeats(self._healthy_trials(), self.candidate.ways, self._as_deep.fast)

    @property
    def needs_rounds(self) -> bool:
        """Whether it is slow with all partners, but not in enough rounds for a confirmation."""
        if not self.slow_with_all or self.like_others or len(self.trials) >= _MOST_TRIALS + MOST_ROUNDS:
            return False
        return self.depth() >= self.candidate.least and self.outcome is RepeatOutcome.OPEN

    @property
    def fast_again(self) -> int | None:
        """Return a partner, not known to be healthy, with which it was as fast as the others once, to measure again; else None."""
        fast = [partner for partner, how in self.partners(healthy=False).items() if how != SLOW and len(self._trials_with(partner)) < 2]
        return fast[0] if fast and self.slow_with_all and not self._exhausted else None

    @property
    def fast_with_peer(self) -> bool:
        """Return whether it is slow with healthy places, and not with another."""
        return self.slow_with_all and FAST in self.partners(healthy=False).values()

    def state(self) -> str:
        """Return the current state."""
        found = list(self.partners().values())
        if self.slow_with_all:
            if self.fast_with_peer or self.like_others or self.in_a_part:
                return INCONCLUSIVE
            if self.depth() < self.candidate.least:
                return CLEARED
            return CONFIRMED if self.outcome is RepeatOutcome.SLOW else INCONCLUSIVE
        cleared = found.count(FAST) >= _ENOUGH and (SLOW not in found or self.path_partner is not None)
        return CLEARED if cleared else INCONCLUSIVE

    @property
    def like_others(self) -> bool:
        """Return whether many pairs of healthy places are as slow at the same time, or none of that kind of path was measured."""
        return many_as_slow(self._as_deep, self._healthy_trials())

    @property
    def path_partner(self) -> int | None:
        """Return the partner of a path that may be slow instead, or None.

        It is the only partner with which the place is slow, repeatedly and by a path's limit. With two others it is as fast as
        the others.
        """
        found = self.partners()
        slow = [partner for partner, how in found.items() if how == SLOW]
        twice = len(slow) == 1 and len(self._trials_with(slow[0])) >= 2 and list(found.values()).count(FAST) >= _ENOUGH
        return slow[0] if twice and mean_depth(self.candidate, self._trials_with(slow[0]))[0] >= self.candidate.least_of_pair else None

    def depth(self) -> float:
        """Return how far it is behind the controls, over all trials with healthy partners."""
        return mean_depth(self.candidate, self._healthy_trials())[0]

    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return the place as a suspect in its current state."""
        state = self.state()
        evidence = (*(trial.evidence(names) for trial in self.trials), *self._reason(state, names))
        return self.suspect_of(self._kind(), state, self._healthy_trials(), self.partners(), evidence)

    def path(self, names: Sequence[str]) -> Candidate | None:
        """Return the path that may be slow instead of the place, as a candidate with its own rounds; else None."""
        other = self.path_partner
        if other is None or self.slow_with_all or many_as_slow(self._as_deep, self._trials_with(other)):
            return None
        others = [partner for partner in self.partners() if partner != other]
        why = (facts.SlowWithOnePartner(names[self.place], names[other], tuple(names[each] for each in others)),)
        ways = self.candidate.ways
        if self.place > other:
            ways = tuple({SENDS: RECEIVES, RECEIVES: SENDS}.get(way, way) for way in ways)
        places, depth = (min(self.place, other), max(self.place, other)), mean_depth(self.candidate, self._trials_with(other))[0]
        least = self.candidate.least_of_pair
        return replace(self.candidate, places=places, ways=ways, depth=depth, least=least, why=why, fast_with=(), any_way=False)

    def _reason(self, state: str, names: Sequence[str]) -> list[Fact]:
        """Return the facts that the trials add up to."""
        if state != INCONCLUSIVE:
            return [self.repeats.counts] if state == CONFIRMED else [facts.BelowThreshold()] if self.slow_with_all else []
        fast = [partner for partner, how in self.partners(healthy=False).items() if how == FAST]
        if self.slow_with_all and fast:
            return [facts.FastWithPeers(tuple(names[partner] for partner in fast))]
        if self.slow_with_all and self.in_a_part:
            return [facts.DividedNetwork()]
        if self.slow_with_all:
            return [facts.ControlsAsSlow()] if self.like_others else [self.repeats.counts, self.repeats.reason]
        return [facts.TooFewPartners() if len(self.partners()) < _ENOUGH else facts.MixedPartners()]

    def _kind(self) -> str:
        """Return which of its ways are slow, by all trials with healthy partners."""
        means = {
            way: float(np.mean(depths))
            for way in WAYS
            if (depths := [each.depths[way] for each in self._healthy_trials() if way in each.depths])
        }
        worst = max((means.get(way, 0.0) for way in BANDWIDTH_WAYS), default=0.0)
        if self.candidate.of_latency:
            return "latency"
        bounds = {way: _STAYS if way in self.candidate.ways else _JOINS for way in BANDWIDTH_WAYS}  # the sweep had more partners
        slow = {way for way in BANDWIDTH_WAYS if means.get(way, 0.0) > max(worst * bounds[way], 0.0)}
        return {frozenset({SENDS}): "sender", frozenset({RECEIVES}): "receiver"}.get(frozenset(slow), "node")

    def _slow_in_the_mean(self) -> bool:
        """Return whether all trials together are certain, by the known noise, or by their own scatter."""
        trials = self._healthy_trials()
        depth, noise = mean_depth(self.candidate, trials)
        if depth > self.candidate.pooled * noise:
            return True
        single = [mean_depth(self.candidate, [trial])[0] for trial in trials]
        if len(single) < _LEAST_SCATTER:
            return False
        bound = t_quantile(1 - self.candidate.share, len(single) - 1) * float(np.std(single, ddof=1)) / sqrt(len(single))
        return depth > bound

    def _healthy_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.healthy and self._has_figures(trial)]

    def _trials_with(self, partner: int) -> list[Trial]:
        return [trial for trial in self.trials if trial.partner == partner and self._has_figures(trial)]

    def _has_figures(self, trial: Trial) -> bool:
        return any(way in trial.depths for way in self.candidate.ways)

    @property
    def _as_deep(self) -> Candidate:
        """Return the candidate with its partners' depth if that is larger. Of two that differ, one must be wrong."""
        by_partner: dict[int, list[Trial]] = {}
        for trial in self._healthy_trials():
            by_partner.setdefault(trial.partner, []).append(trial)
        depths = sorted(mean_depth(self.candidate, trials)[0] for trials in by_partner.values())
        middle = depths[len(depths) // 2] if depths else 0.0
        return replace(self.candidate, depth=max(self.candidate.depth, self.candidate.least, middle))

    @property
    def _exhausted(self) -> bool:
        return len(self.trials) >= _MOST_TRIALS and not self.needs_rounds


def judge_trials(candidate: Candidate, trials: Sequence[Trial]) -> str:
    """Return the outcome of trials with one partner, compared with half of the sweep's depth and with chance.

    Without controls at the same time a whole round may be slow, so the limit is that of a single pair.
    """
    depth, noise = mean_depth(candidate, trials)
    bound = max(candidate.fast, candidate.tail * noise)
    if not all(trial.controls for trial in trials):
        bound = max(bound, min(candidate.least_of_pair, candidate.depth))
    return SLOW if depth > bound else FAST if depth < candidate.fast else UNCLEAR


def many_as_slow(candidate: Candidate, trials: Sequence[Trial]) -> bool:
    """Return whether many controls are behind by half of the candidate's depth, or none of them was on its kind of path.

    Many: more than slow places among the controls explain.
    """
    if any(trial.controls for trial in trials) and not any(trial.alike for trial in trials):
        return True
    slow = [depth > candidate.fast for trial in trials for way in candidate.ways for depth in trial.control_depths.get(way, ())]
    return sum(slow) > _MOST_SLOW_CONTROLS * len(slow)


def mean_depth(candidate: Candidate, trials: Sequence[Trial]) -> tuple[float, float]:
    """Return (depth, its noise) over the candidate's ways in all of these trials; (0, 0) without trials."""
    measured = [(trial.depths[way], trial.noise[way]) for trial in trials for way in candidate.ways if way in trial.depths]
    if not measured:
        return 0.0, 0.0
    depths, noise = zip(*measured, strict=True)
    return fmean(depths), sqrt(fmean(each**2 for each in noise) / len(measured))


def _narrowed(candidate: Candidate, trials: Sequence[Trial]) -> Candidate:
    """Return the candidate with the ways that were slow: both if they differ by less than half; the latency if only that is slow."""
    means = {way: float(np.mean([trial.depths[way] for trial in trials if way in trial.depths] or [0.0])) for way in WAYS}
    worst = max(means[way] for way in BANDWIDTH_WAYS)
    if worst < candidate.least and means[LATENCY] >= PLACES["latency"].least:
        return replace(candidate, ways=(LATENCY,), depth=means[LATENCY])
    ways = tuple(way for way in BANDWIDTH_WAYS if means[way] >= worst / 2) if worst >= candidate.least else BANDWIDTH_WAYS
    return replace(candidate, ways=ways, depth=max(candidate.least, float(np.mean([means[way] for way in ways]))))
