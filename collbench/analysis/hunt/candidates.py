"""Who is worth measuring again after a sweep, and who is so far beyond doubt that they can be measured against.

The limits are loose on purpose: a candidate needs only the square root of a finding's share of false alarms (`analysis.pair_view`), may
be fast with some of its partners, and is no suspect until it has been measured again. Candidates, too, are those that were fast with
nobody (where half of a sick place's partners are sick a fit by medians explains it by them), and the worst of the others, one in four,
where they lag noticeably: to these the sweep gives no credit, so that more is asked when they are measured again. What speaks for a
network of several parts (it was as fast as others with somebody) is kept, and tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np

from collbench.analysis.hunt.asks import Hint
from collbench.analysis.pair_effects import PairEffects
from collbench.analysis.pair_noise import TAILS, noise_scale, quantile
from collbench.analysis.pair_view import CELLS, PLACES, Mask, View
from collbench.analysis.two_way import Figures
from collbench.results.rounds import PairMatrix
from collbench.units import format_percent

SENDS, RECEIVES, LATENCY = "sends", "receives", "latency"
BANDWIDTH_WAYS = (SENDS, RECEIVES)
MEANS_DEGREES = 8.0  # means have lighter tails than single figures
_DOES = {(SENDS, RECEIVES): "sends and receives", (SENDS,): "sends", (RECEIVES,): "receives", (LATENCY,): "answers small messages"}
_FAST = 0.5  # of the depth: who lags less is as fast as the others
_DOUBTFUL = 0.5  # of the effect from which a place is named: who lags more is no partner to measure against
_ALL_MEET = 8
_LEAST_WELL = 3  # a partner and a control pair
_FAR_LESS = 0.25  # of the deepest candidate's depth, half of which is fast
_WORST = 4  # one in so many places
_INSIDE = "inside its host"


@dataclass(frozen=True)
class Candidate:
    """places     one; or two of a path, the lower first
    ways       what was slow, of "sends", "receives", "latency" as seen from the first place; judged by their mean
    depth      how far below expectation, as a logarithm, above 0
    least      from which depth on it is worth a word
    tail       how many scales of noise chance may explain with each of two partners; pooled: in the mean of all of them
    share      of false alarms that is left for measuring it again
    noise      the scale of one figure in the sweep, 0: unknown
    why        one sentence: what the sweep saw
    inside     whether it is about paths inside a host, where there are others
    fast_with  partners with whom it was as fast as the others in the sweep, the fastest first
    doubtful   whether the sweep alone gives it no credit
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
    why: str
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
class Seen:
    """What the sweep came to.

    well      places to measure against; middle: the usual speed of a pair, bytes per second
    deferred  candidates that are not measured again: with them too few places would be left to measure a slow bandwidth against
    """

    places: tuple[Candidate, ...]
    paths: tuple[Candidate, ...]
    well: tuple[int, ...]
    middle: float | None = None
    deferred: tuple[Candidate, ...] = ()


def seen(matrix: PairMatrix, lost: Sequence[int] = ()) -> Seen:
    """Candidates of a matrix of pairs, the deepest first, and who is well: neither slow nor lost, the best known first."""
    views = PairEffects(matrix).views
    places = _fewer(_once([each for view in views for each in _places(view) if each.places[0] not in lost]), matrix.n)
    places, deferred = _bandwidth_first(places, matrix.n - len(lost))
    paths = _once([each for view in views for each in _paths(view) if not set(each.places) & set(lost)])
    out = {each.places[0] for each in places} | set(lost)
    bandwidth = [view for view in views if view.quantity == "bandwidth"]
    middle = exp(bandwidth[0].fit.middle) if bandwidth else None
    return Seen(places, paths, _well(views, matrix.n, out), middle, deferred)


def from_hints(hints: Sequence[Hint], n: int, lost: Sequence[int] = ()) -> Seen:
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
            hint.why,
            any_way=True,
        )
        for hint in hints
        for place in hint.places
        if place not in lost
    ]
    places = _once(found)
    out = {each.places[0] for each in places} | set(lost)
    return Seen(places, (), tuple(place for place in range(n) if place not in out))


