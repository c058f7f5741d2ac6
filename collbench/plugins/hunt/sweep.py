"""The sweep: rounds of disjoint pairs, the fewest that distinguish a slow place from a slow partner; or rounds of groups."""

from __future__ import annotations

import random as draws
from collections.abc import Generator, Iterator, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.operations.groups import Pair, Round, schedule
from collbench.plugins.hunt import facts
from collbench.plugins.hunt.cover import packed
from collbench.plugins.hunt.protocol import GROUPS, PAIRS, HuntLog, Options, RoundRequest, RoundResult, pair_of
from collbench.reason import Fact

# A sweep by collectives over overlapping groups, for jobs in which pairs take too long: about log₂ N rounds instead of N - 1.
#
# Each round splits all places into disjoint groups of one size that run an all-reduce at the same time. A collective is as slow as its
# slowest member. So a fast group shows that all its members are healthy, and a slow place is in a slow group every time. This is group
# testing without feedback (Du and Hwang, Combinatorial Group Testing, 2000). Groups are random, but two places meet as rarely as possible.
# There are four times as many groups as expected slow places (a sixteenth of all, at most 8), so that most groups are fast.
#
# The limit is loose: a place found here is only a candidate, and is measured again with healthy partners. Groups detect a place that is
# slow with all partners. They do not detect a slow path between two healthy places, nor the latency of small messages.

LEAST_PLACES = 8  # with fewer a round has too few groups to compare
LEAST_RATIO = 1e-9  # the ratio of places that could not be measured
_MOST_FAULTY = 8
_EXPECTED_FAULTY = 16  # one of so many places is expected to be slow
_LARGEST_GROUP = 16
_FORGIVEN = 5  # figures from which on one fast group is regarded as chance
_LEAST_DEPTH = 0.04
_SCALES = 2.5
_T4_QUANTILES = (0.271, 1.533)  # of Student's t with 4 degrees of freedom: its 60th and 90th percentile
_UPPER, _LEAST_GROUPS = 0.75, 4

Groups = tuple[tuple[int, ...], ...]


class SlowMember(NamedTuple):
    """A place with slow groups only: the ratio of their speed to that of the others, and the evidence."""

    place: int
    ratio: float
    why: Fact


Ratios = NDArray[np.float64]


