"""The rule of the gate: limits learned from good allocations, and what exceeds them.

All times are ln of seconds: for a case in an allocation, of the median of its launches' medians. A case's limit is three of its own
spreads, but at least a floor below which a slowdown does not matter. The spread of a case with a short history is drawn towards that
of its group. The medians over a group and over all cases have their own limits: they detect what is too small for a single case.
A case, a group or the whole is slower if it exceeds its limit in three fresh allocations. In one allocation alone, chance often
exceeds some limit (`self_test` reports how often).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.gating.baseline import Figures, Scheme, known_median

CONFIRMATIONS = 3
FEWEST, ENOUGH = 4, 6  # allocations: fewer than FEWEST give "no verdict"; fewer than ENOUGH mark the verdict as based on a thin baseline
K_SIGMA = 3.0
PRIOR_DOF = 8.0  # degrees of freedom of the group's variance within each case's variance
_CASE_FLOORS, _GROUP_FLOORS, _WHOLE_FLOOR = np.log1p([0.05, 0.04, 0.02]), np.log1p([0.03, 0.02, 0.01]), float(np.log1p(0.015))
COARSEST = 2.0  # factor: limits above it detect no slowdown that matters
LEAST_CASES = 3  # cases of a group that is judged as one; a single case would move the median of fewer
Mask = NDArray[np.bool_]


class Floors(NamedTuple):
    """The smallest slowdown that matters, in ln of time: [cases], [groups], and of the whole."""

    cases: Figures
    groups: Figures
    whole: float


@dataclass(frozen=True, eq=False)
class BaselineLimits:
    """The limits learned from a baseline; all in ln of seconds.

    scheme        the groups of the cases
    allocations   [cases] the number of allocations with the case (for two stacks: of pairs of launches in the first allocation)
    centre        [cases] its median over allocations
    cases         [cases] the excess over the center that chance explains
    group_centre  [groups] the median over allocations of the group's median excess
    groups        [groups] the excess over that which chance explains
    whole_centre, whole  likewise for all cases
    """

    scheme: Scheme
    allocations: NDArray[np.int64]
    centre: Figures
    cases: Figures
    group_centre: Figures
    groups: Figures
    whole_centre: float
    whole: float

    @property
    def judged(self) -> Mask:
        """Return [cases] which cases have a history that is long enough."""
        return self.allocations >= FEWEST

    def visible(self) -> Figures:
        """Return [cases] the smallest slowdown that is detectable, as a factor: 1.05 for 5 %; NaN if the history is too short."""
        return np.where(self.judged, np.exp(self.cases), np.nan)


@dataclass(frozen=True, eq=False)
class Excess:
    """The times of allocations over the baseline's center, and where they exceed the limits.

    cases, groups, whole: [allocations × …] factors, NaN if not measured
    cases_over, groups_over, whole_over: [allocations × …] whether the limit is exceeded
    """

    cases: Figures
    groups: Figures
    whole: Figures
    cases_over: Mask
    groups_over: Mask
    whole_over: Mask


@dataclass(frozen=True, eq=False)
class SlowerParts:
    """The slower cases and groups, as masks, and whether the whole is slower; each in all allocations."""

    cases: Mask
    groups: Mask
    whole: bool

    @property
    def anything(self) -> bool:
        """Return whether there is any alarm."""
        return bool(self.cases.any() or self.groups.any() or self.whole)


def learn(times: Figures, scheme: Scheme) -> BaselineLimits:
    """Return the limits from [allocations × cases] ln of seconds; NaN if a case was not measured."""
    counts = np.isfinite(times).sum(axis=0)
    centre = known_median(times.T)
    pooled_variance = pooled(variance(times), counts, scheme)
    beyond = np.where(counts >= FEWEST, times - centre, np.nan)  # a single measurement always equals its center
    of_groups, of_all = scheme.medians(beyond), known_median(beyond)
    group_centre, whole_centre = known_median(of_groups.T), float(known_median(of_all))
    floors = floors_of(scheme)
    judged = np.bincount(scheme.of, counts >= FEWEST, len(scheme.groups))
    return BaselineLimits(
        scheme, counts, centre, np.maximum(floors.cases, _reach(pooled_variance, counts)),
        group_centre, np.where(judged < LEAST_CASES, np.inf, np.maximum(floors.groups, _spread(of_groups))),
        whole_centre, float(np.inf if judged.sum() < LEAST_CASES else max(floors.whole, float(_spread(of_all[:, None])[0]))),
    )  # fmt: skip


def exceed(limits: BaselineLimits, times: Figures) -> Excess:
    """Return by how much allocations, [allocations × cases] ln of seconds, exceed the limits. A case without a history never does.

    A group, or the whole, is unknown if the allocation measured less than half of its judged cases: suspects do not represent the others.
    """
    beyond = np.where(limits.judged, times - limits.centre, np.nan)
    of_groups, of_all = _covered(limits, beyond)
    groups = np.where(of_groups, limits.scheme.medians(beyond) - limits.group_centre, np.nan)
    whole = np.where(of_all, known_median(beyond) - limits.whole_centre, np.nan)
    with np.errstate(invalid="ignore"):
        over = beyond > limits.cases, groups > limits.groups, whole > limits.whole
    return Excess(np.exp(beyond), np.exp(groups), np.exp(whole), *over)


def _covered(limits: BaselineLimits, beyond: Figures) -> tuple[Mask, Mask]:
    """Return [allocations × groups] and [allocations]: whether at least half of the judged cases were measured."""
    known, judged = np.isfinite(beyond), limits.judged
    counts = np.array([np.bincount(limits.scheme.of, each, len(limits.scheme.groups)) for each in known])
    of_groups = np.bincount(limits.scheme.of, judged, len(limits.scheme.groups))
    return 2 * counts >= np.maximum(of_groups, 1), 2 * known.sum(axis=-1) >= max(1, int(judged.sum()))


def slower(excess: Excess) -> SlowerParts:
    """Return what exceeds its limit in each of the allocations; what one of them did not measure is not included."""
    cases, groups = (np.asarray(over.all(axis=0)) for over in (excess.cases_over, excess.groups_over))
    return SlowerParts(cases, groups, bool(excess.whole_over.all()))


def floors_of(scheme: Scheme) -> Floors:
    """Return the floors of the cases, of the groups, and of the whole."""
    return Floors(_CASE_FLOORS[scheme.classes][scheme.of], _GROUP_FLOORS[scheme.classes], _WHOLE_FLOOR)


def pooled(own: Figures, counts: NDArray[np.int64], scheme: Scheme) -> Figures:
    """Return [cases] each case's variance between `counts` allocations, drawn towards its group's mean; for a single one the group's."""
    lent = scheme.means(own)[scheme.of]
    degrees = np.maximum(counts - 1, 0)
    found: Figures = (PRIOR_DOF * lent + degrees * np.nan_to_num(own)) / (PRIOR_DOF + degrees)
    return found


def variance(values: Figures) -> Figures:
    """Return the variance of the known values over the first axis; NaN for fewer than two."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / counts
        squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
        return np.where(counts > 1, squares / (counts - 1), np.nan)


def _spread(values: Figures) -> Figures:
    """Return the spread of [allocations × …] values around their center."""
    return _reach(variance(values), np.isfinite(values).sum(axis=0))


def _reach(spread: Figures, counts: NDArray[np.int64]) -> Figures:
    """Return how far another allocation may be from the center of `counts` ones by chance; infinite where the spread is unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = K_SIGMA * np.sqrt(spread) * np.sqrt(1 + 1 / counts)
    return np.where(np.isfinite(found), found, np.inf)
