"""A cluster as recorded: allocations made up from those of a baseline, so that the self-test speaks of the cells that are judged by it.

What is common to cells stays common, since whole vectors over all cells are drawn: of the launches one as it was recorded, of the
allocations a normal mixture of all. Neither can be worse than what was recorded: what happens once in a hundred launches is not in it
unless it happened, and whether the cluster drifts is not known. Few allocations overstate false alarms, since a mixture of few moves
many cells at once (six of a made-up cluster with 0.5 % said 2 %), and say little of groups (2 % of one: found in 48 to 97 %, truly 65 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.gate.allocation import Measured
from collbench.gate.baseline import Baseline, scheme_of
from collbench.gate.names import counted
from collbench.gate.rule import FEWEST
from collbench.gate.scheme import Figures, Scheme, known_median
from collbench.gate.self_test import Setting

_FEWEST_LAUNCHES = 2  # of one alone it is not known how launches scatter
_DRAWN = 400  # allocations, to see how much of the scatter between them is that of their launches


@dataclass(frozen=True, eq=False)
class Recorded:
    """scheme    how the cells that can be drawn are grouped
    launch       [launches × cells] by how much each launch was off the mean of its allocation, ln; widened, since so few have a mean that
                 follows them; NaN where it lacks the cell
    allocation   [allocations × cells] likewise the allocations off theirs, without what their launches explain; 0 where one lacks the cell
    lacking      [allocations × cells] which cells an allocation lacks
    launches     how many an allocation has, as a rule
    left_out     cells that too few allocations have
    """

    scheme: Scheme
    launch: Figures
    allocation: Figures
    lacking: NDArray[np.bool_]
    launches: int
    left_out: int

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """[count × cells] ln of time, as the gate takes it. The recorded ones have no order: `first` changes nothing."""
        mixed = random.normal(size=(count, len(self.allocation))) @ self.allocation
        lacking = self.lacking[random.integers(len(self.lacking), size=count)]
        times: Figures = np.where(lacking, np.nan, self._medians(count, launches, random) + mixed)
        return times

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """[count × pairs × cells] ln of time, new over old."""
        old, new = self.launch[random.integers(len(self.launch), size=(2, count, pairs))]
        differences: Figures = new - old
        return differences

    def _medians(self, count: int, launches: int, random: np.random.Generator) -> Figures:
        drawn = self.launch[random.integers(len(self.launch), size=(count, launches))]
        return known_median(np.moveaxis(drawn, 1, -1))


def recorded(baseline: Baseline) -> Recorded:
    """What a baseline's allocations say. Raises UsageError where there are too few allocations, or launches in them."""
    scattered = [each for each in baseline.allocations if each.launches >= _FEWEST_LAUNCHES]
    if len(scattered) < FEWEST:
        raise UsageError(
            f"--self-test: {baseline.path} has {counted(len(scattered), 'allocation')} of {_FEWEST_LAUNCHES} launches or more: "
            f"{FEWEST} are needed to see how they scatter; add good ones"
        )
    cells = baseline.cells
    each = [_times(allocation.launches, [allocation.cells.get(cell) for cell in cells]) for allocation in scattered]
    centres = np.array([known_median(times.T) for times in each])
    enough = np.isfinite(centres).sum(axis=0) >= FEWEST
    if not enough.any():
        raise UsageError(f"--self-test: {baseline.path} has no cell in {FEWEST} allocations: add good ones")
    scheme = scheme_of([cell for cell, is_in in zip(cells, enough, strict=True) if is_in])
    launch = np.concatenate([_widened(times[:, enough]) for times in each])
    return _made(scheme, launch, centres[:, enough], int(np.median([one.launches for one in scattered])), int((~enough).sum()))


def _times(launches: int, cells: Sequence[Measured | None]) -> Figures:
    """[launches × cells] ln of seconds."""
    nothing = (None,) * launches
    found = np.array([nothing if cell is None else cell.medians_s for cell in cells], dtype=np.float64).T
    return np.asarray(np.log(found), dtype=np.float64)


def _widened(values: Figures) -> Figures:
    """Off the mean over the first axis, wider by what so few lose by having it follow them; NaN of a single one."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / counts
        return np.where(known & (counts > 1), (values - mean) * np.sqrt(counts / (counts - 1)), np.nan)


def _made(scheme: Scheme, launch: Figures, centres: Figures, launches: int, left_out: int) -> Recorded:
    """With allocations that scatter by what was recorded, less what their launches alone would make them scatter.

    That is taken apart for all cells, the groups and single ones, as what launches do to single cells is not in the median of all.
    """
    lacking = ~np.isfinite(centres)
    counts = (~lacking).sum(axis=0)
    off = np.nan_to_num(_widened(centres))
    first = Recorded(scheme, launch, np.zeros((1, len(scheme.of))), lacking, launches, left_out)
    by_launches = np.nan_to_num(first._medians(_DRAWN, launches, np.random.default_rng(0)))
    parts = zip(_apart(scheme, off), _apart(scheme, by_launches), strict=True)
    own = sum((part * _left(scheme, part, explained) for part, explained in parts), np.zeros(off.shape))
    return replace(first, allocation=np.where(lacking, 0.0, own / np.sqrt(counts)))


def _apart(scheme: Scheme, values: Figures) -> tuple[Figures, Figures, Figures]:
    """[… × cells] as what all cells have in common, what is each group's, and what is each cell's own."""
    whole = known_median(values)[..., None]
    groups = scheme.medians(values - whole)[..., scheme.of]
    return np.broadcast_to(whole, values.shape), groups, values - whole - groups


def _left(scheme: Scheme, part: Figures, explained: Figures) -> Figures:
    """[cells] the share of a part's spread that launches do not explain, by class of sizes: single cells are too few to tell."""
    found = np.zeros(len(scheme.of))
    classes = scheme.classes[scheme.of]
    for each in np.unique(classes):
        seen, launches = (float(known_median((values[:, classes == each] ** 2).mean(axis=0))) for values in (part, explained))
        found[classes == each] = np.sqrt(max(0.0, 1 - launches / seen)) if seen > 0 else 0.0
    return found


def setting_of(found: Recorded, allocations: int | None = None, paired: bool = False) -> Setting:
    """The self-test on clusters such as this one, with a baseline of as many allocations as were recorded, if not told otherwise."""
    count = allocations or len(found.allocation)
    return Setting(lambda _: found, found.scheme, count, found.launches, paired)