def group_size(n: int) -> int:
    """Return the places in a group, for four groups per expected slow place: 2 of 8, 4 of 16 to 128, 16 of 512."""
    faulty = min(_MOST_FAULTY, max(1, n // _EXPECTED_FAULTY))
    return max(2, min(_LARGEST_GROUP, n // (4 * faulty)))


def rounds_groups(n: int, options: Options) -> int:
    """Return how many rounds `sweep_groups` takes: ⌈log₂ n⌉ + 1, or fewer by the options."""
    usual = (n - 1).bit_length() + 1
    return usual if options.rounds is None else max(1, min(usual, options.rounds))


def sweep_groups(log: HuntLog, options: Options, random: draws.Random) -> Generator[RoundRequest, RoundResult, list[SlowMember]]:
    """Return the places that may be slow, the worst first. Raises ValueError below LEAST_PLACES."""
    n = len(log.names)
    if n < LEAST_PLACES:
        raise ValueError(f"{n} places make too few groups")
    all_rounds = rounds_groups(n, options)
    rest = f", {n % group_size(n)} rest" if n % group_size(n) else ""
    ratios = np.full((all_rounds, n), np.nan)
    lost: list[list[str]] = [[] for _ in range(n)]
    for number, groups in enumerate(partitions(n, group_size(n), all_rounds, random)):
        why = f"groups of {group_size(n)}, round {number + 1} of {all_rounds}{rest}"
        answer = yield from log.request(RoundRequest(GROUPS, groups, why))
        group_ratios = log_ratios(answer)
        if np.isnan(group_ratios).all():  # without any measurement the round has no effect
            continue
        for group, ratio, figure in zip(groups, group_ratios, answer.figures, strict=True):
            ratios[number, list(group)] = ratio
            for place in group if np.isnan(ratio) else ():
                lost[place].append(figure.na or "no reason was given")
    return slow_members(ratios, lost)


def slow_members(ratios: Ratios, lost: Sequence[Sequence[str]]) -> list[SlowMember]:
    """Return the places that are in slow groups every time, and those without any measured group, the worst first.

    ratios  [rounds × places], as logarithms, of each place's group; NaN: not measured
    lost    by place the reasons why its groups have no figures

    A group is slow if it is beyond the noise of the faster half of all groups, and at least 4 % behind.
    """
    limit = log(LEAST_RATIO)
    group_ratios = np.unique(ratios[np.isfinite(ratios)])
    if len(group_ratios):
        near, far = np.quantile(group_ratios, (0.6, 0.9))
        limit = -max(_LEAST_DEPTH, _SCALES * float(far - near) / (_T4_QUANTILES[1] - _T4_QUANTILES[0]))
    members = []
    for place, whys in enumerate(lost):
        measured = np.sort(ratios[np.isfinite(ratios[:, place]), place])
        if len(measured) and measured[-2 if len(measured) >= _FORGIVEN else -1] <= limit:
            ratio = exp(float(np.median(measured)))
            members.append(SlowMember(place, ratio, facts.SlowGroups(int((measured <= limit).sum()), len(measured), ratio)))
        elif not len(measured) and whys:
            members.append(SlowMember(place, LEAST_RATIO, facts.GroupsNotMeasured(len(whys), whys[-1])))
    return sorted(members, key=lambda member: member.ratio)


def partitions(n: int, size: int, number: int, random: draws.Random) -> Iterator[Groups]:
    """Yield `number` random splits of n places into groups of one size, in which two places meet rarely. All are left out equally often."""
    met = np.zeros((n, n), np.int64)
    rested = np.zeros(n, np.int64)
    for _ in range(number):
        order = random.sample(range(n), n)
        resting = sorted(order, key=lambda place: rested[place])[: n % size]
        rested[resting] += 1
        groups = _apart([place for place in order if place not in set(resting)], size, met)
        for group in groups:
            met[np.ix_(group, group)] += 1
        yield tuple(tuple(sorted(group)) for group in groups)


def log_ratios(answer: RoundResult) -> Ratios:
    """Return how far each group is behind the fast ones, as a logarithm; NaN if not measured.

    The fast speed is the limit of the upper quarter (of three groups or fewer the fastest one), so that nearly three quarters
    of the groups may be slow.
    """
    speeds = np.array([figure.speed if figure.speed else np.nan for figure in answer.figures])
    if np.isnan(speeds).all():
        return speeds
    return np.asarray(np.log(speeds / np.nanquantile(speeds, _UPPER if len(speeds) >= _LEAST_GROUPS else 1)))


def _apart(order: Sequence[int], size: int, met: NDArray[np.int64]) -> list[list[int]]:
    """Assign each place to the group that it has met least (meetings squared, so that no pair meets twice before all have met)."""
    groups: list[list[int]] = [[] for _ in range(len(order) // size)]
    cost = np.zeros((len(groups), met.shape[0]))
    members = np.zeros(len(groups))
    for place in order:
        chosen = int(np.argmin(np.where(members < size, cost[:, place] + members / (size * len(order)), np.inf)))
        groups[chosen].append(place)
        members[chosen] += 1
        cost[chosen] += met[place] ** 2
    return groups


LEAST_PARTNERS = 3  # with fewer a place has no effect of its own
_ALL = 8  # up to so many places every pair is measured
_PARTNERS = 8  # partners of each of more places: mostly healthy ones, even if a quarter is slow
_UP_TO = 64  # and one more with each doubling above


def rounds(n: int, options: Options) -> int:
    """Return the number of rounds: all for n ≤ 8, else 8 up to 64 places, 11 for 512, one more for odd n; at least those of the cover."""
    every = n - 1 + n % 2
    usual = every if n <= _ALL else _PARTNERS + ((n - 1) // _UP_TO).bit_length() + n % 2
    count = usual if options.rounds is None else options.rounds
    return max(min(count, every), len(packed(options.cover or ())))


def least_rounds(n: int, options: Options) -> int:
    """Return the fewest rounds that give a result for every place, and the required cover."""
    return max(min(LEAST_PARTNERS + n % 2, n - 1 + n % 2), len(packed(options.cover or ())))


def sweep_pairs(log: HuntLog, options: Options, number: int, random: draws.Random) -> Generator[RoundRequest, RoundResult, None]:
    """Run `number` rounds: first those of the cover, with new pairs of the free places, then random round-robin rounds."""
    n = len(log.names)
    covering = packed(options.cover or ())
    met = {pair for pairs in covering for pair in pairs}
    plan: list[Round] = []
    for pairs in covering:
        plan.append((*pairs, *_free(n, pairs, met, random)))
        met |= set(plan[-1])
    if number > len(plan):
        plan += schedule(n, most=number - len(plan), seed=random.getrandbits(32)).rounds()
    for turn, pairs in enumerate(plan, 1):
        yield from log.request(RoundRequest(PAIRS, pairs, f"round {turn} of {number}"))


def _free(n: int, pairs: Sequence[Pair], met: set[Pair], random: draws.Random) -> Iterator[Pair]:
    """Yield pairs of the places that are in none of `pairs`, with new partners if possible."""
    busy = {place for pair in pairs for place in pair}
    free = [place for place in range(n) if place not in busy]
    free = random.sample(free, len(free))
    while len(free) > 1:
        place = free.pop()
        partner = next((partner for partner in free if pair_of(place, partner) not in met), free[0])
        free.remove(partner)
        yield pair_of(place, partner)
