"""Growing groups, for faults that no pair shows: a place that is slow only if many take part. And suspects measured alone.

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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log, sqrt

import numpy as np

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.protocol import (
    BY_MESSAGES,
    CONFIRMED,
    GROUPS,
    INSIDE,
    NIC,
    GroupFigure,
    HuntLog,
    Options,
    RoundRequest,
    RoundResult,
    Suspect,
    pair_of,
)
from collbench.plugins.hunt.sweep import log_ratios
from collbench.reason import Fact
from collbench.units import plural

# Each confirmed place measured alone: among its own ranks, and over each of its interfaces. A slow one is the part to check.
#
# Every figure is compared with that of healthy places, measured at the same time. All suspects are measured at once: one round inside,
# and one for each interface. A sender is judged by the messages that it sends, a receiver by those that it gets.

# of the limit for a slow part: at 0.95 noise is excluded, and below 0.8 it is always slow
_BOUNDS = (0.8, 0.95)
_CONTROLS = 3  # healthy places at least; their median is the comparison
_WAYS: dict[str, facts.Ways] = {"sender": "sends", "receiver": "receives"}


def most_rounds_isolation(options: Options) -> int:
    """Return the largest number of rounds that `measure_isolation` takes."""
    return int(options.can_inside) + len(options.nics) if options.isolate else 0


def measure_isolation(
    log: HuntLog, suspects: Sequence[Suspect], good: Sequence[int], options: Options
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects in their order. Confirmed single places have the result in `part` and `evidence`.

    Their `kind` may become "inside"; then `ratio` is that of their own ranks among themselves. Paths and unconfirmed suspects
    are returned unchanged. A place that is slow at scale only is measured inside only, since messages of pairs do not show
    that fault. Missing figures are evidence, too.
    """
    alone = [suspect for suspect in suspects if suspect.state == CONFIRMED and len(suspect.places) == 1] if options.isolate else []
    ratios = {suspect.places[0]: _SuspectRatios(suspect) for suspect in alone}
    if ratios and options.can_inside:
        controls = [(place,) for place in good[: max(_CONTROLS, len(ratios))]]
        why = f"{plural(len(ratios), 'suspect')} inside, with {len(controls)} healthy ones as controls"
        request = RoundRequest(INSIDE, (*((place,) for place in ratios), *controls), why, stage="isolation")
        yield from _compare(log, request, list(ratios.values()), len(controls))
    by_pairs = [tested for tested in ratios.values() if tested.suspect.kind != "scale"]
    taken = by_pairs[: max(0, len(good) - 2)]  # each has a healthy partner, besides at least one pair of healthy places
    partners, rest = good[: len(taken)], good[len(taken) :]
    pairs = [pair_of(tested.place, partner) for tested, partner in zip(taken, partners, strict=True)]
    healthy = [pair_of(a, b) for a, b in zip(rest[::2], rest[1::2], strict=False)][: max(_CONTROLS, len(taken))]
    for nic in options.nics:
        for tested in by_pairs[len(taken) :]:
            tested.evidence.append(facts.PartNotMeasured(nic, f"only {plural(len(good), 'healthy endpoint')}"))
        if taken:
            why = f"{plural(len(taken), 'suspect')} over {nic} alone, with {len(healthy)} healthy pairs as controls"
            yield from _compare(log, RoundRequest(NIC, (*pairs, *healthy), why, stage="isolation", nic=nic), taken, len(healthy))
    return [ratios[suspect.places[0]].with_part() if suspect in alone else suspect for suspect in suspects]


def _compare(
    log: HuntLog, request: RoundRequest, tested: Sequence[_SuspectRatios], controls: int
) -> Generator[RoundRequest, RoundResult, None]:
    """Measure the groups of the suspects and then of the controls; add each suspect's ratio to the controls' median as evidence."""
    answer = yield from log.request(request)
    usual = [speed for figure in answer.figures[len(tested) :] for speed in (figure.speed, figure.backward) if speed]
    for each, group, figure in zip(tested, request.groups, answer.figures, strict=False):
        speed, kind = figure.speed, each.suspect.kind
        if request.nic is not None:  # what a sender sends, what a receiver receives, else the slower direction
            leaves, comes = (figure.speed, figure.backward) if group[0] == each.place else (figure.backward, figure.speed)
            slower = min(leaves, comes) if leaves and comes else None
            speed = {"sender": leaves, "receiver": comes}.get(kind, slower)
        ratio = each.ratios[request.nic or INSIDE] = speed / float(np.median(usual)) if speed and usual else None
        if ratio is None:
            why = figure.na or (f"none of {plural(controls, 'control')} could be measured" if figure.speed else "no reason is known")
            each.evidence.append(facts.PartNotMeasured(request.nic or INSIDE, why))
        elif request.nic is None:
            each.evidence.append(facts.InsideRatio(ratio, controls))
        else:
            each.evidence.append(facts.InterfaceRatio(request.nic, _WAYS.get(each.suspect.kind, "sends and receives"), ratio, controls))


