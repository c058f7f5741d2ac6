"""Two stacks, old and new, compared without a history: their launches alternate in one allocation, and again in a second one.

Their software may differ; another topology, other nodes or machines block the verdict. What exceeds its limit in one allocation is
suspected, and in both a regression: of 336 limits chance exceeds one in nearly half of all allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.analysis.launches import check_once, launch_folders
from collbench.errors import UsageError
from collbench.gating import judge, reasons, rule
from collbench.gating.allocation import Allocation, allocations_in, moment, names_of
from collbench.gating.baseline import Figures, Numbers, Scheme, known_median, scheme_of, seconds_of
from collbench.gating.conditions import ExpectedChange, Floor, changes, expired, unannounced
from collbench.gating.reasons import GateNote, GateReason
from collbench.gating.rule import FEWEST, LEAST_CASES, BaselineLimits
from collbench.gating.verdict import Verdict
from collbench.results.folder import CASES, RUN
from collbench.results.reader import Run
from collbench.results.row import CaseKey
from collbench.results.store import read_object

# The rule for two interleaved stacks in one allocation, with limits learned from the pairs of launches.
#
# It needs no history, since an allocation's effect on both stacks cancels in a pair. A limit is four standard errors of the median over
# the pairs, and at least the floor of a baseline's limits. A case is slower if it exceeds the limit in two allocations. The spread does
# not depend on any single pair. With three standard errors of the plain spread, simulated with `self_test.Noise`, there were twice the
# allowed number of alarms, and fewer detections. The reason: one launch of a bimodal case widens that spread, but hardly moves its median.
# `self_test` reports how often the rule alarms.

PAIRS = 5  # the least number of pairs of launches in an allocation
PAIRED_CONFIRMATIONS = 2  # allocations
_ERRORS = 4.0
_OF_A_MEDIAN = 1.2533  # its standard error over that of a mean, for a normal distribution
_DRAWN = 20_000


def learn_pairs(differences: Figures, scheme: Scheme) -> BaselineLimits:
    """Return the limits from [allocations × pairs × cases] ln of new over old time; NaN if one launch of a pair has none. Centres are 0.

    Only what the first allocation measured is judged, since later ones may have suspects only. A case's spread is over all allocations,
    about the mean of each. It is drawn towards the median of its group's, and a group's towards that of its class.
    """
    counts = np.isfinite(differences[0]).sum(axis=0)
    judged = counts >= FEWEST
    known_well = np.where(judged, differences, np.nan)
    cases = _chance(differences, lambda variances: scheme.medians(variances)[scheme.of])
    same_class = [scheme.classes == size_class for size_class in scheme.classes]  # by group, the groups of the same size class
    groups = _chance(scheme.medians(known_well), lambda variances: np.array([known_median(variances[in_class]) for in_class in same_class]))
    whole = float(_chance(known_median(known_well)[..., None], lambda variances: variances)[0])
    floors = rule.floors_of(scheme)
    many = np.bincount(scheme.of, judged, len(scheme.groups)) >= LEAST_CASES
    return BaselineLimits(
        scheme, counts, np.zeros(len(scheme.of)), np.maximum(floors.cases, cases),
        np.zeros(len(many)), np.where(many, np.maximum(floors.groups, groups), np.inf),
        0.0, float(np.inf if judged.sum() < LEAST_CASES else max(floors.whole, whole)),
    )  # fmt: skip


def _chance(values: Figures, lent_by: Callable[[Figures], Figures]) -> Figures:
    """Return […] the limits, from [allocations × pairs × …]: four standard errors of the median over an allocation's pairs."""
    counts = np.isfinite(values).sum(axis=1)
    degrees = np.maximum(counts - 1, 0)
    all_degrees = degrees.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = (degrees * np.array([_variance(pairs) for pairs in values])).sum(axis=0) / all_degrees
        drawn = (rule.PRIOR_DOF * lent_by(variances) + all_degrees * np.nan_to_num(variances)) / (rule.PRIOR_DOF + all_degrees)
        fewest = np.where(counts > 0, counts, np.inf).min(axis=0)
        limits = _ERRORS * _OF_A_MEDIAN * np.sqrt(drawn / fewest)
    return np.where(np.isfinite(limits) & np.isfinite(fewest), limits, np.inf)


