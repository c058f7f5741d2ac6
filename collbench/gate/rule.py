"""The rule: what may be by chance, learned from allocations that were good, and what exceeds it.

Everything is a logarithm of time: of a cell in an allocation the median of its launches' medians. A cell's limit is three of its own
spreads, where the spread of cells with a short history is drawn towards that of their group; never less than a floor, below which
nobody would act. The medians over a group and over all cells have limits of their own: they see what is too little for any single cell.
A cell, group or the whole is slower when it exceeds its limit in three allocations, each a fresh one: in one allocation alone chance
exceeds some limit often (`self_test` says how often).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.gate.baseline import Figures, Scheme, known_median

CONFIRMATIONS = 3
FEWEST, ENOUGH = 4, 6  # allocations: with fewer there is no verdict; with fewer than enough it is marked as resting on a thin baseline
K_SIGMA = 3.0
PRIOR_DOF = 8.0  # degrees of freedom that the group lends to each of its cells
_CELL_FLOORS, _GROUP_FLOORS, _WHOLE_FLOOR = np.log1p([0.05, 0.04, 0.02]), np.log1p([0.03, 0.02, 0.01]), float(np.log1p(0.015))
LEAST_CELLS = 3  # of a group that is judged as one: a median of fewer is moved by a single cell, which has a limit of its own
Mask = NDArray[np.bool_]


class Floors(NamedTuple):
    """By how much, in ln of time, something has to be slower for anybody to act: [cells], [groups], and the whole."""

    cells: Figures
    groups: Figures
    whole: float


@dataclass(frozen=True, eq=False)
class BaselineLimits:
    """What a baseline says; all in ln of seconds.

    scheme        which cells form groups
    allocations   [cells] in how many allocations (of two stacks: pairs of launches of the first) the cell was measured
    centre        [cells] its median over allocations; cells: by how much it may exceed that
    group_centre  [groups] the median over allocations of the group's median excess; groups: by how much that may be exceeded
    whole_centre, whole  likewise of all cells
    """

    scheme: Scheme
    allocations: NDArray[np.int64]
    centre: Figures
    cells: Figures
    group_centre: Figures
    groups: Figures
    whole_centre: float
    whole: float

    @property
    def judged(self) -> Mask:
        """[cells] which have a history long enough to be judged by."""
        return self.allocations >= FEWEST

    def visible(self) -> Figures:
        """[cells] the smallest slowdown that can be seen, as a factor: 1.05 for 5 %; NaN where the history is too short."""
        return np.where(self.judged, np.exp(self.cells), np.nan)


@dataclass(frozen=True, eq=False)
class Excess:
    """By how much allocations exceed their limits, as factors of time over what the baseline's centre says, and where that is too much.

    cells, groups, whole: [allocations × …] factors, NaN where not measured; cells_over, groups_over, whole_over: beyond the limit
    """

    cells: Figures
    groups: Figures
    whole: Figures
    cells_over: Mask
    groups_over: Mask
    whole_over: Mask


@dataclass(frozen=True, eq=False)
class Slower:
    """What is slower in all allocations looked at: cells and groups as masks, and whether the whole is."""

    cells: Mask
    groups: Mask
    whole: bool

    @property
    def anything(self) -> bool:
        """Whether there is any alarm."""
        return bool(self.cells.any() or self.groups.any() or self.whole)


def learn(times: Figures, scheme: Scheme) -> BaselineLimits:
    """The limits from [allocations × cells] ln of seconds; NaN where a cell was not measured."""
    counts = np.isfinite(times).sum(axis=0)
    centre = known_median(times.T)
    variance = pooled(_variance(times), counts, scheme)
    beyond = np.where(counts >= FEWEST, times - centre, np.nan)  # what was measured once is always at its centre
    of_groups, of_all = scheme.medians(beyond), known_median(beyond)
    group_centre, whole_centre = known_median(of_groups.T), float(known_median(of_all))
    floors = floors_of(scheme)
    judged = np.bincount(scheme.of, counts >= FEWEST, len(scheme.groups))
    return BaselineLimits(
        scheme, counts, centre, np.maximum(floors.cells, _reach(variance, counts)),
        group_centre, np.where(judged < LEAST_CELLS, np.inf, np.maximum(floors.groups, _spread(of_groups))),
        whole_centre, float(np.inf if judged.sum() < LEAST_CELLS else max(floors.whole, float(_spread(of_all[:, None])[0]))),
    )  # fmt: skip


def exceed(limits: BaselineLimits, times: Figures) -> Excess:
    """Allocations, [allocations × cells] ln of seconds, against the limits. A cell that is not judged never exceeds its own.

    Nothing is known of a group, or of the whole, of which an allocation measured less than half of what is judged: suspects alone say
    nothing of the others.
    """
    beyond = np.where(limits.judged, times - limits.centre, np.nan)
    of_groups, of_all = _covered(limits, beyond)
    groups = np.where(of_groups, limits.scheme.medians(beyond) - limits.group_centre, np.nan)
    whole = np.where(of_all, known_median(beyond) - limits.whole_centre, np.nan)
    with np.errstate(invalid="ignore"):
        over = beyond > limits.cells, groups > limits.groups, whole > limits.whole
    return Excess(np.exp(beyond), np.exp(groups), np.exp(whole), *over)


def _covered(limits: BaselineLimits, beyond: Figures) -> tuple[Mask, Mask]:
    """[allocations × groups] and [allocations]: whether at least half of the judged cells were measured."""
    known, judged = np.isfinite(beyond), limits.judged
    counts = np.array([np.bincount(limits.scheme.of, each, len(limits.scheme.groups)) for each in known])
    of_groups = np.bincount(limits.scheme.of, judged, len(limits.scheme.groups))
    return 2 * counts >= np.maximum(of_groups, 1), 2 * known.sum(axis=-1) >= max(1, int(judged.sum()))


def slower(excess: Excess) -> Slower:
    """What exceeds in each of the allocations; what one of them did not measure is not among it."""
    cells, groups = (np.asarray(over.all(axis=0)) for over in (excess.cells_over, excess.groups_over))
    return Slower(cells, groups, bool(excess.whole_over.all()))


def floors_of(scheme: Scheme) -> Floors:
    """The floors of its cells, of its groups, and of the whole."""
    return Floors(_CELL_FLOORS[scheme.classes][scheme.of], _GROUP_FLOORS[scheme.classes], _WHOLE_FLOOR)


def pooled(own: Figures, counts: NDArray[np.int64], scheme: Scheme) -> Figures:
    """[cells] each cell's variance between so many allocations, drawn towards its group's mean; of a single allocation the group's."""
    lent = scheme.means(own)[scheme.of]
    degrees = np.maximum(counts - 1, 0)
    found: Figures = (PRIOR_DOF * lent + degrees * np.nan_to_num(own)) / (PRIOR_DOF + degrees)
    return found


def _variance(values: Figures) -> Figures:
    """Over the first axis, of what is known; NaN of fewer than two."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / counts
        squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        return np.where(counts > 1, squares / (counts - 1), np.nan)


def _spread(values: Figures) -> Figures:
    """How far [allocations × …] values are from their centre by chance."""
    return _reach(_variance(values), np.isfinite(values).sum(axis=0))


def _reach(variance: Figures, counts: NDArray[np.int64]) -> Figures:
    """How far from the centre of so many allocations another one may be; beyond all bounds where nothing is known of the spread."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = K_SIGMA * np.sqrt(variance) * np.sqrt(1 + 1 / counts)
    return np.where(np.isfinite(found), found, np.inf)