@dataclass
class _SuspectRatios:
    """The result for a suspect: ratios to healthy places, inside and by interface; None if unknown."""

    suspect: Suspect
    ratios: dict[str, float | None] = field(default_factory=dict)
    evidence: list[Fact] = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.suspect.places[0]

    def with_part(self) -> Suspect:
        """Return the suspect with its part, if one was found."""
        # a part is slow below half of the whole's loss (of its logarithm)
        limit = min(max(sqrt(max(self.suspect.ratio, 0.0)), _BOUNDS[0]), _BOUNDS[1])
        found = replace(self.suspect, evidence=(*self.suspect.evidence, *self.evidence))
        inside = self.ratios.get(INSIDE)
        if inside is not None and inside < limit:  # the ratio of its own ranks replaces that of its messages
            return replace(found, kind=INSIDE, part=facts.InsideHost(), ratio=inside, low=None, high=None)
        known = {nic: ratio for nic, ratio in self.ratios.items() if nic != INSIDE and ratio is not None}
        slow = tuple(nic for nic, ratio in known.items() if ratio < limit)
        if slow and len(slow) < len(known):
            return replace(found, part=facts.SlowInterfaces(slow))
        if slow or (inside is not None and not known and found.kind in BY_MESSAGES):
            unsure = (facts.InsideNotMeasured(),) if inside is None else ()
            return replace(found, part=facts.WayToNetwork(slow), evidence=(*found.evidence, *unsure))
        return found


LEAST_SIZE = 4  # smaller groups would be pairs
SLOW = log(0.85)  # of the other groups' speed: less than the difference between modes of launches (8 %)
_CONFIRMATIONS = 2  # rounds with new partners; the place must be slow in each of them
_STEP_AND_CONFIRMATION = 1 + _CONFIRMATIONS  # rounds
_MOST_FOR_TWO = 7 + 2 * _CONFIRMATIONS  # rounds
WHOLE = 0.8  # as a ratio, since larger rings have longer paths

Part = tuple[int, ...]


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
    found = _Growing(log, random, list(places), _dividing(len(places)))
    for size in sizes(len(places)):
        yield from found.at(size)
    yield from found.whole()
    return sorted(found.suspects, key=lambda each: each.ratio)