def _variance(values: Figures) -> Figures:
    """Return […] the winsorized variance of the known values of [pairs × …]: the outermost on each side is replaced by its neighbor.

    0 for fewer than two.
    """
    counts = np.isfinite(values).sum(axis=0)
    ordered = np.sort(values, axis=0)  # NaN comes last
    inward = (counts >= FEWEST).astype(np.int64)
    low, high = (np.take_along_axis(ordered, np.maximum(places, 0)[None], axis=0) for places in (inward, counts - 1 - inward))
    drawn_in = np.clip(values, low, high)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(drawn_in, axis=0) / counts
        plain = np.nansum((drawn_in - mean) ** 2, axis=0) / (counts - 1)
    widening = np.ones(counts.shape)
    for count in np.unique(counts[counts >= FEWEST]):
        widening[counts == count] = _widening(int(count))
    return np.where(counts > 1, plain * widening, 0.0)


@cache
def _widening(count: int) -> float:
    """Return the factor that corrects the winsorized variance of so many normal values to the plain one."""
    values = np.sort(np.random.default_rng(0).normal(size=(_DRAWN, count)), axis=1)
    return float(1 / np.clip(values, values[:, 1:2], values[:, -2:-1]).var(axis=1, ddof=1).mean())


# The old and the new stack of one allocation: their launches in pairs, and whether they alternate.

Starts = Sequence[datetime | None]


class SideBySide(msgspec.Struct, frozen=True, eq=False):
    """An allocation in which both stacks were measured.

    old, new    without the launches that were left out
    order       [2 × pairs] the numbers of the launches that form a pair: of the old stack, of the new one
    left_out    by launch of the old stack and of the new one, whether its pair is left out
    problem     why it cannot be judged; None: it can
    note        what was left out; None: nothing
    """

    old: Allocation
    new: Allocation
    order: Numbers
    left_out: tuple[Sequence[bool], Sequence[bool]]
    problem: GateReason | None = None
    note: reasons.PairsLeftOut | None = None

    @property
    def name(self) -> str:
        """Return the allocation's name."""
        return self.new.name

    def differences(self, cases: Sequence[CaseKey]) -> Figures:
        """Return [pairs × cases] ln of new over old time; NaN if a launch of the pair has no time or the pair is left out."""
        old, new = (np.log(seconds_of(side, cases)).T[numbers] for side, numbers in zip((self.old, self.new), self.order, strict=True))
        return np.asarray(new - old)


def side_by_side(old: Sequence[Path], new: Sequence[Path]) -> list[SideBySide]:
    """Return the pairs of allocations: equal positions of the two lists are folders of launches of one allocation.

    Raises UsageError if a launch is named twice or cannot be read, a folder has launches of several allocations, or two positions
    name one allocation.
    """
    launches = {path: _launches(path) for path in (*old, *new)}
    check_once(run for path in (*old, *new) for run in launches[path])
    pairs: list[SideBySide] = []
    for paths in zip(old, new, strict=True):
        sides = []
        for path in paths:
            allocations = allocations_in([path])
            if len(allocations) > 1:
                names = f"{allocations[0].name}, {allocations[1].name}{' …' if len(allocations) > 2 else ''}"
                raise UsageError(
                    f"--paired: {path} holds launches of {len(allocations)} allocations ({names}): name a folder for each allocation "
                    "and stack"
                )
            sides.append(allocations[0])
        starts = [[moment(run.info.get("started_utc")) for run in launches[path]] for path in paths]
        pairs.append(in_pairs(sides[0], sides[1], *starts))
    allocation_names = [pair.name for pair in pairs]
    twice = next((name for place, name in enumerate(allocation_names) if name in allocation_names[:place]), None)
    if twice is not None:
        raise UsageError(f"--paired: allocation {twice} is named twice: the second one has to be fresh; all its launches go in one folder")
    return pairs


