"""Confirmed, cleared or inconclusive: the outcome of one candidate's trials, and the partners it still needs.

A place is slow with a partner when the mean of what was slow before is behind the controls by more than half of its depth and by more
than chance explains; as fast as the others when it is behind by less than half. Its depth is that of the sweep, or that of its
partners (their median, of two the larger) if that is more. Two healthy partners have to agree; otherwise a third one is measured, and
partners that differ, or are unclear, again. A place that is slow with healthy partners is also measured with other
suspects, or with a partner it was fast with: if it is as fast with those as others are with one another, the network has parts, and
the place is in the smaller one.

All of this can only make a place a suspect. It is confirmed by `significance`: enough rounds that chance does not explain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from collbench.analysis.hunt.facts import (
    BelowThreshold,
    ControlsAsSlow,
    DividedNetwork,
    FastWithPeers,
    MixedPartners,
    PairSlowInSweep,
    SlowInSweep,
    SlowWithOnePartner,
    TooFewPartners,
    Ways,
)
from collbench.analysis.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, GroupFigure, Hint, Suspect
from collbench.analysis.hunt.significance import CHANCE, LATENCY, MOST_ROUNDS, RECEIVES, SENDS, RepeatOutcome, Repeats, Trial, repeats
from collbench.analysis.pair_statistics import CELLS, PLACES, TAILS, Figures, Mask, MatrixView, noise_scale, quantile
from collbench.analysis.pairs import PairEffects
from collbench.reason import Fact
from collbench.results.rounds import PairMatrix
from collbench.stats.median import t_quantile

# The candidates to measure again after a sweep, and the healthy places to measure them against.
#
# The limits are loose on purpose: a candidate needs only the square root of a finding's share of false alarms (`analysis.pair_view`), may
# be fast with some of its partners, and becomes a suspect only when it is measured again. Places that were fast with no partner are
# candidates, too (if half of a slow place's partners are slow, a fit by medians blames them), and so are the worst of the others, one in
# four, if they are noticeably slow: for these the sweep is not counted, so the repetition needs more evidence. Signs of a network with
# several parts (it was as fast as others with a partner) are kept, and tested again.

BANDWIDTH_WAYS = (SENDS, RECEIVES)
MEANS_DEGREES = 8.0  # means have lighter tails than single figures
_WAYS: dict[tuple[str, ...], Ways] = {
    (SENDS, RECEIVES): "sends and receives", (SENDS,): "sends", (RECEIVES,): "receives", (LATENCY,): "small messages",
}  # fmt: skip
_FAST = 0.5  # of the depth: a place that is slow by less is as fast as the others
_DOUBTFUL = 0.5  # of the effect from which a place is named: a slower one is not used as a healthy partner
_ALL_MEET = 8
_LEAST_HEALTHY = 3  # a partner and a control pair
_FAR_LESS = 0.25  # of the deepest candidate's depth, half of which is fast
_WORST = 4  # one in so many places
_INSIDE = "inside its host"


@dataclass(frozen=True)
class Candidate:
    """places     one; or two of a path, the lower first
    ways       what was slow, of "sends", "receives", "latency" as seen from the first place; judged by their mean
    depth      how far below expectation, as a logarithm, above 0
    least      the depth from which it is reported
    tail       how many scales of noise chance may explain with each of two partners; pooled: in the mean of all of them
    share      of false alarms that is left for measuring it again
    noise      the scale of one figure in the sweep, 0: unknown
    why        what the sweep saw
    inside     whether it is about paths inside a host, where there are others
    fast_with  partners with which it was as fast as the others in the sweep, the fastest first
    doubtful   whether the sweep does not count as evidence
    any_way    whether `ways` are only a guess, because groups were measured: each may be the slow one alone
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
        """Up to which depth it is as fast as the others."""
        return self.depth * _FAST

    @property
    def ratio(self) -> float:
        """The speed it reached of what the others did."""
        return exp(-self.depth)


@dataclass(frozen=True)
class SweepResult:
    """What the sweep came to.

    healthy   places to measure against; middle: the usual speed of a pair, bytes per second
    deferred  candidates that are not measured again: with them too few places would be left to measure a slow bandwidth against
    """

    places: tuple[Candidate, ...]
    paths: tuple[Candidate, ...]
    healthy: tuple[int, ...]
    middle: float | None = None
    deferred: tuple[Candidate, ...] = ()


