"""How often the gate alarms where nothing is wrong, and how often it finds what is: seeded trials on made-up clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np

from collbench.gate.by_turns import PAIRED_STRIKES, PAIRS, learn_pairs
from collbench.gate.noise import Cluster, Noise
from collbench.gate.rule import ENOUGH, LEAST_CELLS, STRIKES, Limits, Slower, exceed, learn, slower
from collbench.gate.scheme import CLASSES, Figures, Numbers, Scheme, known_median

BASELINE_LAUNCHES, LAUNCHES = 3, 5
_TWO_SIDED = 1.96


class Cells(Protocol):
    """A cluster to be judged, be it made up or drawn from what was recorded; ln of time each."""

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """[count × cells] of so many allocations, the first of which is number `first`."""

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """[count × pairs × cells] new over old, launches by turns."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What is tried: `draw` gives each trial's cluster, of the cells of `scheme`.

    allocations, launches  of the baseline, and of each of its allocations
    paired                 no baseline: an old and a new stack side by side
    """

    draw: Callable[[np.random.Generator], Cells]
    scheme: Scheme
    allocations: int = ENOUGH
    launches: int = BASELINE_LAUNCHES
    paired: bool = False


def made_up(noise: Noise, scheme: Scheme, allocations: int = ENOUGH, paired: bool = False) -> Setting:
    """Clusters of such a noise, another one for each trial."""
    return Setting(lambda random: Cluster.draw(noise, scheme, random), scheme, allocations, paired=paired)


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
    """What is done: which cells become slower (a draw), by what factor given the limits, and whether an excess shows it."""

    done: str
    cells: Callable[[np.random.Generator], Numbers]
    factor: Callable[[Limits, Numbers], float | Figures]
    shows: Callable[[Slower, Numbers], bool]
    wanted: bool = True


def self_test(setting: Setting, trials: int, seed: int = 0) -> Iterator[Outcome]:
    """The table, line by line: each trial has a cluster, a baseline, and three allocations of the candidate; or two of pairs."""
    for number, kind in enumerate(_kinds(setting.scheme)):
        random = np.random.default_rng([seed, number])
        found = sum(_finds(kind, setting, random) for _ in range(trials))
        yield Outcome(kind.done, kind.wanted, found, trials)


def _finds(kind: _Kind, setting: Setting, random: np.random.Generator) -> bool:
    cluster, slowed = setting.draw(random), kind.cells(random)
    if setting.paired:
        differences = cluster.pairs(PAIRED_STRIKES, PAIRS, random)
        limits = learn_pairs(differences, setting.scheme)
        candidate = known_median(np.moveaxis(differences, 1, -1))
    else:
        limits = learn(cluster.allocations(setting.allocations, setting.launches, random), setting.scheme)
        candidate = cluster.allocations(STRIKES, LAUNCHES, random, first=setting.allocations)
    candidate[:, slowed] += np.log(kind.factor(limits, slowed))
    return kind.shows(slower(exceed(limits, candidate)), slowed)


def _kinds(scheme: Scheme) -> list[_Kind]:
    """The large messages' cells and groups, or those of the largest class that there is; no group where none is judged as one."""
    name = CLASSES[scheme.classes.max()]
    groups = np.flatnonzero(scheme.classes == scheme.classes.max())
    cells, every = np.flatnonzero(np.isin(scheme.of, groups)), np.arange(len(scheme.of))
    judged = [members for group in groups if len(members := scheme.members[group]) >= LEAST_CELLS]

    def one_of(choice: Numbers) -> Callable[[np.random.Generator], Numbers]:
        return lambda random: random.choice(choice, 1)

    def one_group(random: np.random.Generator) -> Numbers:
        return judged[int(random.integers(len(judged)))]

    def by(factor: float) -> Callable[[Limits, Numbers], float]:
        return lambda limits, slowed: factor

    def visible(times: float) -> Callable[[Limits, Numbers], Figures]:
        return lambda limits, slowed: 1 + times * np.nan_to_num(limits.visible()[slowed] - 1)

    def its_own(found: Slower, slowed: Numbers) -> bool:
        return bool(found.cells[slowed].any() or found.groups[scheme.of[slowed]].any())

    def anything(found: Slower, _: Numbers) -> bool:
        return found.anything

    one_cell, group = f"one cell of {name} messages slower by", f"one group of {name} messages slower by"
    return [
        _Kind("nothing", lambda _: every[:0], by(1.0), anything, wanted=False),
        *(_Kind(f"{one_cell} {percent} %", one_of(cells), by(1 + percent / 100), its_own) for percent in (5, 10)),
        *(_Kind(f"{group} {percent} %", one_group, by(1 + percent / 100), its_own) for percent in (2, 5) if judged),
        _Kind("all cells slower by 2 %", lambda _: every, by(1.02), anything),
        _Kind("a cell slower by twice what is visible", one_of(every), visible(2.0), its_own),
        _Kind("a cell slower by half of what is visible", one_of(every), visible(0.5), its_own),
    ]