def _bandwidth_first(places: tuple[Candidate, ...], n: int) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Return the candidates, and those that are left out where all together leave too few healthy places of n.

    Left out are places that are slow for small messages alone, or by far less than the slowest one: that one can be measured against them.
    """
    deepest = max((each.depth for each in places if LATENCY not in each.ways), default=0.0)
    slow = {each.places for each in places if LATENCY not in each.ways and each.depth >= _FAR_LESS * deepest}
    if not slow or n - len({each.places for each in places}) >= _LEAST_WELL:
        return places, ()
    return tuple(each for each in places if each.places in slow), tuple(each for each in places if each.places not in slow)


def _fewer(places: Sequence[Candidate], n: int) -> tuple[Candidate, ...]:
    """Without the doubtful ones that would leave no majority to measure against."""
    sure = {each.places for each in places if not each.doubtful}
    doubtful = dict.fromkeys(each.places for each in places if each.places not in sure)
    room = list(doubtful)[: max(0, (n - 1) // 2 - len(sure))]
    kept = [each for each in places if each.doubtful and (each.places in sure or each.places in room)]
    return tuple(each for each in places if not each.doubtful or each in kept)


def _places(view: View) -> Iterator[Candidate]:
    """Slow with most partners beyond the sweep's chance, or noticeably and among the worst."""
    sends, receives = view.senders(twice=True), view.receivers(twice=True)
    low = np.array([sends.steady | sends.uneven, receives.steady | receives.uneven]) | _never_fast(view)
    effects = np.array([view.fit.rows, view.fit.columns])
    level, told = PLACES[view.quantity], view.fit.told_rows | view.fit.told_columns
    tests = max(1, int(told.sum())) * (1 if view.symmetric else 2)
    noticed = (effects < -level.least) & told & view.tells_places & ~low.any(axis=0)
    worst = [place for place in np.argsort(effects.min(axis=0)) if noticed[:, place].any()][: max(1, len(told) // _WORST)]
    for place in np.flatnonzero(low.any(axis=0)):
        yield _place(view, int(place), low[:, place], again_tails(level.chance, tests))
    for place in worst:
        yield replace(_place(view, int(place), noticed[:, place], again_tails(level.chance, tests, counts=False)), doubtful=True)


def _never_fast(view: View) -> Mask:
    """[2 × n] who was noticeably slow with each of its partners, in what it sends and in what it receives; of few places, who all meet,
    medians tell it.
    """
    behind = view.speeds - view.fit.middle
    least, told = PLACES[view.quantity].least, np.array([view.fit.told_rows, view.fit.told_columns])
    best = np.array([np.where(view.there, behind, -np.inf).max(axis=axis) for axis in (1, 0)])
    never: Mask = (best < -least) & told & (view.there.shape[0] > _ALL_MEET)
    return never


def _place(view: View, place: int, low: Mask, tails: tuple[float, float, float]) -> Candidate:
    """Of whom one way is slow the other counts, too, where it is at least half as slow."""
    effects = np.array([view.fit.rows[place], view.fit.columns[place]])
    if (effects > -PLACES[view.quantity].least).all():  # nobody was fast with it, and the fit takes its partners for the reason
        effects = np.array([float(np.nanmedian(cells)) - view.fit.middle for cells in (view.speeds[place], view.speeds[:, place])])
    slow = low | (effects < effects.min() * _FAST)
    ways = (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)
    depth = -float(effects[slow].mean())
    fast, met = _fast_with(view, place, ways, depth), int(view.there[place].sum())
    why = f"the sweep: {_DOES[ways]} {_at(depth, ways)}{f' {view.where}' if view.where else ''} ({met - len(fast)} of {met} partners)"
    noise, inside = max(view.noise, view.error), view.where == _INSIDE
    return Candidate((place,), ways, depth, PLACES[view.quantity].least, *tails, noise, why, inside, fast)


def _paths(view: View) -> Iterator[Candidate]:
    """Single pairs that are slower than their places explain; and the worst one by the noise of the others, if it lags noticeably."""
    mask, level = view.exceptions(view.slow_cells(np.array(True))), CELLS[view.quantity]
    for a, b in _pairs(mask):
        noise = max(view.noise, view.error)
        tail = view.depth(twice=True) / noise if noise > 0 else 0.0
        yield _path(view, (a, b), mask, (tail, noise))
    rest = np.where(view.there, view.fit.rest, np.nan)
    if not mask.any() and view.tells_pairs and np.nanmin(rest) < -level.least:
        ((a, b),) = _pairs(rest == np.nanmin(rest))[:1]
        others = rest.copy()
        others[[a, b], [b, a]] = np.nan
        tail = quantile(level.chance / int(view.there.sum()), TAILS)  # all of the share: the sweep is given no credit
        yield _path(view, (a, b), rest < -level.least, (tail, max(noise_scale(others), view.error)))


def _pairs(mask: Mask) -> list[tuple[int, int]]:
    """The lower place first."""
    return [(int(a), int(b)) for a, b in zip(*np.nonzero(np.triu(mask | mask.T)), strict=True)]


def _path(view: View, pair: tuple[int, int], mask: Mask, limits: tuple[float, float]) -> Candidate:
    """limits: (tail, noise)."""
    slow = [bool(mask[pair]), bool(mask[pair[::-1]])]
    ways = (LATENCY,) if view.symmetric else tuple(way for way, is_slow in zip(BANDWIDTH_WAYS, slow, strict=True) if is_slow)
    depth = -float(np.array([view.fit.rest[pair], view.fit.rest[pair[::-1]]])[slow].mean())
    (tail, noise), level = limits, CELLS[view.quantity]
    why = f"the sweep: the pair was {_at(depth, ways)}"
    return Candidate(pair, ways, depth, level.least, tail, tail, level.chance, noise, why, view.where == _INSIDE)


def _fast_with(view: View, place: int, ways: Sequence[str], depth: float) -> tuple[int, ...]:
    """Partners with whom it was not slow in any of the ways, the fastest first."""
    cells = [view.speeds[place] if way != RECEIVES else view.speeds[:, place] for way in ways]
    behind: Figures = np.min([each - view.fit.middle for each in cells], axis=0)  # NaN where any of them is unknown
    fast = np.flatnonzero(np.nan_to_num(behind, nan=-np.inf) > -depth * _FAST)
    return tuple(int(each) for each in fast[np.argsort(-behind[fast])])


def _well(views: Sequence[View], n: int, out: set[int]) -> tuple[int, ...]:
    """Who is not out; whoever lags half as far as candidates do comes last, and is left out where three others are there."""
    worst, told = np.zeros(n), np.zeros(n, dtype=bool)
    for view in views:
        least = PLACES[view.quantity].least
        worst = np.minimum(worst, np.minimum(view.fit.rows, view.fit.columns) / least)
        told |= view.there.any(axis=1) & view.there.any(axis=0)
    those = [place for place in range(n) if place not in out and told[place]]
    sure = [place for place in those if worst[place] > -_DOUBTFUL]
    return tuple(sure) if len(sure) >= max(3, len(those) // 2) else tuple(those)


def _once(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return one candidate for the bandwidth and one for the latency of each place or path: the one that stands out most.

    Each is judged by its own rounds, so that a latency that comes and goes does not hide a bandwidth that is low.
    """
    kept: dict[tuple[tuple[int, ...], bool], Candidate] = {}
    for each in sorted(found, key=lambda each: -each.depth / each.least):
        key = each.places, LATENCY in each.ways
        first = kept.setdefault(key, each)
        if first is not each:
            kept[key] = replace(first, why=f"{first.why}; {each.why.removeprefix('the sweep: ')}")
    return tuple(sorted(kept.values(), key=lambda each: -each.depth))


def again_tails(chance: float, tests: int, counts: bool = True) -> tuple[float, float, float]:
    """(tail, pooled, share) of a `Candidate`: what the sweep has left of the share, which is its square root if the sweep counts."""
    share = (chance / max(1, tests)) ** (0.5 if counts else 1.0)
    return quantile(sqrt(share), TAILS), quantile(share, MEANS_DEGREES), share


def _at(depth: float, ways: Sequence[str]) -> str:
    if tuple(ways) == (LATENCY,):
        return f"in {exp(depth):.2f} times the time of the others"
    return f"at {format_percent(100 * exp(-depth))} of what the others do"
