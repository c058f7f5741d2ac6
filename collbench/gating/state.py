"""The machine state: launches in which the state probe shows another one are left out, of a baseline and of candidates.

A cache line between two cores takes 65 or 260 ns on one machine, and the state may change at any time. Times in different states are not
comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np

from collbench.analysis.launches import known
from collbench.gating.allocation import Allocation, median_of
from collbench.gating.baseline import Baseline, Figures, Scheme, known_median, seconds_of
from collbench.gating.reasons import AllocationStateChanged, LaunchesLeftOut, LaunchesNeeded
from collbench.gating.rule import BaselineLimits, Mask
from collbench.results.row import CaseKey

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
_TIMES, _OF_ITS_LIKE = 2.0, 0.95
_BASELINE_SHARE, _SHARE = 0.05, 0.20  # of the launches that are not counted, at least one


def launch_limits(allocations: Sequence[Allocation], cases: Sequence[CaseKey], limits: BaselineLimits) -> Figures:
    """Return [cases] how far a candidate's launches may be from their median, in ln of time; `allocations` are the baseline's."""
    launches = np.log(np.hstack([seconds_of(each, cases) for each in allocations]))
    own = _all_but(np.abs(launches - limits.centre[:, None]), _BASELINE_SHARE, 1)
    return np.maximum(_FLOOR, _TIMES * np.fmax(np.nan_to_num(own), _of_its_like(own, limits.scheme)))


def unstable(allocation: Allocation, cases: Sequence[CaseKey], allowed: Figures) -> Mask:
    """Return [cases] which cases have launches that are further apart than `allowed`."""
    launches = np.log(seconds_of(allocation, cases))
    apart = _all_but(np.abs(launches - known_median(launches)[:, None]), _SHARE, FEWEST_LAUNCHES)
    with np.errstate(invalid="ignore"):
        found: Mask = apart > allowed
    return found


def _all_but(distances: Figures, share: float, fewest: int) -> Figures:
    """Return [cases] the largest known value of [cases × launches], one or that share of them aside; NaN for fewer than `fewest`."""
    ordered = np.sort(distances, axis=1)  # NaN comes last
    counts = np.isfinite(distances).sum(axis=1)
    places = np.maximum(counts - 1 - np.maximum(1, (counts * share).astype(np.int64)), 0)
    picked = np.take_along_axis(ordered, places[:, None], axis=1)[:, 0]
    return np.where(counts >= fewest, picked, np.nan)


def _of_its_like(own: Figures, scheme: Scheme) -> Figures:
    """Return [cases] what is usual for the case's backend and size class, over all operations; 0 if nothing is known."""
    found = np.zeros(len(own))
    names = [(group.backend, group.size_class) for group in scheme.groups]
    for backend, size in dict.fromkeys(names):
        groups = [number for number, name in enumerate(names) if name == (backend, size)]
        like = np.isin(scheme.of, groups) & np.isfinite(own)
        found[np.isin(scheme.of, groups)] = np.quantile(own[like], _OF_ITS_LIKE) if like.any() else 0.0
    return found


STATE = 1.20  # a larger ratio of two state probes shows another machine state
MOST_FLIPPED = 2  # launches of an allocation that may be left out and replaced by others
LEAST_LEFT = 3  # remaining launches of an allocation, since a single launch would move the median of fewer


@dataclass(frozen=True)
class FilteredAllocation:
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
    heard = [value for each in allocations for value in each.canary_s if value is not None and known(value)]
    return median_low(heard) if heard else None


def flipped(allocation: Allocation, typical_s: float | None) -> list[bool]:
    """Return for each launch whether the machine was in another state than usual; False for a launch without a state probe."""
    return [
        typical_s is not None and value is not None and known(value) and max(value, typical_s) > STATE * min(value, typical_s)
        for value in allocation.canary_s
    ]


def without(allocation: Allocation, left_out: Sequence[bool]) -> Allocation:
    """Return the allocation as if these launches had measured nothing; their wrong data still count.

    The share of the ceiling of a case is unknown if a remaining launch has none.
    """

    def left(values: Sequence[float | None]) -> tuple[float | None, ...]:
        return tuple(None if out else value for value, out in zip(values, left_out, strict=True))

    cases = {case: each._replace(medians_s=left(each.medians_s)) for case, each in allocation.cases.items()}
    shown = dict(allocation.shown)
    for case, each in shown.items():
        if each.percent is not None and len(each.percents) == len(left_out):
            shown[case] = each._replace(percent=median_of(left(each.percents)), percents=left(each.percents))
    return replace(allocation, cases=cases, shown=shown)


def filter_launches(allocation: Allocation, typical_s: float | None) -> FilteredAllocation:
    """Return a candidate without its launches in another state; with a problem if too many have one, or too few are left."""
    out = flipped(allocation, typical_s)
    count, left = sum(out), len(out) - sum(out)
    if not count:
        return FilteredAllocation(allocation, left_out=tuple(out))
    more = max(LEAST_LEFT, count + 1) - left
    problem: LaunchesNeeded | AllocationStateChanged | None = None
    if count > MOST_FLIPPED or (more > 0 and not left):
        problem = AllocationStateChanged(allocation.name, count, len(out))
    elif more > 0:
        problem = LaunchesNeeded(allocation.name, count, len(out), more)
    if problem is not None:
        return FilteredAllocation(allocation, problem, left_out=(False,) * len(out))
    return FilteredAllocation(without(allocation, out), None, LaunchesLeftOut(allocation.name, count, len(out)), tuple(out))


def filter_baseline(baseline: Baseline) -> tuple[Baseline, list[LaunchesLeftOut]]:
    """Return the baseline without launches in another state and allocations that have no other launches; and what was left out."""
    typical_s, notes = typical_probe_s(baseline.allocations), list[LaunchesLeftOut]()
    kept: list[Allocation] = []
    for each in baseline.allocations:
        out = flipped(each, typical_s)
        if any(out):
            notes.append(LaunchesLeftOut(each.name, sum(out), len(out), "baseline"))
        if not all(out):
            kept.append(without(each, out) if any(out) else each)
    return replace(baseline, allocations=kept), notes
