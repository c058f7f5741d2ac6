"""Which ranks an operation runs over: all, pairs, or the groups of a split; the groups of a cell run at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.operations.cell import Cell
from collbench.operations.operation import Operation

# Pair schedule: rounds of disjoint pairs that run at the same time, generated one by one.
#
# The circle method: one place stays, the others turn around it. Of n places it takes n - 1 rounds until every pair has met once, and n
# where n is odd: a phantom is added, and the place paired with it pauses.

Pair = tuple[int, int]
Round = tuple[Pair, ...]


def circle_round(n: int, number: int) -> Round:
    """The pairs of n places that meet in one round (from 0) of the circle, the lower place first. Raises ValueError for no such round."""
    turning = n - 1 + n % 2
    if n < 2 or not 0 <= number < turning:
        raise ValueError(f"{n} places have no round {number}")
    met = [((number + step) % turning, (number - step) % turning) for step in range(1, (n + 1) // 2)]
    return tuple((min(pair), max(pair)) for pair in ([] if n % 2 else [(number, n - 1)]) + met)


@dataclass(frozen=True)
class Schedule:
    """The pairs to measure, in this order.

    n        places
    chosen   numbers of whole rounds; each gives every place a partner, but for the bye
    at_once  pairs of a round that run at the same time at most; None: all
    center   measure only the pairs of this place, one by one; None: all pairs
    """

    n: int
    chosen: tuple[int, ...]
    at_once: int | None = None
    center: int | None = None

    def rounds(self) -> Iterator[Round]:
        """The pairs that run at the same time; a round of more than `at_once` in parts."""
        for number in self.chosen:
            pairs = self._whole(number)
            step = self.at_once or len(pairs)
            yield from (pairs[at : at + step] for at in range(0, len(pairs), step))

    def _whole(self, number: int) -> Round:
        if self.center is None:
            return circle_round(self.n, number)
        return ((self.center, number + (number >= self.center)),)

    @property
    def parts(self) -> int:
        """How many rounds run one after the other for one whole round."""
        return -(-self._width // (self.at_once or self._width))

    @property
    def number(self) -> int:
        """How many rounds `rounds` gives."""
        return len(self.chosen) * self.parts

    @property
    def pairs(self) -> int:
        """How many pairs it measures."""
        return len(self.chosen) * self._width

    @property
    def possible(self) -> int:
        """How many there are."""
        return self.whole_rounds * self._width

    @property
    def whole_rounds(self) -> int:
        """How many whole rounds measure all."""
        return self.n - 1 + (self.n % 2 if self.center is None else 0)

    @property
    def least(self) -> int:
        """How many whole rounds give every place a partner: with an odd number of them two, since each round leaves one out."""
        return 1 + (self.n % 2 if self.center is None else 0)

    @property
    def _width(self) -> int:
        return self.n // 2 if self.center is None else 1


def schedule(
    n: int, *, at_once: int | None = None, center: int | None = None, partners: int | None = None, most: int | None = None, seed: int = 0
) -> Schedule:
    """A seeded choice of the rounds of n places, in seeded order; all of them by default.

    partners: how many each place has at least (with a center: how many that one has); most: how many rounds, parts counted, may run,
    but every place keeps a partner.
    """
    full = Schedule(n, (), at_once, center)
    wanted = full.whole_rounds if partners is None else min(partners + full.least - 1, full.whole_rounds)
    if most is not None:
        wanted = min(wanted, max(full.least, most // full.parts))
    chosen = random.Random(f"pairs, {seed}").sample(range(full.whole_rounds), wanted)
    return Schedule(n, tuple(chosen), at_once, center)


Groups = tuple[tuple[int, ...], ...]
_NAMED = 8  # pairs named one by one


def groups_of(operation: Operation, cell: Cell, n: int) -> Groups:
    """The groups among n ranks: one of all, those of the cell's split, or for pairs (i, i + n/2).

    These cross hosts with the usual block placement; the odd rank out rests. Raises UsageError for a split that does not fit.
    """
    if operation.pair:
        return tuple((i, i + n // 2) for i in range(n // 2))
    return cell.split.groups(n) if cell.split else (tuple(range(n)),)


def group_size(operation: Operation, cell: Cell, n: int) -> int:
    """How many of n ranks each group has; a pair has two, whether there is one or not. Raises UsageError as `groups_of` does."""
    return 2 if operation.pair else len(groups_of(operation, cell, n)[0])


def group_name(operation: Operation, cell: Cell, groups: Groups) -> str:
    """What rows call the groups: "all", the split, or the pairs: "0-2,1-3"; the first and last of many."""
    if not operation.pair:
        return str(cell.split) if cell.split and len(groups) > 1 else "all"
    names = [f"{a}-{b}" for a, b in groups]
    return ",".join(names) if len(names) <= _NAMED else f"{names[0]}…{names[-1]}"
