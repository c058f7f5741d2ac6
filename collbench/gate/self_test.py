"""How often the gate alarms where nothing is wrong, and how often it finds what is: seeded trials on made-up clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from collbench.gate.noise import Cluster, Noise
from collbench.gate.rule import ENOUGH, STRIKES, Slower, exceed, learn, slower
from collbench.gate.scheme import CLASSES, Figures, Numbers, Scheme

BASELINE_LAUNCHES, LAUNCHES = 3, 5
_LARGE = CLASSES.index("large")
_TWO_SIDED = 1.96


@dataclass(frozen=True)
class Outcome:
    """One line of the table.

    done    what was done to the candidate: "nothing", "one cell of large messages slower by 5 %"
    wanted  whether it should have been found; nothing should not
    found   in how many of `trials`
    """

    done: str
    wanted: bool
    found: int
    trials: int

    @property
    def share(self) -> float:
        """Of the trials."""
        return self.found / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's: it holds where nothing or everything was found, too."""
        n, share, z = self.trials, self.share, _TWO_SIDED
        middle, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


@dataclass(frozen=True, eq=False)
class _Kind:
    """What is done: which cells become slower (a draw), by what factor, and whether an excess shows it."""

    done: str
    cells: Callable[[np.random.Generator], Numbers]
    factor: float
    shows: Callable[[Slower, Numbers], bool]
    wanted: bool = True


def self_test(noise: Noise, scheme: Scheme, trials: int, seed: int = 0, allocations: int = ENOUGH) -> Iterator[Outcome]:
    """The table, line by line: each trial has a cluster, a baseline of so many allocations, and three of the candidate."""
    for number, kind in enumerate(_kinds(scheme)):
        random = np.random.default_rng([seed, number])
        found = sum(_finds(kind, noise, scheme, allocations, random) for _ in range(trials))
        yield Outcome(kind.done, kind.wanted, found, trials)


def _finds(kind: _Kind, noise: Noise, scheme: Scheme, allocations: int, random: np.random.Generator) -> bool:
    cluster = Cluster.draw(noise, scheme, random)
    limits = learn(cluster.allocations(allocations, BASELINE_LAUNCHES, random), scheme)
    slowed = kind.cells(random)
    candidate = cluster.allocations(STRIKES, LAUNCHES, random, first=allocations) + _slower(len(scheme.of), slowed, kind.factor)
    return kind.shows(slower(exceed(limits, candidate)), slowed)


def _slower(cells: int, slowed: Numbers, factor: float) -> Figures:
    found = np.zeros(cells)
    found[slowed] = np.log(factor)
    return found


def _kinds(scheme: Scheme) -> list[_Kind]:
    large = np.flatnonzero(scheme.classes == _LARGE)
    cells, every = np.flatnonzero(np.isin(scheme.of, large)), np.arange(len(scheme.of))

    def one_cell(random: np.random.Generator) -> Numbers:
        return random.choice(cells, 1)

    def one_group(random: np.random.Generator) -> Numbers:
        return scheme.members[int(random.choice(large))]

    def its_own(found: Slower, slowed: Numbers) -> bool:
        return bool(found.cells[slowed].any() or found.groups[scheme.of[slowed]].any())

    def anything(found: Slower, _: Numbers) -> bool:
        return found.anything

    return [
        _Kind("nothing", lambda _: every[:0], 1.0, anything, wanted=False),
        *(_Kind(f"one cell of large messages slower by {percent} %", one_cell, 1 + percent / 100, its_own) for percent in (5, 10)),
        *(_Kind(f"one group of large messages slower by {percent} %", one_group, 1 + percent / 100, its_own) for percent in (2, 5)),
        _Kind("all cells slower by 2 %", lambda _: every, 1.02, anything),
    ]
