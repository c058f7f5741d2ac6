"""The candidates to measure again after a sweep, and the healthy places to compare them with.

The limits are loose: a candidate needs only the square root of a finding's false-alarm rate (`pair_statistics`). It may be fast with some
of its partners, and becomes a suspect only if it is slow again. Two other groups are candidates. The first are places that were fast with
no partner: if half of a slow place's partners are slow, a fit by medians blames these partners. The second are the worst quarter of the
other places, if they are noticeably slow. For both groups the sweep does not count, so the repetition needs more evidence. If a place was
as fast as others with a partner, the network may have parts; that pair is measured again.

A slowdown is a natural logarithm: ln(expected speed / measured speed), 0.69 for half the speed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import exp, log, sqrt

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.pair_statistics import (
    INSIDE_HOST,
    MEDIANS_DEGREES,
    PAIRS_LEVEL,
    PLACES_LEVEL,
    TAIL_DEGREES,
    Mask,
    MatrixView,
    noise_scale,
    quantile,
    views_of,
)
from collbench.plugins.hunt.records import Figures, PairMatrix
from collbench.plugins.hunt.sweep import SlowMember
from collbench.plugins.hunt.trials import BANDWIDTH_WAYS, LATENCY, RECEIVES, SENDS
from collbench.reason import Fact

_WAYS: dict[tuple[str, ...], facts.Ways] = {
    (SENDS, RECEIVES): "sends and receives", (SENDS,): "sends", (RECEIVES,): "receives", (LATENCY,): "small messages",
}  # fmt: skip
_FAST = 0.5  # of the slowdown: a place that is slow by less is as fast as the others
_DOUBTFUL = 0.5  # of the effect that makes a place a suspect: a slower place is not used as a healthy partner
_ALL_MEET = 8
_LEAST_HEALTHY = 3  # a partner and a control pair
_FAR_LESS = 0.25  # of the largest slowdown of a candidate; half of that slowdown counts as fast
_WORST = 4  # one of so many places


class Candidate(msgspec.Struct, frozen=True):
    """A place or path to measure again.

    places            one; or two of a path, the lower first
    ways              the slow ones of "sends", "receives", "latency" as seen from the first place; judged by their mean
    log_slowdown      how far below expectation, above 0
    least             the smallest slowdown that is reported
    false_alarm_rate  that remains for the repeated measurement
    max_partner_z     the largest mean slowdown with one partner that chance explains, in standard errors
    noise             the scale of one figure in the sweep, 0: unknown
    evidence          that of the sweep
    inside            whether it is about paths inside a host, if there are others
    fast_with         partners with which it was as fast as the others in the sweep, the fastest first
    doubtful          whether the sweep does not count as evidence
    any_way           whether `ways` are only a guess, because groups were measured: a single one of them may be slow
    """

    places: tuple[int, ...]
    ways: tuple[str, ...]
    log_slowdown: float
    least: float
    false_alarm_rate: float
    max_partner_z: float
    noise: float
    evidence: tuple[Fact, ...]
    inside: bool = False
    fast_with: tuple[int, ...] = ()
    doubtful: bool = False
    any_way: bool = False

    @property
    def max_mean_z(self) -> float:
        """The largest mean slowdown over all partners that chance explains, in standard errors."""
        return quantile(self.false_alarm_rate, MEDIANS_DEGREES)

    @property
    def fast_limit(self) -> float:
        """The largest slowdown at which it counts as fast as the others."""
        return self.log_slowdown * _FAST

    @property
    def ratio(self) -> float:
        """The speed that it reached relative to the others."""
        return exp(-self.log_slowdown)

    @property
    def of_latency(self) -> bool:
        """Whether it is about the latency of small messages."""
        return LATENCY in self.ways

    @property
    def least_of_pair(self) -> float:
        """The smallest slowdown at which a single pair is reported."""
        return PAIRS_LEVEL["latency" if self.of_latency else "bandwidth"].least


class SweepResult(msgspec.Struct, frozen=True):
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
    """Return the candidates of a matrix of pairs, the slowest first, and the healthy places in their order: not slow and not lost.

    Places that are half as slow as candidates are left out if at least three, and half of all healthy places, remain.
    """
    views = views_of(matrix)
    slow_places = [candidate for view in views for candidate in _slow_places(view) if candidate.places[0] not in lost]
    with_majority = _with_healthy_majority(_slowest_of_each(slow_places), matrix.n)
    places, deferred = _bandwidth_first(with_majority, matrix.n - len(lost))
    paths = _slowest_of_each([candidate for view in views for candidate in _slow_paths(view) if not set(candidate.places) & set(lost)])
    excluded = {candidate.places[0] for candidate in places} | set(lost)
    worst = np.zeros(matrix.n)
    measured = np.zeros(matrix.n, dtype=bool)
    for view in views:
        worst = np.minimum(worst, np.minimum(view.fit.rows, view.fit.columns) / PLACES_LEVEL[view.quantity].least)
        measured |= view.measured.any(axis=1) & view.measured.any(axis=0)
    healthy = [place for place in range(matrix.n) if place not in excluded and measured[place]]
    clearly_healthy = [place for place in healthy if worst[place] > -_DOUBTFUL]
    if len(clearly_healthy) >= max(3, len(healthy) // 2):
        healthy = clearly_healthy
    middle = next((exp(view.fit.middle) for view in views if view.quantity == "bandwidth"), None)
    return SweepResult(places, paths, tuple(healthy), middle, deferred)


def candidates_of_groups(members: Sequence[SlowMember], n: int, lost: Collection[int] = ()) -> SweepResult:
    """Return the same from the slow members of groups, which do not show the slow way of a place, nor the part of chance."""
    level = PLACES_LEVEL["bandwidth"]
    rate = sqrt(level.false_alarm_rate / (2 * n))
    places = []
    for member in members:
        if member.place not in lost:
            log_slowdown = max(-log(min(max(member.ratio, 1e-9), 1)), level.least)
            z = _max_partner_z(rate)
            places.append(Candidate((member.place,), BANDWIDTH_WAYS, log_slowdown, level.least, rate, z, 0.0, (member.why,), any_way=True))
    slow = _slowest_of_each(places)
    excluded = {candidate.places[0] for candidate in slow} | set(lost)
    return SweepResult(slow, (), tuple(place for place in range(n) if place not in excluded))


def _max_partner_z(false_alarm_rate: float) -> float:
    """Return the quantile for one of two partners, with both of which chance must occur."""
    return quantile(sqrt(false_alarm_rate), TAIL_DEGREES)


def _bandwidth_first(places: tuple[Candidate, ...], n: int) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the candidates, and those that are left out because all together would leave too few healthy places of n.

    Left out are places that are slow for small messages only, or by far less than the slowest one, which is compared with them.
    """
    by_bandwidth = [candidate for candidate in places if not candidate.of_latency]
    largest = max((candidate.log_slowdown for candidate in by_bandwidth), default=0.0)
    slow = {candidate.places for candidate in by_bandwidth if candidate.log_slowdown >= _FAR_LESS * largest}
    if not slow or n - len({candidate.places for candidate in places}) >= _LEAST_HEALTHY:
        return places, ()
    kept = tuple(candidate for candidate in places if candidate.places in slow)
    return kept, tuple(candidate for candidate in places if candidate.places not in slow)