def find_candidates(matrix: PairMatrix, lost: Sequence[int] = ()) -> SweepResult:
    """Return the candidates of a matrix of pairs, the slowest first, and the healthy places (not slow, not lost), the best known first."""
    views = PairEffects(matrix).views
    places = _fewer(_once([each for view in views for each in _places(view) if each.places[0] not in lost]), matrix.n)
    places, deferred = _bandwidth_first(places, matrix.n - len(lost))
    paths = _once([each for view in views for each in _paths(view) if not set(each.places) & set(lost)])
    out = {each.places[0] for each in places} | set(lost)
    bandwidth = [view for view in views if view.quantity == "bandwidth"]
    middle = exp(bandwidth[0].fit.middle) if bandwidth else None
    return SweepResult(places, paths, _healthy_places(views, matrix.n, out), middle, deferred)


def candidates_of_hints(hints: Sequence[Hint], n: int, lost: Sequence[int] = ()) -> SweepResult:
    """The same of hints that groups gave: what is slow about a place is not known, nor how much chance there is in it."""
    level = PLACES["bandwidth"]
    tails = again_tails(level.chance, 2 * n)
    found = [
        Candidate(
            (place,),
            BANDWIDTH_WAYS,
            max(-log(min(max(hint.ratio, 1e-9), 1)), level.least),
            level.least,
            *tails,
            0.0,
            hint.evidence,
            any_way=True,
        )
        for hint in hints
        for place in hint.places
        if place not in lost
    ]
    places = _once(found)
    out = {each.places[0] for each in places} | set(lost)
    return SweepResult(places, (), tuple(place for place in range(n) if place not in out))


