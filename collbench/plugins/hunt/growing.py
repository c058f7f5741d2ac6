"""Growing groups, for faults that no pair shows: a place that is slow only if many take part.

Sizes double. At each size all places are split into disjoint groups that run an all-reduce at the same time. A slow group is divided.
Its halves (with many groups: smaller pieces) are exchanged with parts of fast groups. The piece that stays slow is divided again, until
one place is left. That place is measured in two more rounds with other healthy partners, while its previous partners are measured with
another place. It is reported only if it is slow each time, and its partners are not slow without it. Groups that are slow together are
divided at the same time.

That takes log₂ N rounds for the sizes, and about as many for all divisions together. Named places are left out of larger groups. If a
size is slower than smaller ones without a slow place, a note reports it. Then the cause is the core of the network, or the library's
algorithm for so many ranks.
"""

from __future__ import annotations

import random as draws
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import pairwise
from math import exp, log

import msgspec
import numpy as np

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.protocol import CONFIRMED, GROUPS, GroupFigure, HuntLog, Options, RoundRequest, RoundResult, Suspect
from collbench.plugins.hunt.sweep import Ratios, log_ratios
from collbench.reason import Fact

LEAST_SIZE = 4  # smaller groups would be pairs
SLOW = log(0.85)  # of the other groups' speed: less than the difference between modes of launches (8 %)
_CONFIRMATIONS = 2  # rounds with new partners; the place must be slow in each of them
_STEP_AND_CONFIRMATION = 1 + _CONFIRMATIONS  # rounds
_MOST_FOR_TWO = 7 + 2 * _CONFIRMATIONS  # rounds
WHOLE = 0.8  # as a ratio, since larger rings have longer paths

Part = tuple[int, ...]
Rounds = Generator[RoundRequest, RoundResult, None]