def _launches(path: Path) -> list[Run]:
    """Return the launches of a folder with their run.json only, in the order of an allocation.

    One that cannot be read has an empty one: reading the whole run reports it.
    """
    folders = [] if any((path / name).exists() for name in (RUN, CASES)) else launch_folders(path)
    launches = []
    for folder in folders or [path]:
        info: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            info = read_object(folder / RUN)
        launches.append(Run(folder, info))
    return launches


def in_pairs(old: Allocation, new: Allocation, old_starts: Starts, new_starts: Starts) -> SideBySide:
    """Return two stacks' launches of one allocation as pairs, from the start time of each launch.

    Pairs of which one launch ran in another machine state are left out.
    """
    why = _why_no_pairs(old, new, old_starts, new_starts)
    if why:
        everything = [True] * old.launches, [True] * new.launches
        return SideBySide(old, new, np.zeros((2, 0), np.int64), everything, why)
    in_time = [sorted(range(len(starts)), key=[start for start in starts if start].__getitem__) for starts in (old_starts, new_starts)]
    order = np.array(in_time)
    typical_s = rule.typical_probe_s([old, new])
    flips = [np.array(rule.flipped(side, typical_s))[numbers] for side, numbers in zip((old, new), order, strict=True)]
    left_out = flips[0] | flips[1]
    left_out_count = int(left_out.sum())
    remaining = int((~left_out).sum())
    by_launch = [[bool(left_out[place]) for place in np.argsort(numbers)] for numbers in order]
    problem: GateReason | None = None
    if left_out_count > rule.MOST_FLIPPED:
        problem = reasons.PairsStateChanged(new.name, left_out_count, len(left_out))
    elif remaining < PAIRS:
        problem = reasons.PairsNeeded(new.name, remaining, PAIRS)
    note = reasons.PairsLeftOut(new.name, left_out_count, len(left_out)) if left_out_count and not problem else None
    kept = [rule.without(side, mask) if left_out_count else side for side, mask in zip((old, new), by_launch, strict=True)]
    return SideBySide(kept[0], kept[1], order, (by_launch[0], by_launch[1]), problem, note)


def _why_no_pairs(old: Allocation, new: Allocation, old_starts: Starts, new_starts: Starts) -> GateReason | None:
    """Return why two folders are not of one allocation, or do not alternate; None if they do.

    Both launches of a pair must begin before the next pair, or drift looks like a difference.
    """
    if old.name != new.name:
        return reasons.OtherAllocation(new.name, old.name)
    if old.hosts != new.hosts:
        return reasons.OtherHosts(new.name, ", ".join(old.hosts), ", ".join(new.hosts))
    if len(old_starts) != len(new_starts):
        return reasons.UnequalLaunches(new.name, len(old_starts), len(new_starts))
    if None in old_starts or None in new_starts:
        return reasons.StartUnknown(new.name)
    pairs = list(zip(*(sorted(start for start in starts if start) for starts in (old_starts, new_starts)), strict=True))
    return reasons.NotInterleaved(new.name) if any(max(pair) >= min(following) for pair, following in pairwise(pairs)) else None


STACK = ("software", "environment")  # the parts of a stack, which may differ between the old one and the new one
_MUCH = 1.25  # a limit above it is reported, since the case detects only larger slowdowns


def judge_paired(
    old: Sequence[Path], new: Sequence[Path], expected: Sequence[ExpectedChange], today: date, floor_rules: Sequence[Floor] = ()
) -> Verdict:
    """Return the verdict on `new` against `old`: equally long lists of folders, equal positions of one allocation. Raises UsageError."""
    verdict = decide(side_by_side(old, new), expected, today, floor_rules)
    return msgspec.structs.replace(verdict, baseline=", ".join(map(str, old)))


