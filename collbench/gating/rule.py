"""The rule of the gate: limits learned from good allocations, and what exceeds them.

All times are ln of seconds: for a case in an allocation, of the median of its launches' medians. A case's limit is three of its own
spreads, but at least a floor below which a slowdown does not matter. The spread of a case with a short history is drawn towards that
of its group. The medians over a group and over all cases have their own limits: they detect what is too small for a single case.
A case, a group or the whole is slower if it exceeds its limit in three fresh allocations. In one allocation alone, chance often
exceeds some limit (`self_test` reports how often).

Launches in which the state probe shows another machine state are left out, of a baseline and of candidates. A cache line between two
cores takes 65 or 260 ns on one machine, and the state may change at any time. Times in different states are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.analysis.launches import known as is_known
from collbench.gating.allocation import Allocation, median_of
from collbench.gating.baseline import Baseline, Figures, Scheme, known_median, scheme_of, seconds_of, times_of
from collbench.gating.reasons import AllocationStateChanged, LaunchesLeftOut, LaunchesNeeded
from collbench.results.row import CaseKey

CONFIRMATIONS = 3
FEWEST = 4  # allocations; fewer give "no verdict"
ENOUGH = 6  # allocations; fewer mark the verdict as based on a thin baseline
K_SIGMA = 3.0
PRIOR_DOF = 8.0  # degrees of freedom of the group's variance within each case's variance
_CASE_FLOORS = np.log1p([0.05, 0.04, 0.02])  # by size class
_GROUP_FLOORS = np.log1p([0.03, 0.02, 0.01])
_WHOLE_FLOOR = float(np.log1p(0.015))
COARSEST = 2.0  # factor: limits above it detect no slowdown that matters
LEAST_CASES = 3  # cases of a group that is judged as one; a single case would move the median of fewer
Mask = NDArray[np.bool_]


class Floors(NamedTuple):
    """The smallest slowdown that matters, in ln of time: [cases], [groups], and of the whole."""

    cases: Figures
    groups: Figures
    whole: float


class BaselineLimits(msgspec.Struct, frozen=True, eq=False):
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


class Excess(msgspec.Struct, frozen=True, eq=False):
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


class SlowerParts(msgspec.Struct, frozen=True, eq=False):
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
    group_excess = scheme.medians(beyond)
    whole_excess = known_median(beyond)
    group_centre = known_median(group_excess.T)
    whole_centre = float(known_median(whole_excess))
    floors = floors_of(scheme)
    judged = np.bincount(scheme.of, counts >= FEWEST, len(scheme.groups))
    return BaselineLimits(
        scheme, counts, centre, np.maximum(floors.cases, _reach(pooled_variance, counts)),
        group_centre, np.where(judged < LEAST_CASES, np.inf, np.maximum(floors.groups, _spread(group_excess))),
        whole_centre, float(np.inf if judged.sum() < LEAST_CASES else max(floors.whole, float(_spread(whole_excess[:, None])[0]))),
    )  # fmt: skip


def exceed(limits: BaselineLimits, times: Figures) -> Excess:
    """Return by how much allocations, [allocations × cases] ln of seconds, exceed the limits. A case without a history never does.

    A group, or the whole, is unknown if the allocation measured less than half of its judged cases: suspects do not represent the others.
    """
    beyond = np.where(limits.judged, times - limits.centre, np.nan)
    is_measured = np.isfinite(beyond)
    counts = np.array([np.bincount(limits.scheme.of, measured_cases, len(limits.scheme.groups)) for measured_cases in is_measured])
    judged_cases = np.bincount(limits.scheme.of, limits.judged, len(limits.scheme.groups))
    groups_are_known = 2 * counts >= np.maximum(judged_cases, 1)
    whole_is_known = 2 * is_measured.sum(axis=-1) >= max(1, int(limits.judged.sum()))
    groups = np.where(groups_are_known, limits.scheme.medians(beyond) - limits.group_centre, np.nan)
    whole = np.where(whole_is_known, known_median(beyond) - limits.whole_centre, np.nan)
    with np.errstate(invalid="ignore"):
        over = beyond > limits.cases, groups > limits.groups, whole > limits.whole
    return Excess(np.exp(beyond), np.exp(groups), np.exp(whole), *over)


def slower(excess: Excess) -> SlowerParts:
    """Return what exceeds its limit in each of the allocations; what one of them did not measure is not included."""
    cases = np.asarray(excess.cases_over.all(axis=0))
    groups = np.asarray(excess.groups_over.all(axis=0))
    return SlowerParts(cases, groups, bool(excess.whole_over.all()))


def floors_of(scheme: Scheme) -> Floors:
    """Return the floors of the cases, of the groups, and of the whole."""
    return Floors(_CASE_FLOORS[scheme.classes][scheme.of], _GROUP_FLOORS[scheme.classes], _WHOLE_FLOOR)


def pooled(variances: Figures, counts: NDArray[np.int64], scheme: Scheme) -> Figures:
    """Return [cases] each case's variance between `counts` allocations, drawn towards its group's mean; for a single one the group's."""
    group_variances = scheme.means(variances)[scheme.of]
    degrees = np.maximum(counts - 1, 0)
    shrunk: Figures = (PRIOR_DOF * group_variances + degrees * np.nan_to_num(variances)) / (PRIOR_DOF + degrees)
    return shrunk