def sizes(n: int) -> list[int]:
    """Return 4, 8, … while two groups of that size fit, and half of all places if that is at least 1.5 times the last one."""
    doubled = [1 << power for power in range(2, n.bit_length()) if 2 << power <= n]
    return [*doubled, n // 2] if doubled and 2 * (n // 2) >= 3 * doubled[-1] else doubled


def most_rounds(n: int, options: Options) -> int:
    """Return how many rounds `measure_growing` takes at most: one for each size and for the whole, and those that divide slow groups."""
    return len(sizes(n)) + 1 + _dividing(n) if options.growing and sizes(n) else 0


def measure_growing(
    log: HuntLog, places: Sequence[int], options: Options, random: draws.Random
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return suspects of kind "scale", each of one place and confirmed as described above. Below eight places there is only a note."""
    if not options.growing:
        return []
    if not sizes(len(places)):
        log.notes.append(facts.GrowingNeedsMore(len(places), LEAST_SIZE))
        return []
    search = _Growing(log, random, list(places), _dividing(len(places)))
    for size in sizes(len(places)):
        yield from search.at(size)
    yield from search.whole()
    return sorted(search.suspects, key=lambda suspect: suspect.ratio)


class _Growing(msgspec.Struct):
    """The state of a search with growing groups.

    places     those without a finding so far; healthy: by place the largest size at which its group was healthy
    room       rounds that are left to divide slow groups
    typical    the median bus bandwidth of the healthy groups of the largest size so far, bytes per second
    unsettled  whether some place is slow, but it is unknown which
    """

    log: HuntLog
    random: draws.Random
    places: list[int]
    room: int
    suspects: list[Suspect] = msgspec.field(default_factory=list)
    healthy: dict[int, int] = msgspec.field(default_factory=dict)
    typical: float | None = None
    unsettled: bool = False

    def at(self, size: int) -> Rounds:
        """Measure one size (at most half of the remaining places)."""
        size = min(size, len(self.places) // 2)
        groups = _cut(self.random.sample(self.places, len(self.places)), size)
        answer = yield from self._request(groups, f"{len(groups)} groups of {size} at the same time")
        slow = self._judge(groups, answer, size)
        if slow:
            singles = yield from self._divide(slow, size)
            if singles:
                yield from self._confirm(singles, size)

    def whole(self) -> Rounds:
        """Measure all remaining places, compared with smaller groups; if they are slow and rounds are left, measure them again."""
        if self.typical is None or self.unsettled or len(self.places) < 2 * LEAST_SIZE:
            return
        best = 0.0
        for turn in ("once", "again")[: 1 + min(1, self.room)]:
            answer = yield from self._request([tuple(sorted(self.places))], f"all {len(self.places)} places together, {turn}")
            if not answer.figures[0].speed:
                self.log.notes.append(facts.GroupNotMeasured(0, _why(answer.figures[0])))
                return
            best = max(best, answer.figures[0].speed / self.typical)
            if best > WHOLE:
                return
        self.log.notes.append(facts.WholeSlow(len(self.places), best))

    def _judge(self, groups: Sequence[Part], answer: RoundResult, size: int) -> list[Part]:
        """Return the slow groups, the worst first, and store the others' speed. If most are slow, return none: they cannot be divided."""
        by_group = dict(zip(groups, zip(log_ratios(answer), answer.figures, strict=True), strict=True))
        slow = sorted((group for group in groups if by_group[group][0] < SLOW), key=lambda group: by_group[group][0])
        healthy = [group for group in groups if by_group[group][0] >= SLOW]
        self.log.notes += [facts.GroupNotMeasured(size, _why(figure)) for ratio, figure in by_group.values() if np.isnan(ratio)]
        self.healthy |= {place: size for group in healthy for place in group}
        if len(slow) > len(healthy):
            self._leave(facts.TooManySlowGroups(len(slow), len(groups), size))
            return []
        if healthy:
            speeds = [by_group[group][1].speed for group in healthy]
            typical = float(np.median([speed for speed in speeds if speed]))
            if self.typical and typical < WHOLE * self.typical:
                self.log.notes.append(facts.SizeSlow(size, typical / self.typical))
            self.typical = typical
        return slow

    def _divide(self, parts: list[Part], size: int) -> Generator[RoundRequest, RoundResult, dict[int, Part]]:
        """Divide slow groups. Return the slow single places, each with its partners in its last group."""
        singles: dict[int, Part] = {}
        while parts:
            if self.room < _STEP_AND_CONFIRMATION:
                self._leave(facts.PartsNotDivided(len(parts), size, "rounds"))
                break
            self.room -= 1
            healthy = self._healthy_members({place for part in parts for place in part} | set(singles), size)
            # other places must complete the group of each piece; the worst parts first
            most = next((number for number in range(len(parts), 0, -1) if _cuts(parts[:number], size, len(healthy)) > 1), 0)
            if most < len(parts):
                self._leave(facts.PartsNotDivided(len(parts) - most, size, "endpoints"))
            if not most:
                break
            parts = parts[:most]
            pieces = []
            number = _cuts(parts, size, len(healthy))
            for part in parts:  # their sizes differ by at most one; no empty ones
                edges = [len(part) * step // number for step in range(number + 1)]
                pieces += [part[low:high] for low, high in pairwise(edges) if high > low]
            groups = _filled(pieces, size, healthy)
            answer = yield from self._request(groups, f"groups of {size} with {len(pieces)} pieces of {len(parts)} slow ones")
            by_piece = dict(zip(pieces, zip(_behind(answer, len(pieces)), answer.figures, strict=True), strict=False))
            slow = [piece for piece in pieces if by_piece[piece][0] < SLOW]
            self.healthy |= {place: size for piece in pieces if by_piece[piece][0] >= SLOW for place in piece}
            for part in parts:
                part_results = [by_piece[piece] for piece in by_piece if set(piece) <= set(part)]
                lost = [figure for ratio, figure in part_results if np.isnan(ratio)]
                if lost:
                    self.log.notes.append(facts.GroupNotMeasured(size, _why(lost[0]), part=True))
                elif min(ratio for ratio, _ in part_results) >= SLOW:
                    self.log.notes.append(facts.NoSlowPiece(size, len(part)))
            for piece, group in zip(pieces, groups, strict=False):
                if len(piece) == 1 and piece in slow:
                    singles[piece[0]] = tuple(set(group) - set(piece))
            parts = [piece for piece in slow if len(piece) > 1]
        return singles

    def _leave(self, note: Fact) -> None:
        """Add a note about slow groups with an unknown cause. Then the figure of all places together shows nothing new."""
        self.log.notes.append(note)
        self.unsettled = True

    def _healthy_members(self, suspected: Collection[int], size: int) -> list[int]:
        """Return the members of fast groups of this size, in random order."""
        healthy = [place for place in self.places if self.healthy.get(place) == size and place not in suspected]
        return self.random.sample(healthy, len(healthy))

    def _confirm(self, singles: Mapping[int, Part], size: int) -> Rounds:
        """Measure each place with new partners if there are any, at the same time as groups of healthy places; repeat this."""
        partners = {place: set(group) for place, group in singles.items()}
        most = max(0, (len(self._healthy_members(singles, size)) - size) // (size - 1))
        if most < len(singles):
            self._leave(facts.NotConfirmedAtScale(len(singles) - most, size))
            partners = dict(list(partners.items())[:most])
        self.room -= _CONFIRMATIONS
        for number in range(_CONFIRMATIONS):
            if not partners:
                return
            met = set().union(*partners.values())
            healthy = sorted(self._healthy_members(singles, size), key=lambda place: place in met)
            suspects = [(place,) for place in partners]
            groups = _filled(suspects, size, healthy)
            answer = yield from self._request(groups, f"groups of {size}: {len(suspects)} suspects with new partners, round {number + 1}")
            ratios = _behind(answer, len(suspects))
            for (place,), group, ratio, figure in zip(suspects, groups, ratios, answer.figures, strict=False):
                partners[place] |= set(group) - {place}
                if not ratio < SLOW:
                    self.log.notes.append(facts.ClearedAtScale(size, "" if figure.speed else _why(figure)))
                    del partners[place]
                elif number + 1 == _CONFIRMATIONS:
                    evidence = (facts.SlowAtScale(1 + _CONFIRMATIONS, size, exp(ratio)), facts.FastWithout(self.healthy.get(place, 0)))
                    all_met = tuple(sorted(partners[place]))
                    self.suspects.append(Suspect("scale", (place,), CONFIRMED, exp(ratio), partners=all_met, evidence=evidence))
        self.places = [place for place in self.places if place not in partners]

    def _request(self, groups: Sequence[Part], why: str) -> Generator[RoundRequest, RoundResult, RoundResult]:
        return (yield from self.log.request(RoundRequest(GROUPS, tuple(groups), why, stage="growing")))


def _dividing(n: int) -> int:
    """Return the rounds to halve a group of half of all places and confirm the last place; with few places, for two such groups."""
    once = (n // 2 - 1).bit_length() + _CONFIRMATIONS
    return max(once, min(2 * once, _MOST_FOR_TWO))


def _cuts(parts: Sequence[Part], size: int, healthy: int) -> int:
    """Return into how many pieces each of these parts can be divided, if so many healthy places complete a group of `size` per piece."""
    available = healthy + sum(map(len, parts))
    return min(available // (len(parts) * size), max(map(len, parts)))


def _cut(places: Sequence[int], size: int) -> list[Part]:
    return [tuple(sorted(places[first : first + size])) for first in range(0, len(places) - size + 1, size)]


def _filled(pieces: Sequence[Part], size: int, healthy: Sequence[int]) -> list[Part]:
    """Return a group for each piece, completed by healthy places, and whole groups of the remaining places as controls."""
    groups = []
    free = list(healthy)
    for piece in pieces:
        missing = size - len(piece)
        groups.append(tuple(sorted([*piece, *free[:missing]])))
        free = free[missing:]
    return [*groups, *_cut(free, size)]


def _behind(answer: RoundResult, tested: int) -> Ratios:
    """Return `log_ratios`, but the fast speed is at least that of the groups of healthy places, which follow the first `tested` groups.

    Otherwise the upper quarter of all groups is itself slow where the tested ones are more than three quarters of them.
    """
    ratios = log_ratios(answer)
    healthy = ratios[tested:]
    if np.isnan(healthy).all():
        return ratios
    return ratios - max(0.0, float(np.nanmedian(healthy)))


def _why(figure: GroupFigure) -> str:
    return figure.na or "no reason is known"