def decide(both: Sequence[SideBySide], expected: Sequence[ExpectedChange], today: date, floor_rules: Sequence[Floor] = ()) -> Verdict:
    """Return the verdict on allocations with both stacks, the first of which has all cases. Raises UsageError if that measured nothing."""
    first = both[0]
    cases = list(dict.fromkeys(case for pair in both for case, measured in pair.old.cases.items() if measured.log_time is not None))
    if not cases:
        raise UsageError(f"allocation {first.old.name} has no case with a time: name launches that measured something")
    differences = [pair.differences(cases) for pair in both]
    most = max(1, *map(len, differences))
    padded = np.array([np.pad(values, ((0, most - len(values)), (0, 0)), constant_values=np.nan) for values in differences])
    limits = learn_pairs(padded, scheme_of(cases))
    had = np.isfinite(seconds_of(first.old, cases)).sum(axis=1) >= FEWEST
    sides = [  # of all allocations, the old stack and the new one, with the stack in their names
        replace(side, name=f"{side.name} ({stack} stack)") for pair in both for side, stack in ((pair.old, "old"), (pair.new, "new"))
    ]
    incomplete = [judge.partly_measured(side, cases, out) for side, out in zip(sides[:2], first.left_out, strict=True)]
    incomplete[1] &= had  # the new stack has to have what the old one has
    evaluated = judge.Evaluation(
        [pair.new for pair in both], cases, limits, rule.exceed(limits, known_median(np.moveaxis(padded, 1, -1))),
        undecided=np.asarray(np.any(incomplete, axis=0)),
        counts=[True] * len(both),
        confirmations=PAIRED_CONFIRMATIONS,
        before=() if isinstance(first.problem, reasons.OtherHosts) else first.old.ceilings,  # other hosts have other links
        changes=list(dict.fromkeys(change for pair in both for change in changes(pair.old, pair.new))),
        expected=expected, allowing=expected, today=today, floors=floor_rules,
    )  # fmt: skip
    beside_stack = [change for change in evaluated.changes if change.kind not in STACK]
    against = [
        *judge.wrong_data(sides),
        *(pair.problem for pair in both if pair.problem),
        *judge.unexpected(unannounced(beside_stack, expected, today), reasons.SidesDiffer),
        *judge.sharing_one_job(evaluated.candidate),
        *_changed_stacks(both),
        *judge.unfinished(sides),
        *judge.missing(sides[1], cases, had),
        *(reason for side, parts in zip(sides[:2], incomplete, strict=True) for reason in judge.incomplete_cases(side, cases, parts)),
    ]
    if not limits.judged.any() and not first.problem:
        against.append(reasons.NoPairs(first.name, FEWEST))
    return judge.verdict_of(
        evaluated, against, mode="paired", notes=(*_notes(both, sides, evaluated), *expired(expected, today)),
        baseline=", ".join(pair.old.name for pair in both), allocations=len(both), thin=False,
    )  # fmt: skip


def _changed_stacks(both: Sequence[SideBySide]) -> Iterator[GateReason]:
    """Yield reasons for a stack that differs between allocations."""
    stacks: tuple[Literal["old", "new"], ...] = ("old", "new")
    for pair in both[1:]:
        for stack in stacks:
            before = getattr(both[0], stack)
            after = getattr(pair, stack)
            changed = next((change for change in changes(before, after) if change.kind in STACK), None)
            if changed is not None:
                yield reasons.StackChanged(stack, before.name, after.name, changed)


def _notes(both: Sequence[SideBySide], sides: Sequence[Allocation], evaluated: judge.Evaluation) -> Iterator[GateNote]:
    yield from (pair.note for pair in both if pair.note)
    for side in sides:
        if side.slowed:
            yield reasons.SlowedOnPurpose(side.name, side.slowed, "stacks")
        if None in side.canary_s:
            yield reasons.WithoutProbe(side.name, side.canary_s.count(None), side.launches)
    if not any(change.kind in STACK for change in evaluated.changes):
        yield reasons.EqualStacks()
    judged = {case for case, is_judged in zip(evaluated.cases, evaluated.limits.judged, strict=True) if is_judged}
    others = [case for case, measured in both[0].new.cases.items() if case not in judged and measured.log_time is not None]
    if others:
        yield reasons.NewCases(len(others), names_of(others))
    factors = np.exp(evaluated.limits.cases)
    wide = [case for case, limit in zip(evaluated.cases, factors, strict=True) if case in judged and limit > _MUCH]
    if wide:
        yield reasons.WideLimits(names_of(wide))