def variance(values: Figures) -> Figures:
    """Return the variance of the known values over the first axis; NaN for fewer than two."""
    is_known = np.isfinite(values)
    counts = is_known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_known, values, 0.0).sum(axis=0) / counts
        squares = (np.where(is_known, values - mean, 0.0) ** 2).sum(axis=0)
        return np.where(counts > 1, squares / (counts - 1), np.nan)


def _spread(values: Figures) -> Figures:
    """Return the spread of [allocations × …] values around their center."""
    return _reach(variance(values), np.isfinite(values).sum(axis=0))


def _reach(spread: Figures, counts: NDArray[np.int64]) -> Figures:
    """Return how far another allocation may be from the center of `counts` ones by chance; infinite where the spread is unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = K_SIGMA * np.sqrt(spread) * np.sqrt(1 + 1 / counts)
    return np.where(np.isfinite(reach), reach, np.inf)


# Unstable cases: launches of one allocation differ so much that their median is not valid.
#
# The launches of a case may scatter as in the baseline. A case is unstable if a launch is farther from their median than each of three
# distances. One launch (of many: a fifth) is not counted. The distances are:
# - 10 %;
# - twice the distance of the baseline's launches from its center (without one of them, or a twentieth);
# - twice the usual value of its backend and size class (the 95 % quantile over cases).
# The last one is for bimodal cases that the baseline has in one mode only by chance: they are stable if similar cases are bimodal.
# Flags of rows (`two_modes`, `drift`) do not count, since they describe a single launch, and the baseline's rows have them as often.
#
# Simulated with the noise of `self_test.Noise` (336 cases, a tenth of them bimodal): gates without a change had an unstable case in about 1
# of 70 with a baseline of six allocations. With a baseline of four it was 1 of 30. A large case that became slower by 20 % in two of five
# launches was unstable in 97 %.

FEWEST_LAUNCHES = 3  # with fewer the scatter is unknown
_FLOOR = float(np.log1p(0.10))
_TIMES = 2.0
_QUANTILE = 0.95
_BASELINE_SHARE = 0.05  # of the launches, not counted; at least one
_SHARE = 0.20


def launch_limits(allocations: Sequence[Allocation], cases: Sequence[CaseKey], limits: BaselineLimits) -> Figures:
    """Return [cases] how far a candidate's launches may be from their median, in ln of time; `allocations` are the baseline's."""
    launches = np.log(np.hstack([seconds_of(allocation, cases) for allocation in allocations]))
    distances = _all_but(np.abs(launches - limits.centre[:, None]), _BASELINE_SHARE, 1)
    usual = np.zeros(len(distances))  # over all operations; 0 if nothing is known
    classes = [(group.backend, group.size_class) for group in limits.scheme.groups]
    for similar in dict.fromkeys(classes):
        in_class = np.isin(limits.scheme.of, [number for number, group_class in enumerate(classes) if group_class == similar])
        known_distances = distances[in_class & np.isfinite(distances)]
        usual[in_class] = np.quantile(known_distances, _QUANTILE) if len(known_distances) else 0.0
    return np.maximum(_FLOOR, _TIMES * np.fmax(np.nan_to_num(distances), usual))


def unstable(allocation: Allocation, cases: Sequence[CaseKey], allowed: Figures) -> Mask:
    """Return [cases] which cases have launches that are further apart than `allowed`."""
    launches = np.log(seconds_of(allocation, cases))
    spread = _all_but(np.abs(launches - known_median(launches)[:, None]), _SHARE, FEWEST_LAUNCHES)
    with np.errstate(invalid="ignore"):
        return np.asarray(spread > allowed)


def _all_but(distances: Figures, share: float, fewest: int) -> Figures:
    """Return [cases] the largest known value of [cases × launches], one or that share of them aside; NaN for fewer than `fewest`."""
    ordered = np.sort(distances, axis=1)  # NaN comes last
    counts = np.isfinite(distances).sum(axis=1)
    places = np.maximum(counts - 1 - np.maximum(1, (counts * share).astype(np.int64)), 0)
    picked = np.take_along_axis(ordered, places[:, None], axis=1)[:, 0]
    return np.where(counts >= fewest, picked, np.nan)


STATE = 1.20  # a larger ratio of two state probes shows another machine state
MOST_FLIPPED = 2  # launches of an allocation that may be left out and replaced by others
LEAST_LEFT = 3  # remaining launches of an allocation, since a single launch would move the median of fewer


class FilteredAllocation(msgspec.Struct, frozen=True):
    """An allocation without the launches in another machine state.

    allocation  the remaining launches
    problem     why it cannot be judged; None: it can
    note        what was left out; None: nothing
    left_out    by launch
    """

    allocation: Allocation
    problem: LaunchesNeeded | AllocationStateChanged | None = None
    note: LaunchesLeftOut | None = None
    left_out: tuple[bool, ...] = ()


def typical_probe_s(allocations: Sequence[Allocation]) -> float | None:
    """Return the state probe's median over all launches, in seconds; None if none has a probe. It is a value that occurred."""
    probes_s = [value for allocation in allocations for value in allocation.canary_s if value is not None and is_known(value)]
    return median_low(probes_s) if probes_s else None


