"""A comparison of two allocations of a baseline, or of two baselines: cases that moved more than chance explains, and changes.

The limit is three standard errors of the difference, as in the rule, and at least a floor. It was simulated with the noise of
`self_test.Noise` and no change. Between two allocations of a baseline of six or more, 0.14 % of the cases and up to 2 % of the groups
exceed it; between two baselines of six, 0.04 % of the cases. One comparison is therefore not a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite

import numpy as np

from collbench.analysis.differences import Difference
from collbench.analysis.outcome import Outcome, outcome_by_limit
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation
from collbench.gating.baseline import Baseline, Figures, known_median
from collbench.gating.changes import changes
from collbench.gating.history import CASE, OF_MEDIAN, HistoryMatrix, SeriesSubject, history_matrix
from collbench.gating.rule import K_SIGMA


@dataclass(frozen=True)
class Shift:
    """The change of a case, a group or the whole.

    factor  the new time over the old one
    limit   the factor that chance explains, in either direction; None if the scatter is unknown
    """

    about: SeriesSubject
    factor: float
    limit: float | None

    @property
    def outcome(self) -> Outcome:
        """Return slower, faster, no change (the limit is inside the margin) or inconclusive."""
        return outcome_by_limit([self.factor], self.limit)

    @property
    def beyond(self) -> bool:
        """Return whether the change is larger than chance explains, slower or faster."""
        return self.limit is not None and not 1 / self.limit <= self.factor <= self.limit


@dataclass(frozen=True)
class BaselineDiff:
    """The differences between two sides of a baseline comparison.

    old, new  their names
    sides     the allocations of each
    changes   between the last allocation of the old side and the last of the new one
    moved     the whole, groups and cases that both sides have
    only_old, only_new  the cases that the other side lacks
    """

    old: str
    new: str
    sides: tuple[Sequence[Allocation], Sequence[Allocation]]
    changes: Sequence[Difference]
    moved: Sequence[Shift]
    only_old: Sequence[SeriesSubject]
    only_new: Sequence[SeriesSubject]


def between_allocations(baseline: Baseline, old: str, new: str) -> BaselineDiff:
    """Return the differences of two allocations, with limits from their baseline.

    Raises UsageError for a name that is not in the baseline, and for the same name twice.
    """
    number = {each.name: place for place, each in enumerate(baseline.allocations)}
    unknown = next((name for name in (old, new) if name not in number), None)
    if unknown is not None:
        raise UsageError(f"allocation {unknown} is not in {baseline.path}: choose from {', '.join(number)}")
    if old == new:
        raise UsageError(f"allocation {old} is named twice: name two different ones")
    matrix = history_matrix(baseline.allocations)
    return _moves((old, new), baseline.allocations, matrix, ([number[old]], [number[new]]), matrix.variance())


def between_baselines(old: Baseline, new: Baseline) -> BaselineDiff:
    """Return the differences of two baselines. Limits come from the scatter within each, not from the difference between them."""
    if old.path.resolve() == new.path.resolve():
        raise UsageError(f"{old.path} is named twice: name two different baselines")
    every = [*old.allocations, *new.allocations]
    matrix, middle = history_matrix(every), len(old.allocations)
    sides = list(range(middle)), list(range(middle, len(every)))
    variances = np.array([matrix.variance(side) for side in sides])
    known = np.isfinite(variances)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Figures = np.where(known, variances, 0.0).sum(axis=0) / known.sum(axis=0)
    return _moves((str(old.path), str(new.path)), every, matrix, sides, mean)


def _moves(
    names: tuple[str, str],
    every: Sequence[Allocation],
    matrix: HistoryMatrix,
    sides: tuple[Sequence[int], Sequence[int]],
    variance: Figures,
) -> BaselineDiff:
    values = [matrix.values[side] for side in sides]
    old, new = (known_median(each.T) for each in values)
    reach = _reach(variance, [np.isfinite(each).sum(axis=0).astype(float) for each in values], matrix.floors)
    limits = [exp(each) if isfinite(each) else None for each in reach]
    moved = [Shift(matrix.abouts[place], exp(new[place] - old[place]), limits[place]) for place in _known(new - old)]
    lost, added = (
        [each for place in _known(one) if not isfinite(other[place]) and (each := matrix.abouts[place]).kind == CASE]
        for one, other in ((old, new), (new, old))
    )
    whole = [every[number] for number in sides[0]], [every[number] for number in sides[1]]
    return BaselineDiff(*names, whole, changes(whole[0][-1], whole[1][-1]), moved, lost, added)


def _known(values: Figures) -> list[int]:
    return [int(place) for place in np.flatnonzero(np.isfinite(values))]


def _reach(variance: Figures, counts: Sequence[Figures], floors: Figures) -> Figures:
    """Return by how much medians of so many allocations differ by chance; NaN if the scatter is unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        of_median = sum(np.where(count > 2, OF_MEDIAN, 1.0) / count for count in counts)  # median and mean of two are equal
        reach = K_SIGMA * np.sqrt(variance * of_median)
    return np.where(np.isfinite(reach), np.maximum(floors, reach), np.nan)
