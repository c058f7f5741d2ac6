"""The groups of ranks that an operation runs over: all, pairs, or a split. The groups of a case run at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.units import plural

# Pair schedule: rounds of disjoint pairs that run at the same time, generated one by one.
#
# The circle method: one place stays, and the others rotate around it. For n places it takes n - 1 rounds until every pair has met once.
# For odd n it takes n rounds: a virtual place is added, and the place paired with it pauses.

Pair = tuple[int, int]
Round = tuple[Pair, ...]


def circle_round(n: int, number: int) -> Round:
    """Return the pairs of one round (from 0) of the circle method over n places, lower place first.

    Raises ValueError for an invalid round.
    """
    turning = n - 1 + n % 2
    if n < 2 or not 0 <= number < turning:
        raise ValueError(f"{n} places have no round {number}")
    pairs = [((number + step) % turning, (number - step) % turning) for step in range(1, (n + 1) // 2)]
    if n % 2 == 0:
        pairs.insert(0, (number, n - 1))
    return tuple((min(pair), max(pair)) for pair in pairs)


class Schedule(msgspec.Struct, frozen=True):
    """The pairs to measure, in order.

    n        number of places (ranks, nodes …)
    chosen   numbers of the whole rounds to run; in each, every place has a partner, except the one that pauses if n is odd
    at_once  maximum number of pairs of a round that run at the same time; None: all
    center   measure only the pairs of this place, one by one; None: all pairs
    """

    n: int
    chosen: tuple[int, ...]
    at_once: int | None = None
    center: int | None = None

    def rounds(self) -> Iterator[Round]:
        """Yield the pairs that run at the same time. A round of more than `at_once` pairs is divided."""
        for number in self.chosen:
            pairs = circle_round(self.n, number) if self.center is None else ((self.center, number + (number >= self.center)),)
            step = self.at_once or len(pairs)
            yield from (pairs[first : first + step] for first in range(0, len(pairs), step))

    @property
    def parts(self) -> int:
        """The number of consecutive rounds per whole round."""
        return -(-self._width // (self.at_once or self._width))

    @property
    def number(self) -> int:
        """The number of rounds that `rounds` yields."""
        return len(self.chosen) * self.parts

    @property
    def pairs(self) -> int:
        """The number of pairs to measure."""
        return len(self.chosen) * self._width

    @property
    def possible(self) -> int:
        """The number of all possible pairs."""
        return self.whole_rounds * self._width

    @property
    def whole_rounds(self) -> int:
        """The number of whole rounds that measure all pairs."""
        return self.n - 1 + (self.n % 2 if self.center is None else 0)

    @property
    def least(self) -> int:
        """The number of whole rounds that give every place a partner: two for an odd number of places, since each round leaves one out."""
        return 1 + (self.n % 2 if self.center is None else 0)

    @property
    def _width(self) -> int:
        return self.n // 2 if self.center is None else 1


def schedule(
    n: int, *, at_once: int | None = None, center: int | None = None, partners: int | None = None, most: int | None = None, seed: int = 0
) -> Schedule:
    """Return a seeded choice of the rounds of n places, in seeded order; all of them by default.

    partners: minimum number of partners per place (with a center: of the center); most: maximum number of rounds, parts included,
    but every place keeps a partner.
    """
    full = Schedule(n, (), at_once, center)
    count = full.whole_rounds if partners is None else min(partners + full.least - 1, full.whole_rounds)
    if most is not None:
        count = min(count, max(full.least, most // full.parts))
    chosen = random.Random(f"pairs, {seed}").sample(range(full.whole_rounds), count)
    return Schedule(n, tuple(chosen), at_once, center)


Groups = tuple[tuple[int, ...], ...]
_NAMED = 8  # pairs in the group's name


def groups_of(operation: Operation, case: Case, n: int) -> Groups:
    """Return the groups among n ranks: one of all, those of the case's split, or for pairs (i, i + n/2), the first `case.pairs` of them.

    These pairs cross hosts with block placement, as in osu_mbw_mr; an odd rank pauses. Raises UsageError for a split that does not fit.
    """
    if operation.pair:
        return tuple((i, i + n // 2) for i in range(min(case.pairs or n, n // 2)))
    return case.split.groups(n) if case.split else (tuple(range(n)),)


def group_size(operation: Operation, case: Case, n: int) -> int:
    """Return the number of ranks per group; 2 for pairs, even if there are none. Raises UsageError as `groups_of` does."""
    return 2 if operation.pair else len(groups_of(operation, case, n)[0])


def group_name(operation: Operation, case: Case, groups: Groups) -> str:
    """Return the groups' name in rows: "all", the split, or the pairs: "0-2,1-3"; the first and last of many.

    Pairs of an operation that aggregates them have only their number: "4 pairs".
    """
    if operation.aggregate:
        return plural(len(groups), "pair")
    if not operation.pair:
        return str(case.split) if case.split and len(groups) > 1 else "all"
    names = [f"{a}-{b}" for a, b in groups]
    return ",".join(names) if len(names) <= _NAMED else f"{names[0]}…{names[-1]}"