def flipped(allocation: Allocation, typical_s: float | None) -> list[bool]:
    """Return for each launch whether the machine was in another state than usual; False for a launch without a state probe."""
    return [
        typical_s is not None and value is not None and is_known(value) and max(value, typical_s) > STATE * min(value, typical_s)
        for value in allocation.canary_s
    ]


def without(allocation: Allocation, left_out: Sequence[bool]) -> Allocation:
    """Return the allocation as if these launches had measured nothing; their wrong data still count.

    The share of the ceiling of a case is unknown if a remaining launch has none.
    """

    def left(values: Sequence[float | None]) -> tuple[float | None, ...]:
        return tuple(None if out else value for value, out in zip(values, left_out, strict=True))

    cases = {case: figures._replace(medians_s=left(figures.medians_s)) for case, figures in allocation.cases.items()}
    shown = dict(allocation.shown)
    for case, figures in shown.items():
        if figures.percent is not None and len(figures.percents) == len(left_out):
            shown[case] = figures._replace(percent=median_of(left(figures.percents)), percents=left(figures.percents))
    return replace(allocation, cases=cases, shown=shown)


def filter_launches(allocation: Allocation, typical_s: float | None) -> FilteredAllocation:
    """Return a candidate without its launches in another state; with a problem if too many have one, or too few are left."""
    left_out = flipped(allocation, typical_s)
    left_out_count = sum(left_out)
    remaining = len(left_out) - left_out_count
    if not left_out_count:
        return FilteredAllocation(allocation, left_out=tuple(left_out))
    needed = max(LEAST_LEFT, left_out_count + 1) - remaining
    problem: LaunchesNeeded | AllocationStateChanged | None = None
    if left_out_count > MOST_FLIPPED or (needed > 0 and not remaining):
        problem = AllocationStateChanged(allocation.name, left_out_count, len(left_out))
    elif needed > 0:
        problem = LaunchesNeeded(allocation.name, left_out_count, len(left_out), needed)
    if problem is not None:
        return FilteredAllocation(allocation, problem, left_out=(False,) * len(left_out))
    note = LaunchesLeftOut(allocation.name, left_out_count, len(left_out))
    return FilteredAllocation(without(allocation, left_out), None, note, tuple(left_out))


def filter_baseline(baseline: Baseline) -> tuple[Baseline, list[LaunchesLeftOut]]:
    """Return the baseline without launches in another state and allocations that have no other launches; and what was left out."""
    typical_s = typical_probe_s(baseline.allocations)
    notes: list[LaunchesLeftOut] = []
    kept: list[Allocation] = []
    for allocation in baseline.allocations:
        left_out = flipped(allocation, typical_s)
        if any(left_out):
            notes.append(LaunchesLeftOut(allocation.name, sum(left_out), len(left_out), "baseline"))
        if not all(left_out):
            kept.append(without(allocation, left_out) if any(left_out) else allocation)
    return replace(baseline, allocations=kept), notes


def learned_limits(baseline: Baseline) -> tuple[Baseline, list[LaunchesLeftOut], BaselineLimits]:
    """Return `filter_baseline`, and the limits on the baseline's cases that are learned from what it keeps."""
    learned, left_out = filter_baseline(baseline)
    cases = baseline.cases
    return learned, left_out, learn(times_of(learned.allocations, cases), scheme_of(cases))