@dataclass
class _Growing:
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
    suspects: list[Suspect] = field(default_factory=list)
    healthy: dict[int, int] = field(default_factory=dict)
    typical: float | None = None
    unsettled: bool = False

    def at(self, size: int) -> Generator[RoundRequest, RoundResult, None]:
        """Measure one size (at most half of the remaining places)."""
        size = min(size, len(self.places) // 2)
        groups = _cut(self.random.sample(self.places, len(self.places)), size)
        answer = yield from self._request(groups, f"{len(groups)} groups of {size} at the same time")
        slow = self._judge(groups, answer, size)
        taken = (yield from self._divide(slow, size)) if slow else {}
        if taken:
            yield from self._confirm(taken, size)

    def whole(self) -> Generator[RoundRequest, RoundResult, None]:
        """Measure all remaining places, compared with smaller groups; if they are slow and rounds are left, measure them again."""
        if self.typical is None or self.unsettled or len(self.places) < 2 * LEAST_SIZE:
            return
        all_places, best = f"all {len(self.places)} places together", 0.0
        for turn in ("once", "again")[: 1 + min(1, self.room)]:
            answer = yield from self._request([tuple(sorted(self.places))], f"{all_places}, {turn}")
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
            typical = float(np.median([speed for group in healthy if (speed := by_group[group][1].speed)]))
            if self.typical and typical < WHOLE * self.typical:
                self.log.notes.append(facts.SizeSlow(size, typical / self.typical))
            self.typical = typical
        return slow

    def _divide(self, slow: list[Part], size: int) -> Generator[RoundRequest, RoundResult, dict[int, Part]]:
        """Divide slow groups. Return the slow single places, each with its partners in its last group."""
        taken: dict[int, Part] = {}
        parts = slow
        while parts:
            if self.room < _STEP_AND_CONFIRMATION:
                self._leave(facts.PartsNotDivided(len(parts), size, "rounds"))
                break
            self.room -= 1
            others = self._others({place for part in parts for place in part} | set(taken), size)
            # other places must complete the group of each piece; the worst parts first
            most = next((number for number in range(len(parts), 0, -1) if _cuts(parts[:number], size, len(others)) > 1), 0)
            if most < len(parts):
                self._leave(facts.PartsNotDivided(len(parts) - most, size, "endpoints"))
            if not most:
                break
            parts = parts[:most]
            pieces, number = [], _cuts(parts, size, len(others))
            for part in parts:  # their sizes differ by at most one; no empty ones
                edges = [len(part) * step // number for step in range(number + 1)]
                pieces += [part[low:high] for low, high in pairwise(edges) if high > low]
            groups = _filled(pieces, size, others)
            answer = yield from self._request(groups, f"groups of {size} with {len(pieces)} pieces of {len(parts)} slow ones")
            by_piece = dict(zip(pieces, zip(log_ratios(answer), answer.figures, strict=True), strict=False))
            blamed = [piece for piece in pieces if by_piece[piece][0] < SLOW]
            self.healthy |= {place: size for piece in pieces if by_piece[piece][0] >= SLOW for place in piece}
            for part in parts:
                of_part = [by_piece[piece] for piece in by_piece if set(piece) <= set(part)]
                lost = [figure for ratio, figure in of_part if np.isnan(ratio)]
                if lost:
                    self.log.notes.append(facts.GroupNotMeasured(size, _why(lost[0]), part=True))
                elif min(ratio for ratio, _ in of_part) >= SLOW:
                    self.log.notes.append(facts.NoSlowPiece(size, len(part)))
            partners = {piece[0]: tuple(set(group) - set(piece)) for piece, group in zip(pieces, groups, strict=False)}
            taken |= {piece[0]: partners[piece[0]] for piece in blamed if len(piece) == 1}
            parts = [piece for piece in blamed if len(piece) > 1]
        return taken

    def _leave(self, note: Fact) -> None:
        """Add a note about slow groups with an unknown cause. Then the figure of all places together shows nothing new."""
        self.log.notes.append(note)
        self.unsettled = True

    def _others(self, suspected: Collection[int], size: int) -> list[int]:
        """Return the members of fast groups of this size, in random order."""
        healthy = [place for place in self.places if self.healthy.get(place) == size and place not in suspected]
        return self.random.sample(healthy, len(healthy))

    def _confirm(self, taken: Mapping[int, Part], size: int) -> Generator[RoundRequest, RoundResult, None]:
        """Measure each place with new partners if there are any, at the same time as groups of healthy places; repeat this."""
        suspects = {place: set(partners) for place, partners in taken.items()}
        others = self._others(taken, size)
        most = max(0, (len(others) - size) // (size - 1))
        if most < len(taken):
            self._leave(facts.NotConfirmedAtScale(len(taken) - most, size))
            suspects = dict(list(suspects.items())[:most])
        self.room -= _CONFIRMATIONS
        for number in range(_CONFIRMATIONS):
            if not suspects:
                return
            had = set().union(*suspects.values())
            others = sorted(self._others(taken, size), key=lambda place: place in had)
            singles = [(place,) for place in suspects]
            groups = _filled(singles, size, others)
            answer = yield from self._request(groups, f"groups of {size}: {len(singles)} suspects with new partners, round {number + 1}")
            for (place,), group, ratio, figure in zip(singles, groups, log_ratios(answer), answer.figures, strict=False):
                suspects[place] |= {*group} - {place}
                if not ratio < SLOW:
                    self.log.notes.append(facts.ClearedAtScale(size, "" if figure.speed else _why(figure)))
                    del suspects[place]
                elif number + 1 == _CONFIRMATIONS:
                    evidence = (facts.SlowAtScale(1 + _CONFIRMATIONS, size, exp(ratio)), facts.FastWithout(self.healthy.get(place, 0)))
                    met = tuple(sorted(suspects[place]))
                    self.suspects.append(Suspect("scale", (place,), CONFIRMED, exp(ratio), partners=met, evidence=evidence))
        self.places = [place for place in self.places if place not in suspects]

    def _request(self, groups: Sequence[Part], why: str) -> Generator[RoundRequest, RoundResult, RoundResult]:
        return (yield from self.log.request(RoundRequest(GROUPS, tuple(groups), why, stage="growing")))


def _dividing(n: int) -> int:
    """Return the rounds to halve a group of half of all places and confirm the last place; with few places, for two such groups."""
    once = (n // 2 - 1).bit_length() + _CONFIRMATIONS
    return max(once, min(2 * once, _MOST_FOR_TWO))


def _cuts(parts: Sequence[Part], size: int, others: int) -> int:
    """Return into how many pieces each of these parts can be divided, if so many other places complete a group of `size` per piece."""
    needed = others + sum(map(len, parts))
    return min(needed // (len(parts) * size), max(map(len, parts)))


def _cut(places: Sequence[int], size: int) -> list[Part]:
    return [tuple(sorted(places[at : at + size])) for at in range(0, len(places) - size + 1, size)]


def _filled(pieces: Sequence[Part], size: int, others: Sequence[int]) -> list[Part]:
    """Return a group for each piece, completed by healthy places, and whole groups of the remaining places as controls."""
    groups, left = [], list(others)
    for piece in pieces:
        taken, left = left[: size - len(piece)], left[size - len(piece) :]
        groups.append(tuple(sorted([*piece, *taken])))
    return [*groups, *_cut(left, size)]


def _why(figure: GroupFigure) -> str:
    return figure.na or "no reason is known"