def _bandwidth_first(places: tuple[Candidate, ...], n: int) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the candidates, and those that are left out where all together leave too few healthy places of n.

    Left out are places that are slow for small messages alone, or by far less than the slowest one: that one can be measured against them.
    """
    deepest = max((each.depth for each in places if LATENCY not in each.ways), default=0.0)
    slow = {each.places for each in places if LATENCY not in each.ways and each.depth >= _FAR_LESS * deepest}
    if not slow or n - len({each.places for each in places}) >= _LEAST_HEALTHY:
        return places, ()
    return tuple(each for each in places if each.places in slow), tuple(each for each in places if each.places not in slow)


def _fewer(places: Sequence[Candidate], n: int) -> tuple[Candidate, ...]:
    """Without the doubtful ones that would leave no majority to measure against."""
    sure = {each.places for each in places if not each.doubtful}
    doubtful = dict.fromkeys(each.places for each in places if each.places not in sure)
    room = list(doubtful)[: max(0, (n - 1) // 2 - len(sure))]
    kept = [each for each in places if each.doubtful and (each.places in sure or each.places in room)]
    return tuple(each for each in places if not each.doubtful or each in kept)


def _places(view: MatrixView) -> Iterator[Candidate]:
    """Slow with most partners beyond the sweep's chance, or noticeably and among the worst."""
    sends, receives = view.senders(twice=True), view.receivers(twice=True)
    low = np.array([sends.steady | sends.uneven, receives.steady | receives.uneven]) | _never_fast(view)
    effects = np.array([view.fit.rows, view.fit.columns])
    level, known = PLACES[view.quantity], view.fit.known_rows | view.fit.known_columns
    tests = max(1, int(known.sum())) * (1 if view.symmetric else 2)
    noticed = (effects < -level.least) & known & view.can_name_places & ~low.any(axis=0)
    worst = [place for place in np.argsort(effects.min(axis=0)) if noticed[:, place].any()][: max(1, len(known) // _WORST)]
    for place in np.flatnonzero(low.any(axis=0)):
        yield _place(view, int(place), low[:, place], again_tails(level.chance, tests))
    for place in worst:
        yield replace(_place(view, int(place), noticed[:, place], again_tails(level.chance, tests, counts=False)), doubtful=True)


def _never_fast(view: MatrixView) -> Mask:
    """Return [2 × n] whether a place was noticeably slow with each of its partners, sending and receiving; of few places, which all
    meet, medians decide it.
    """
    behind = view.speeds - view.fit.middle
    least, known = PLACES[view.quantity].least, np.array([view.fit.known_rows, view.fit.known_columns])
    best = np.array([np.where(view.measured, behind, -np.inf).max(axis=axis) for axis in (1, 0)])
    never: Mask = (best < -least) & known & (view.measured.shape[0] > _ALL_MEET)
    return never


def _place(view: MatrixView, place: int, low: Mask, tails: tuple[float, float, float]) -> Candidate:
    """If one way is slow, the other counts, too, if it is at least half as slow."""
    effects = np.array([view.fit.rows[place], view.fit.columns[place]])
    if (effects > -PLACES[view.quantity].least).all():  # it was fast with no partner, and the fit blames the partners
        effects = np.array([float(np.nanmedian(cases)) - view.fit.middle for cases in (view.speeds[place], view.speeds[:, place])])
    slow = low | (effects < effects.min() * _FAST)
    ways = (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)
    depth = -float(effects[slow].mean())
    fast, met = _fast_with(view, place, ways, depth), int(view.measured[place].sum())
    why = SlowInSweep(_WAYS[ways], exp(-depth), met - len(fast), met, view.where)
    noise, inside = max(view.noise, view.error), view.where == _INSIDE
    return Candidate((place,), ways, depth, PLACES[view.quantity].least, *tails, noise, (why,), inside, fast)


def _paths(view: MatrixView) -> Iterator[Candidate]:
    """Single pairs that are slower than their places explain; and the worst one by the noise of the others, if it lags noticeably."""
    mask, level = view.exceptions(view.slow_cases(np.array(True))), CELLS[view.quantity]
    for a, b in _pairs(mask):
        noise = max(view.noise, view.error)
        tail = view.depth(twice=True) / noise if noise > 0 else 0.0
        yield _path(view, (a, b), mask, (tail, noise))
    rest = np.where(view.measured, view.fit.rest, np.nan)
    if not mask.any() and view.can_name_pairs and np.nanmin(rest) < -level.least:
        ((a, b),) = _pairs(rest == np.nanmin(rest))[:1]
        others = rest.copy()
        others[[a, b], [b, a]] = np.nan
        tail = quantile(level.chance / int(view.measured.sum()), TAILS)  # all of the share: the sweep is given no credit
        yield _path(view, (a, b), rest < -level.least, (tail, max(noise_scale(others), view.error)))


def _pairs(mask: Mask) -> list[tuple[int, int]]:
    """The lower place first."""
    return [(int(a), int(b)) for a, b in zip(*np.nonzero(np.triu(mask | mask.T)), strict=True)]


def _path(view: MatrixView, pair: tuple[int, int], mask: Mask, limits: tuple[float, float]) -> Candidate:
    """limits: (tail, noise)."""
    slow = [bool(mask[pair]), bool(mask[pair[::-1]])]
    ways = (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)
    depth = -float(np.array([view.fit.rest[pair], view.fit.rest[pair[::-1]]])[slow].mean())
    (tail, noise), level = limits, CELLS[view.quantity]
    why = PairSlowInSweep(_WAYS[ways], exp(-depth))
    return Candidate(pair, ways, depth, level.least, tail, tail, level.chance, noise, (why,), view.where == _INSIDE)


def _fast_with(view: MatrixView, place: int, ways: Sequence[str], depth: float) -> tuple[int, ...]:
    """Return the partners with which it was slow in none of the ways, the fastest first."""
    cases = [view.speeds[place] if way != RECEIVES else view.speeds[:, place] for way in ways]
    behind: Figures = np.min([each - view.fit.middle for each in cases], axis=0)  # NaN where any of them is unknown
    fast = np.flatnonzero(np.nan_to_num(behind, nan=-np.inf) > -depth * _FAST)
    return tuple(int(each) for each in fast[np.argsort(-behind[fast])])


def _healthy_places(views: Sequence[MatrixView], n: int, out: set[int]) -> tuple[int, ...]:
    """Return the places not excluded; one that is half as slow as candidates comes last, and is left out if three others remain."""
    worst, known = np.zeros(n), np.zeros(n, dtype=bool)
    for view in views:
        least = PLACES[view.quantity].least
        worst = np.minimum(worst, np.minimum(view.fit.rows, view.fit.columns) / least)
        known |= view.measured.any(axis=1) & view.measured.any(axis=0)
    those = [place for place in range(n) if place not in out and known[place]]
    sure = [place for place in those if worst[place] > -_DOUBTFUL]
    return tuple(sure) if len(sure) >= max(3, len(those) // 2) else tuple(those)


def _once(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return one candidate for the bandwidth and one for the latency of each place or path: the slowest one.

    Each is judged by its own rounds, so that a latency that comes and goes does not hide a bandwidth that is low.
    """
    kept: dict[tuple[tuple[int, ...], bool], Candidate] = {}
    for each in sorted(found, key=lambda each: -each.depth / each.least):
        key = each.places, LATENCY in each.ways
        first = kept.setdefault(key, each)
        if first is not each:
            kept[key] = replace(first, why=(*first.why, *each.why))
    return tuple(sorted(kept.values(), key=lambda each: -each.depth))


def again_tails(chance: float, tests: int, counts: bool = True) -> tuple[float, float, float]:
    """(tail, pooled, share) of a `Candidate`: what the sweep has left of the share, which is its square root if the sweep counts."""
    share = (chance / max(1, tests)) ** (0.5 if counts else 1.0)
    return quantile(sqrt(share), TAILS), quantile(share, MEANS_DEGREES), share


# A pair measured again, against pairs of places that are well, at the same time: the controls.

Alike = Callable[[int, int], Hashable]
Measured = tuple[tuple[int, ...], GroupFigure]
WAYS = (SENDS, RECEIVES, LATENCY)
_LEAST_RESTS = 8  # the scatter of fewer controls has no meaning
_MEDIAN_SHARE = 1.8  # what a median of m figures with the tails of t₄ adds to the variance of one, times 1/m
_WIDTH = 2 * 1.96


@dataclass
class Scale:
    """What to measure against: controls of the same round and kind of path, and how much they scatter.

    alike   the kind of path between two places (host, leaf): of other kinds are only controls where there are none of its own
    typical  by way what the sweep found, for rounds without any control
    rests   by way how far single controls were from the middle of theirs
    errors  standard errors of controls from their own intervals
    """

    alike: Alike
    typical: Mapping[str, float] = field(default_factory=dict)
    rests: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    errors: list[float] = field(default_factory=list)

    def learn(self, controls: Sequence[Measured]) -> None:
        """Their scatter, once per round."""
        for figure in (figure for _, figure in controls if figure.low and figure.high and figure.high > figure.low):
            self.errors.append(log(_not_none(figure.high) / _not_none(figure.low)) / _WIDTH)
        kinds = {self.alike(pair[0], pair[1]) for pair, _ in controls}
        for way in WAYS:
            for kind in kinds:
                values = self._values(way, [each for each in controls if self.alike(each[0][0], each[0][1]) == kind])
                self.rests[way] += list(values - np.median(values)) if len(values) > 1 else []

    def trial(self, place: int, measured: Measured, controls: Sequence[Measured], healthy: bool, noise: Mapping[str, float]) -> Trial:
        """The pair of `place` against the controls. noise: what the sweep knew of it, by way."""
        pair, figure = measured
        partner = pair[1] if place == pair[0] else pair[0]
        if figure.speed is None:
            return Trial(place, partner, healthy, na=figure.na)
        kind = self.alike(pair[0], pair[1])
        own = [each for each in controls if self.alike(each[0][0], each[0][1]) == kind]
        those = own or list(controls)
        values = {way: value for way, value in _rates_at(place == pair[0], figure).items() if value}
        typical = {way: found for way in values if (found := self._typical(_measured_way(way, place == pair[0]), those))}
        depths = {way: log(typical[way] / values[way]) for way in typical}
        scales = {way: self._noise(way, noise.get(way, 0.0), len(those)) for way in typical}
        controls_by_way = {way: self._values(_measured_way(way, place == pair[0]), those) for way in typical}
        control_depths = {way: tuple(float(log(typical[way]) - each) for each in controls_by_way[way]) for way in typical}
        waited = max(0.0, figure.cpu_wait - float(np.median([control.cpu_wait for _, control in those] or [0.0])))
        return Trial(
            place, partner, healthy, len(those), bool(own), depths, scales, values, typical, control_depths, None, waited, figure.flipped
        )

    def _typical(self, way: str, controls: Sequence[Measured]) -> float | None:
        """Return the controls' median, of an even number the faster one, since a control that is not healthy is slower."""
        values = np.sort(self._values(way, controls))
        return float(np.exp(values[len(values) // 2])) if len(values) else self.typical.get(way)

    def _values(self, way: str, controls: Sequence[Measured]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.log([value for _, figure in controls if (value := _rates_at(True, figure).get(way))])

    def _noise(self, way: str, known: float, controls: int) -> float:
        rests = np.array(self.rests[way])
        shown = noise_scale(rests) if len(rests) >= _LEAST_RESTS else 0.0
        error = float(np.median(self.errors)) if self.errors and way != LATENCY else 0.0
        return max(known, shown, error) * sqrt(1 + _MEDIAN_SHARE / max(1, controls))


def _rates_at(first: bool, figure: GroupFigure) -> dict[str, float | None]:
    """What the first place of a pair, or the other one, sends and receives."""
    there, back = (figure.speed, figure.backward) if first else (figure.backward, figure.speed)
    return {SENDS: there, RECEIVES: back, LATENCY: 1 / figure.latency_s if figure.latency_s else None}


def _measured_way(way: str, first: bool) -> str:
    """Messages there and back are measured one after the other: which of the controls' two was at the same time."""
    return way if first or way == LATENCY else SENDS if way == RECEIVES else RECEIVES


def _not_none(value: float | None) -> float:
    assert value is not None
    return value


SLOW, FAST, UNCLEAR = "slow", "fast", "unclear"
_ENOUGH = 2  # partners that are well
_MOST_PARTNERS = 3
_TIMES, _TIMES_UNCLEAR = 2, 3  # that a partner is met
_MOST_TRIALS = 8  # that find out whether it is slow; the rounds that confirm it come on top
_LEAST_SCATTER = 4  # trials: the scatter of fewer means little
_STAYS, _JOINS = 0.25, 0.75  # of the slower way's depth: what makes the other one slow, too
_MOST_SLOW_CONTROLS = 0.3


@dataclass
class PlaceCheck:
    """A candidate place and its trials.

    in_a_part  other suspects show that the network has parts, and the place may be in one of them
    chance     its share of `CHANCE`
    """

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)
    in_a_part: bool = False
    chance: float = CHANCE
    _met: dict[bool, dict[int, str]] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """Which."""
        return self.candidate.places[0]

    def add(self, trial: Trial) -> None:
        """What came of a meeting; what groups left open (which way it is slow) is taken from it."""
        self.trials.append(trial)
        self._met.clear()
        if self.candidate.any_way and trial.healthy and trial.depths:
            self.candidate = _narrowed(self.candidate, self._healthy_trials())

    def partners(self, healthy: bool = True) -> dict[int, str]:
        """Return the partners that it has a figure with, and the result of each."""
        if healthy not in self._met:
            met = dict.fromkeys(trial.partner for trial in self.trials if trial.healthy == healthy and self._has_figures(trial))
            self._met[healthy] = {partner: self._with(partner, healthy) for partner in met}
        return self._met[healthy]

    @property
    def tried(self) -> set[int]:
        """Return all partners planned for it, with or without figures."""
        return {trial.partner for trial in self.trials}

    @property
    def slow_with_all(self) -> bool:
        """Return whether it is confirmed, apart from the partners it may be fast with."""
        found = list(self.partners().values())
        if len(found) < _ENOUGH or FAST in found:
            return False
        return UNCLEAR not in found or self._slow_in_the_mean()

    @property
    def needs_healthy(self) -> bool:
        """Whether another partner that is well has to be met."""
        found = list(self.partners().values())
        agreed = self.slow_with_all or set(found) == {FAST}
        return not self._exhausted and len(found) < (_ENOUGH if agreed else _MOST_PARTNERS)

    @property
    def partner_to_repeat(self) -> int | None:
        """A partner that differs from the others, or is not clear, and was not met often enough."""
        found = self.partners()
        if self._exhausted or len(found) < _ENOUGH or self.slow_with_all or set(found.values()) == {FAST}:
            return None
        majority = max((SLOW, FAST), key=list(found.values()).count)
        times = {partner: len(self._trials_with(partner)) for partner, how in found.items() if how != majority}
        odd = [partner for partner, met in times.items() if met < (_TIMES_UNCLEAR if found[partner] == UNCLEAR else _TIMES)]
        return min(odd, key=lambda partner: times[partner]) if odd else None

    @property
    def repeats(self) -> Repeats:
        """The trials with healthy partners, counted."""
        return repeats(self._healthy_trials(), self.candidate.ways, self._as_deep.fast)

    @property
    def outcome(self) -> RepeatOutcome:
        """Whether the trials show more than chance."""
        return self.repeats.outcome(self.chance, self.candidate.least)

    @property
    def needs_rounds(self) -> bool:
        """Whether it is slow with all partners, but not in enough rounds for a confirmation."""
        if not self.slow_with_all or self.like_others or len(self.trials) >= _MOST_TRIALS + MOST_ROUNDS:
            return False
        return self.depth() >= self.candidate.least and self.outcome is RepeatOutcome.OPEN

    @property
    def fast_again(self) -> int | None:
        """Return a partner not known to be healthy with which it was as fast as the others once: measure it again."""
        fast = [partner for partner, how in self.partners(healthy=False).items() if how != SLOW and len(self._trials_with(partner)) < 2]
        return fast[0] if fast and self.slow_with_all and not self._exhausted else None

    @property
    def peers(self) -> int:
        """With how many that are not known to be well it was measured."""
        return len({trial.partner for trial in self.trials if not trial.healthy})

    @property
    def fast_with_peer(self) -> bool:
        """Return whether it is slow with healthy places, and not with another."""
        return self.slow_with_all and FAST in self.partners(healthy=False).values()

    def state(self) -> str:
        """Return the present state."""
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
        """Return whether many pairs of healthy places are as slow at the same time, or none of its kind was measured."""
        return many_as_slow(self._as_deep, self._healthy_trials())

    @property
    def path_partner(self) -> int | None:
        """The only one it is slow with, more than once, and noticeably for a path, while it is as fast as the others with two more."""
        found = self.partners()
        slow = [partner for partner, how in found.items() if how == SLOW]
        twice = len(slow) == 1 and len(self._trials_with(slow[0])) >= 2 and list(found.values()).count(FAST) >= _ENOUGH
        least = CELLS["latency" if LATENCY in self.candidate.ways else "bandwidth"].least
        return slow[0] if twice and self._mean(self._trials_with(slow[0]))[0] >= least else None

    def depth(self) -> float:
        """How far behind the controls, over all trials with partners that are well."""
        return self._mean(self._healthy_trials())[0]

    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return the place as a suspect in its present state."""
        state, counted = self.state(), self.repeats
        evidence = (*self.candidate.why, *(trial.evidence(names) for trial in self.trials), *self._reason(state, names))
        if not self._healthy_trials():
            return Suspect(self._kind(), (self.place,), state, self.candidate.ratio, evidence=evidence)
        low, high = counted.interval
        return Suspect(self._kind(), (self.place,), state, exp(-self.depth()), low, high, tuple(self.partners()), evidence)

    def path(self, names: Sequence[str]) -> Candidate | None:
        """The path that may be slow instead of the place: a candidate that has to be measured in rounds of its own."""
        other = self.path_partner
        if other is None or self.slow_with_all or many_as_slow(self._as_deep, self._trials_with(other)):
            return None
        others = [partner for partner in self.partners() if partner != other]
        why = (SlowWithOnePartner(names[self.place], names[other], tuple(names[each] for each in others)),)
        ways = self.candidate.ways
        if self.place > other:
            ways = tuple({SENDS: RECEIVES, RECEIVES: SENDS}.get(way, way) for way in ways)
        depth, least = self._mean(self._trials_with(other))[0], CELLS["latency" if LATENCY in ways else "bandwidth"].least
        places = (min(self.place, other), max(self.place, other))
        return replace(self.candidate, places=places, ways=ways, depth=depth, least=least, why=why, fast_with=(), any_way=False)

    def _reason(self, state: str, names: Sequence[str]) -> list[Fact]:
        """What the trials add up to."""
        if state != INCONCLUSIVE:
            return [self.repeats.counts] if state == CONFIRMED else [BelowThreshold()] if self.slow_with_all else []
        fast = [partner for partner, how in self.partners(healthy=False).items() if how == FAST]
        if self.slow_with_all and fast:
            return [FastWithPeers(tuple(names[partner] for partner in fast))]
        if self.slow_with_all and self.in_a_part:
            return [DividedNetwork()]
        if self.slow_with_all:
            return [ControlsAsSlow()] if self.like_others else [self.repeats.counts, self.repeats.reason]
        return [TooFewPartners() if len(self.partners()) < _ENOUGH else MixedPartners()]

    def _kind(self) -> str:
        """Which of its ways are slow, by all trials with partners that are well."""
        means = {
            way: float(np.mean(depths))
            for way in WAYS
            if (depths := [each.depths[way] for each in self._healthy_trials() if way in each.depths])
        }
        worst = max((means.get(way, 0.0) for way in BANDWIDTH_WAYS), default=0.0)
        if LATENCY in self.candidate.ways:
            return "latency"
        bounds = {way: _STAYS if way in self.candidate.ways else _JOINS for way in BANDWIDTH_WAYS}  # the sweep had more partners
        slow = {way for way in BANDWIDTH_WAYS if means.get(way, 0.0) > max(worst * bounds[way], 0.0)}
        return {frozenset({SENDS}): "sender", frozenset({RECEIVES}): "receiver"}.get(frozenset(slow), "node")

    def _slow_in_the_mean(self) -> bool:
        """Whether all trials together leave no doubt, by the noise that is known, or by how little they differ among themselves."""
        depth, noise = self._mean(trials := self._healthy_trials())
        if depth > self.candidate.pooled * noise:
            return True
        single = [self._mean([trial])[0] for trial in trials]
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

    def _with(self, partner: int, well: bool) -> str:
        """Judge places that may be slow themselves by the sweep alone: they have to be as fast as usual."""
        return judge_trials(
            self._as_deep if well else self.candidate, [each for each in self._trials_with(partner) if each.healthy == well]
        )

    @property
    def _as_deep(self) -> Candidate:
        """Return the candidate with its partners' depth, if that is more: of two that differ, one has to be wrong."""
        met = dict.fromkeys(trial.partner for trial in self._healthy_trials())
        depths = sorted(self._mean([trial for trial in self._healthy_trials() if trial.partner == partner])[0] for partner in met)
        middle = depths[len(depths) // 2] if depths else 0.0
        return replace(self.candidate, depth=max(self.candidate.depth, self.candidate.least, middle))

    def _mean(self, trials: Sequence[Trial]) -> tuple[float, float]:
        return mean_depth(self.candidate, trials)

    @property
    def _exhausted(self) -> bool:
        return len(self.trials) >= _MOST_TRIALS and not self.needs_rounds


def judge_trials(candidate: Candidate, trials: Sequence[Trial]) -> str:
    """How trials with one partner are: against half of what the sweep saw, and against chance.

    Without controls at the same time a round may run slower as a whole: then what a single pair needs is asked of it.
    """
    depth, noise = mean_depth(candidate, trials)
    bound = max(candidate.fast, candidate.tail * noise)
    if not all(trial.controls for trial in trials):
        bound = max(bound, min(CELLS["latency" if LATENCY in candidate.ways else "bandwidth"].least, candidate.depth))
    return SLOW if depth > bound else FAST if depth < candidate.fast else UNCLEAR


def many_as_slow(candidate: Candidate, trials: Sequence[Trial]) -> bool:
    """Return whether more controls than slow places among them explain are behind by half of the candidate's depth, too; or whether none
    of them was of its kind of path, so that it is unknown.
    """
    if any(trial.controls for trial in trials) and not any(trial.alike for trial in trials):
        return True
    slow = [depth > candidate.fast for trial in trials for way in candidate.ways for depth in trial.control_depths.get(way, ())]
    return sum(slow) > _MOST_SLOW_CONTROLS * len(slow)


def mean_depth(candidate: Candidate, trials: Sequence[Trial]) -> tuple[float, float]:
    """(depth, its noise) over the candidate's ways in all of these trials; (0, 0) of none."""
    measured = [(trial.depths[way], trial.noise[way]) for trial in trials for way in candidate.ways if way in trial.depths]
    if not measured:
        return 0.0, 0.0
    depths, noise = zip(*measured, strict=True)
    return fmean(depths), sqrt(fmean(each**2 for each in noise) / len(measured))


def _narrowed(candidate: Candidate, trials: Sequence[Trial]) -> Candidate:
    """Which ways were slow in these trials: both where they differ by less than half; the latency where only that is slow."""
    means = {way: float(np.mean([trial.depths[way] for trial in trials if way in trial.depths] or [0.0])) for way in WAYS}
    worst = max(means[way] for way in BANDWIDTH_WAYS)
    if worst < candidate.least and means[LATENCY] >= PLACES["latency"].least:
        return replace(candidate, ways=(LATENCY,), depth=means[LATENCY])
    ways = tuple(way for way in BANDWIDTH_WAYS if means[way] >= worst / 2) if worst >= candidate.least else BANDWIDTH_WAYS
    return replace(candidate, ways=ways, depth=max(candidate.least, float(np.mean([means[way] for way in ways]))))