def _with_healthy_majority(places: Sequence[Candidate], n: int) -> tuple[Candidate, ...]:
    """Return the candidates without the doubtful ones that would leave no healthy majority."""
    certain = {candidate.places for candidate in places if not candidate.doubtful}
    doubtful = dict.fromkeys(candidate.places for candidate in places if candidate.places not in certain)
    kept = certain | set(list(doubtful)[: max(0, (n - 1) // 2 - len(certain))])
    return tuple(candidate for candidate in places if candidate.places in kept)


def _slow_places(view: MatrixView) -> Iterator[Candidate]:
    """Yield places that are slow with most partners by more than the sweep's chance, or noticeably slow and among the worst.

    A place that was noticeably slow with each of its partners, sending or receiving, is slow, too; with few places, of which all pairs
    are measured, medians decide.
    """
    sends = view.senders(twice=True)
    receives = view.receivers(twice=True)
    level = PLACES_LEVEL[view.quantity]
    has_effect = np.array([view.fit.has_row_effect, view.fit.has_column_effect])
    above_middle = np.where(view.measured, view.speeds - view.fit.middle, -np.inf)
    best = np.array([above_middle.max(axis=1), above_middle.max(axis=0)])
    never_fast = (best < -level.least) & has_effect & (view.measured.shape[0] > _ALL_MEET)
    low = np.array([sends.slow_with_all | sends.slow_with_most, receives.slow_with_all | receives.slow_with_most]) | never_fast
    effects = np.array([view.fit.rows, view.fit.columns])
    has_any_effect = view.fit.has_row_effect | view.fit.has_column_effect
    tests = max(1, int(has_any_effect.sum())) * (1 if view.symmetric else 2)
    noticed = (effects < -level.least) & has_any_effect & view.can_name_places & ~low.any(axis=0)
    worst = [place for place in np.argsort(effects.min(axis=0)) if noticed[:, place].any()]
    for place in np.flatnonzero(low.any(axis=0)):
        yield _place(view, int(place), low[:, place], sqrt(level.false_alarm_rate / tests))
    for place in worst[: max(1, view.measured.shape[0] // _WORST)]:  # the sweep does not count
        yield replace(_place(view, int(place), noticed[:, place], level.false_alarm_rate / tests), doubtful=True)


def _place(view: MatrixView, place: int, low: Mask, false_alarm_rate: float) -> Candidate:
    """Return the place as a candidate. If one way is slow, the other one also counts if it is at least half as slow."""
    effects = np.array([view.fit.rows[place], view.fit.columns[place]])
    if (effects > -PLACES_LEVEL[view.quantity].least).all():  # it was fast with no partner, and the fit blames the partners
        effects = np.array([float(np.nanmedian(speeds)) - view.fit.middle for speeds in (view.speeds[place], view.speeds[:, place])])
    slow = low | (effects < effects.min() * _FAST)
    ways = _slow_ways(view, slow)
    log_slowdown = -float(effects[slow].mean())
    # the partners with which it was slow in none of the ways, the fastest first
    speeds = [view.speeds[:, place] if way == RECEIVES else view.speeds[place] for way in ways]
    above_middle: Figures = np.min([way_speeds - view.fit.middle for way_speeds in speeds], axis=0)  # NaN if one of them is unknown
    not_slow = np.flatnonzero(np.nan_to_num(above_middle, nan=-np.inf) > -log_slowdown * _FAST)
    fast = tuple(int(partner) for partner in not_slow[np.argsort(-above_middle[not_slow])])
    met = int(view.measured[place].sum())
    return Candidate(
        places=(place,),
        ways=ways,
        log_slowdown=log_slowdown,
        least=PLACES_LEVEL[view.quantity].least,
        false_alarm_rate=false_alarm_rate,
        max_partner_z=_max_partner_z(false_alarm_rate),
        noise=max(view.noise, view.error),
        evidence=(facts.SlowInSweep(_WAYS[ways], exp(-log_slowdown), met - len(fast), met, view.where),),
        inside=view.where == INSIDE_HOST,
        fast_with=fast,
    )


def _slow_paths(view: MatrixView) -> Iterator[Candidate]:
    """Yield pairs that are slower than their places explain, and the worst one by the others' noise if it is noticeably slow."""
    level = PAIRS_LEVEL[view.quantity]
    mask = view.exceptions(view.slow_cells(np.array(True)))
    noise = max(view.noise, view.error)
    z = view.detectable(twice=True) / noise if noise > 0 else 0.0
    pairs = np.argwhere(np.triu(mask | mask.T)).tolist()
    residuals = np.where(view.measured, view.fit.residuals, np.nan)
    if not pairs and view.can_name_pairs and np.nanmin(residuals) < -level.least:
        lowest = residuals == np.nanmin(residuals)
        mask = np.asarray(residuals < -level.least)
        a, b = np.argwhere(np.triu(lowest | lowest.T))[0].tolist()
        pairs = [[a, b]]
        other_residuals = residuals.copy()
        other_residuals[[a, b], [b, a]] = np.nan
        z = quantile(level.false_alarm_rate / int(view.measured.sum()), TAIL_DEGREES)  # the whole rate, since the sweep does not count
        noise = max(noise_scale(other_residuals), view.error)
    for a, b in pairs:
        slow = np.array([mask[a, b], mask[b, a]])
        ways = _slow_ways(view, slow)
        log_slowdown = -float(np.array([view.fit.residuals[a, b], view.fit.residuals[b, a]])[slow].mean())
        evidence = (facts.PairSlowInSweep(_WAYS[ways], exp(-log_slowdown)),)
        inside = view.where == INSIDE_HOST
        yield Candidate((a, b), ways, log_slowdown, level.least, level.false_alarm_rate, z, noise, evidence, inside)


def _slow_ways(view: MatrixView, slow: Mask) -> tuple[str, ...]:
    return (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)


def _slowest_of_each(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return one candidate for the bandwidth and one for the latency of each place or path: the slowest one.

    Each is judged by separate rounds, so that a changing latency does not hide a low bandwidth.
    """
    kept: dict[tuple[tuple[int, ...], bool], Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.log_slowdown / candidate.least):
        key = (candidate.places, candidate.of_latency)
        slowest = kept.get(key)
        kept[key] = candidate if slowest is None else replace(slowest, evidence=(*slowest.evidence, *candidate.evidence))
    return tuple(sorted(kept.values(), key=lambda candidate: -candidate.log_slowdown))
