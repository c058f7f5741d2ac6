"""A sweep by collectives over groups that overlap, for jobs where pairs take too long: about log₂ N rounds instead of N - 1.

Each round splits all places into disjoint groups of one size that run an all-reduce at the same time. A collective is as slow as its
slowest member, so that whoever is well shows it by one fast group, and whoever is sick is in a slow one every time. This is group
testing without feedback (Du and Hwang, Combinatorial Group Testing, 2000): groups are drawn so that two places meet as seldom as they
can, and there are four times as many groups as sick places are expected (a sixteenth of all, 8 at most), so that most groups are well.

The limit is loose: whoever is named here is only a candidate, to be measured again with partners that are known to be well. What is seen
is a place that is slow with everybody; a path between two places that are well with others, and the latency of small messages, are not.
"""

from __future__ import annotations

import random as draws
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.hunt.asks import GROUPS, Answer, Ask, Hint, Options

LEAST_PLACES = 8  # of fewer a round has too few groups to be compared
LEAST_RATIO = 1e-9  # of what could not be measured at all
_MOST_SICK = 8
_EXPECTED_SICK = 16  # one of so many
_LARGEST_GROUP = 16
_FORGIVEN = 5  # from so many figures on, one that does not fit is chance
_LEAST_DEPTH = 0.04
_SCALES = 2.5
_T4_QUANTILES = (0.271, 1.533)  # of Student's t with 4 degrees of freedom: its 60th and 90th percentile
_UPPER, _LEAST_GROUPS = 0.75, 4

Groups = tuple[tuple[int, ...], ...]
Ratios = NDArray[np.float64]


def group_size(n: int) -> int:
    """Places in a group, so that there are four groups for each sick place that is to be expected: 2 of 8, 4 of 16 to 128, 16 of 512."""
    sick = min(_MOST_SICK, max(1, n // _EXPECTED_SICK))
    return max(2, min(_LARGEST_GROUP, n // (4 * sick)))


def rounds(n: int, options: Options) -> int:
    """How many rounds `sweep` takes: ⌈log₂ n⌉ + 1, fewer where the options say so."""
    own = (n - 1).bit_length() + 1
    return own if options.rounds is None else max(1, min(own, options.rounds))


def sweep(n: int, options: Options, random: draws.Random) -> Generator[Ask, Answer, tuple[Hint, ...]]:
    """Candidates among n places, the worst first: hints of kind "node", of one place each. Raises ValueError below LEAST_PLACES."""
    if n < LEAST_PLACES:
        raise ValueError(f"{n} places make too few groups")
    all_rounds = rounds(n, options)
    seen = _Seen(np.full((all_rounds, n), np.nan), [[] for _ in range(n)])
    for number, groups in enumerate(partitions(n, group_size(n), all_rounds, random)):
        resting = n % group_size(n)
        rest = f", {resting} rest" if resting else ""
        answer = yield Ask(GROUPS, groups, f"groups of {group_size(n)}, round {number + 1} of {all_rounds}{rest}")
        seen.add(number, groups, answer)
    return seen.hints()


def partitions(n: int, size: int, number: int, random: draws.Random) -> Iterator[Groups]:
    """So many splits of n places into groups of one size, drawn so that two places meet in as few of them as they can.

    Where the size does not divide n the rest of them rests, every time those who rested least.
    """
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


def log_ratios(answer: Answer) -> Ratios:
    """Of each group how far it is behind those that are well, as a logarithm; NaN where nothing was measured.

    The upper quarter's limit stands for those that are well (of three groups or fewer the fastest does): it still does where nearly
    three groups of four are slow.
    """
    speeds = np.array([figure.speed if figure.speed else np.nan for figure in answer.figures])
    if np.isnan(speeds).all():
        return speeds
    return np.asarray(np.log(speeds / np.nanquantile(speeds, _UPPER if len(speeds) >= _LEAST_GROUPS else 1)))


def _apart(order: Sequence[int], size: int, met: NDArray[np.int64]) -> list[list[int]]:
    """Places by turns, each into the group whose members it has met least (meetings squared: nobody twice before everybody once)."""
    groups: list[list[int]] = [[] for _ in range(len(order) // size)]
    cost, members = np.zeros((len(groups), met.shape[0])), np.zeros(len(groups))
    for place in order:
        chosen = int(np.argmin(np.where(members < size, cost[:, place] + members / (size * len(order)), np.inf)))
        groups[chosen].append(place)
        members[chosen] += 1
        cost[chosen] += met[place] ** 2
    return groups


@dataclass
class _Seen:
    """ratios [rounds × places]: of the group the place was in, as logarithms; lost: by place why its groups could not be measured."""

    ratios: Ratios
    lost: list[list[str]]

    def add(self, number: int, groups: Groups, answer: Answer) -> None:
        """What a round came to. One of which nothing was measured says nothing of anybody."""
        told = log_ratios(answer)
        if np.isnan(told).all():
            return
        for group, ratio, figure in zip(groups, told, answer.figures, strict=True):
            self.ratios[number, list(group)] = ratio
            for place in group if np.isnan(ratio) else ():
                self.lost[place].append(figure.na or "no reason was given")

    def hints(self) -> tuple[Hint, ...]:
        """Who is in slow groups every time, and in whose groups nothing could be measured at all."""
        limit = self._limit()
        found = [hint for place in range(self.ratios.shape[1]) if (hint := self._hint(place, limit))]
        return tuple(sorted(found, key=lambda hint: hint.ratio))

    def _hint(self, place: int, limit: float) -> Hint | None:
        told = np.sort(self.ratios[np.isfinite(self.ratios[:, place]), place])
        if not len(told):
            why = self.lost[place]
            said = f"none of the {len(why)} groups with it could be measured: {why[-1]}" if why else ""
            return Hint((place,), "node", LEAST_RATIO, said) if why else None
        best = told[-2] if len(told) >= _FORGIVEN else told[-1]
        if best > limit:
            return None
        slow, ratio = int((told <= limit).sum()), exp(float(np.median(told)))
        why_slow = f"{slow} of {len(told)} groups with it reached {ratio:.0%} of the others' bus bandwidth (their median)"
        return Hint((place,), "node", ratio, why_slow)

    def _limit(self) -> float:
        """How far behind is slow: beyond the noise that the faster half of all groups shows, and at least 4 %."""
        told = np.unique(self.ratios[np.isfinite(self.ratios)])
        if not len(told):
            return log(LEAST_RATIO)
        near, far = np.quantile(told, (0.6, 0.9))
        return -max(_LEAST_DEPTH, _SCALES * float(far - near) / (_T4_QUANTILES[1] - _T4_QUANTILES[0]))
