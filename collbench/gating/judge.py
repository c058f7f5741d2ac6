"""The decision of the gate: a candidate's allocations judged by a baseline.

The result is "no verdict" if the baseline is too short, the machine state differs, or software or topology changed unexpectedly.
Likewise if a case is missing or unstable, or a launch stopped early. A slowdown is a regression only if it exceeds its limit in three
fresh allocations; after the first one it is suspected. An unexpected change does not excuse a regression: the verdict names it as the
cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench import __version__
from collbench.analysis.ceilings import LinkCeiling, dropped_ceilings
from collbench.analysis.differences import Difference
from collbench.analysis.outcome import Outcome, count_outcomes, outcome_by_limit
from collbench.gating import conditions, reasons, rule
from collbench.gating import verdict as verdicts
from collbench.gating.allocation import Allocation, name_of, names_of
from collbench.gating.baseline import Baseline, CaseGroup, Figures, fresh, group_of_case, seconds_of, shares_one_job, times_of
from collbench.gating.cause import cause_of, ranked
from collbench.gating.conditions import ExpectedChange, Floor, changes, floor_reasons, floor_states, read_floor
from collbench.gating.confirm import can_be_named, suspects
from collbench.gating.reasons import GateNote, GateReason
from collbench.gating.rule import COARSEST, CONFIRMATIONS, ENOUGH, FEWEST, BaselineLimits, Excess, Mask
from collbench.gating.verdict import CLEARED, CONFIRMED, PASSED, REGRESSION, SUSPECTED, UNDECIDED, WRONG_DATA, GroupState, Suspicion
from collbench.results.row import CaseKey

# Suspicions: what exceeds its limit in the first allocation, and whether later allocations confirm it.

_ORDER = (CONFIRMED, SUSPECTED, CLEARED)


def suspicions_of(
    limits: BaselineLimits,
    excess: Excess,
    cases: Sequence[CaseKey],
    confirmations: int = CONFIRMATIONS,
    counts: Sequence[bool] | None = None,
) -> list[Suspicion]:
    """Return everything that exceeded its limit in the first allocation, the surest and worst first.

    confirmations  the number of allocations over the limit that makes a suspect confirmed
    counts   by allocation, whether it counts; None: all do. One in another machine state neither confirms nor clears
    """
    subjects: list[tuple[str, str, dict[str, Any], Figures, Mask, float]] = []
    if excess.whole_over[0]:
        subjects.append(("whole", "all cases", {}, excess.whole, excess.whole_over, limits.whole))
    for number in map(int, np.flatnonzero(excess.groups_over[0])):
        name = str(limits.scheme.groups[number])
        subjects.append(("group", name, {}, excess.groups[:, number], excess.groups_over[:, number], limits.groups[number]))
    for number in map(int, np.flatnonzero(excess.cases_over[0])):
        case = cases[number]
        subjects.append(("cell", name_of(case), case.named(), excess.cases[:, number], excess.cases_over[:, number], limits.cases[number]))
    suspicions = []
    for kind, name, columns, factors, exceeds, limit in subjects:
        measured = exceeds[np.isfinite(factors) & (True if counts is None else counts)]
        state = CONFIRMED if len(measured) >= confirmations else SUSPECTED
        if not measured.all():
            state = CLEARED
        suspicions.append(Suspicion(kind, name, columns, tuple(map(_known, factors)), float(np.exp(limit)), state))

    def rank(suspicion: Suspicion) -> tuple[int, float]:
        return _ORDER.index(suspicion.state), -max(factor for factor in suspicion.factors if factor is not None)

    return sorted(suspicions, key=rank)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# The state of every group, including passed ones: JUnit, Markdown and the page have a line for each.


def group_states(
    limits: BaselineLimits, excess: Excess, cases: Sequence[CaseKey], suspicions: Sequence[Suspicion], undecided: Mask | None = None
) -> list[GroupState]:
    """Return the state of each group that has a case with a history, in the order of the baseline's cases.

    undecided  [cases] that were measured but do not count: unstable, or missing in some launches; None: no case
    """
    states = _SuspectStates(suspicions)
    uncertain = np.zeros(len(cases), dtype=np.bool_) if undecided is None else undecided
    groups = []
    for number, (group, members) in enumerate(zip(limits.scheme.groups, limits.scheme.members, strict=True)):
        judged = members[limits.judged[members]]
        if not len(judged):
            continue
        factors = excess.cases[0, judged]
        judged_limits = limits.cases[judged]
        measured = np.isfinite(factors)
        missing = int((~measured).sum())
        excess_over_limit = np.where(measured, np.log(factors) - judged_limits, -np.inf)
        worst = int(np.argmax(excess_over_limit)) if measured.any() else None  # exceeds its limit most, or is nearest to it
        state = states.of_group(group, missing > 0 or bool(uncertain[judged].any()))
        outcomes = count_outcomes(
            states.outcome(cases[case], bool(uncertain[case]), excess.cases[:, case], limits.cases[case]) for case in judged
        )
        group_outcome = _outcome_of_group(state, outcomes, excess.groups[:, number], limits.groups[number])
        if group_outcome is Outcome.NO_CHANGE and states.whole_is_slower:
            group_outcome = Outcome.INCONCLUSIVE
        groups.append(
            GroupState(
                *group,
                name=str(group),
                cases=len(judged),
                missing=missing,
                factors=tuple(map(_known, excess.groups[:, number])),
                limit=_known(np.exp(limits.groups[number])),
                worst=None if worst is None else name_of(cases[judged[worst]]),
                worst_factor=None if worst is None else float(factors[worst]),
                worst_limit=None if worst is None else _known(np.exp(judged_limits[worst])),
                state=state,
                outcome=group_outcome.value,
                outcomes={outcome.value: count for outcome, count in outcomes.items()},
            )
        )
    return groups


class _SuspectStates:
    """The states of the suspects, by case, group and the whole."""

    def __init__(self, suspicions: Sequence[Suspicion]) -> None:
        self.cases = {CaseKey(**suspicion.case): suspicion.state for suspicion in suspicions if suspicion.kind == "cell"}
        self.groups = {suspicion.name: suspicion.state for suspicion in suspicions if suspicion.kind != "cell"}  # with "all cases"

    @property
    def whole_is_slower(self) -> bool:
        """Return whether all cases together are slower, or may be."""
        return self.groups.get("all cases") in (CONFIRMED, SUSPECTED)

    def of_group(self, group: CaseGroup, unknown: bool) -> str:
        """Return the state of a group with its cases; `unknown`: a part of it is missing, or does not count."""
        states = {self.groups.get(str(group)), *(state for case, state in self.cases.items() if group_of_case(case) == group)}
        return next((state for state in (CONFIRMED, SUSPECTED) if state in states), UNDECIDED if unknown else PASSED)

    def outcome(self, case: CaseKey, uncertain: bool, factors: Figures, limit: float) -> Outcome:
        """Return the outcome of one case. One that needs another measurement is inconclusive, and so is a case of a slower group."""
        state = self.cases.get(case)
        if state == CONFIRMED:
            return Outcome.SLOWER
        if state == SUSPECTED or uncertain:
            return Outcome.INCONCLUSIVE
        own_outcome = outcome_by_limit(map(_known, factors), _known(np.exp(limit)))
        with_others = self.whole_is_slower or self.groups.get(str(group_of_case(case))) in (CONFIRMED, SUSPECTED)
        return Outcome.INCONCLUSIVE if own_outcome is Outcome.NO_CHANGE and with_others else own_outcome


def _outcome_of_group(state: str, outcomes: Mapping[Outcome, int], factors: Figures, limit: float) -> Outcome:
    """Return the outcome of a group by its own limit; where it is too small for one, the outcome of all its cases."""
    if state == CONFIRMED:
        return Outcome.SLOWER
    if state != PASSED:
        return Outcome.INCONCLUSIVE
    if np.isfinite(limit):
        return outcome_by_limit(map(_known, factors), _known(np.exp(limit)))
    measured_outcomes = [outcome for outcome, cases in outcomes.items() if cases]
    return measured_outcomes[0] if len(measured_outcomes) == 1 else Outcome.INCONCLUSIVE


# The verdict on a candidate: by the limits of a baseline, or (`gating.paired`) by those of the pairs of launches of two stacks.


class Evaluation(msgspec.Struct, frozen=True, eq=False):
    """A candidate's allocations evaluated by limits, and what the user expects of them.

    candidate  the allocations as judged, by which floors and ceilings are compared
    undecided  [cases] that were measured but do not count
    counts     by allocation, whether it can confirm or clear
    confirmations  the number of allocations that confirm
    before     the ceilings of the good side
    changes    what else differs between the two sides
    expected, allowing  the announcements of `--expect`, and those that may allow a slowdown, on the day `today`
    floors     those of `--min-percent`
    """

    candidate: Sequence[Allocation]
    cases: Sequence[CaseKey]
    limits: BaselineLimits
    excess: Excess
    undecided: Mask
    counts: Sequence[bool]
    confirmations: int
    before: Sequence[LinkCeiling]
    changes: Sequence[Difference]
    expected: Sequence[ExpectedChange]
    allowing: Sequence[ExpectedChange]
    today: date
    floors: Sequence[Floor]


def verdict_of(evaluated: Evaluation, against: Sequence[GateReason], **sides: Any) -> verdicts.Verdict:
    """Return the verdict. `against` are the reasons known before the suspects; `sides` are the verdict's fields on both sides.

    Raises UsageError if a floor applies to no case.
    """
    limits = evaluated.limits
    excess = evaluated.excess
    cases = evaluated.cases
    today = evaluated.today
    exceeded = suspicions_of(limits, excess, cases, evaluated.confirmations, evaluated.counts)
    suspicions = conditions.accepted(exceeded, evaluated.allowing, today, cases)
    floors = floor_states(evaluated.floors, evaluated.candidate, evaluated.confirmations, evaluated.before)
    groups = group_states(limits, excess, cases, suspicions, evaluated.undecided)
    cause = cause_of(suspicions, groups, cases) if evaluated.counts[0] else None  # the slowdown in another machine state has no pattern
    against = list(against)
    judged_groups = np.bincount(limits.scheme.of, limits.judged, len(limits.scheme.groups)) > 0
    visible = np.exp([*limits.cases[limits.judged], *limits.groups[judged_groups]])
    if len(visible) and not visible.min() <= COARSEST:  # neither a group nor a case detects a slowdown that matters
        against.append(reasons.TooCoarse(_known(visible.min()), sides["mode"] == "paired"))
        groups = [replace(group, state=UNDECIDED) if group.state == PASSED else group for group in groups]
    ceilings = [drop for allocation in evaluated.candidate for drop in dropped_ceilings(evaluated.before, allocation.ceilings)]
    waiting = sum(suspicion.state == SUSPECTED for suspicion in suspicions)
    if waiting:
        against.append(reasons.StillSuspected(waiting, max(0, evaluated.confirmations - len(evaluated.candidate))))
    against += floor_reasons(floors)
    return verdicts.Verdict(
        result=result_of(against, suspicions, floors),
        reasons=tuple(against),
        suspicions=tuple(suspicions),
        groups=tuple(groups),
        floors=tuple(floors),
        asked=tuple(floor.asked for floor in evaluated.floors),
        ceilings=tuple(dict.fromkeys(ceilings)),
        cause=cause,
        changes=tuple(ranked(evaluated.changes, evaluated.expected, today, suspicions, cause, groups=groups)),
        candidates=tuple(allocation.name for allocation in evaluated.candidate),
        cases=int(limits.judged.sum()),
        judged_on=today.isoformat(),
        collbench=__version__,
        **sides,
    )


def result_of(against: Sequence[GateReason], suspicions: Sequence[Suspicion], floors: Sequence[verdicts.FloorState]) -> str:
    """Return the result. A confirmed floor is a regression even with other reasons, since it needs no history and no comparison."""
    if any(isinstance(reason, reasons.WrongCases) for reason in against):
        return WRONG_DATA
    if any(floor.state == CONFIRMED for floor in floors):
        return REGRESSION
    if any(reason.blocks for reason in against):
        return UNDECIDED
    if any(suspicion.state == CONFIRMED for suspicion in suspicions):
        return REGRESSION
    return UNDECIDED if against else PASSED


class TypicalTime(NamedTuple):
    """A case in a baseline: its median over the allocations in seconds, and the factor that chance explains (None: not judged)."""

    time_s: float
    limit: float | None


def typical_times(baseline: Baseline) -> dict[CaseKey, TypicalTime]:
    """Return what a baseline knows of each case that it measured; the limits are those of `judge`."""
    _, _, limits = rule.learned_limits(baseline)
    return {
        case: TypicalTime(float(np.exp(centre)), float(np.exp(limit)) if judged and np.isfinite(limit) else None)
        for case, centre, limit, judged in zip(baseline.cases, limits.centre, limits.cases, limits.judged, strict=True)
        if np.isfinite(centre)
    }


def read_conditions(expect: Path | None, min_percent: Sequence[str]) -> tuple[list[ExpectedChange], list[Floor]]:
    """Return the expected changes of a TOML file, and the floors, each given as "MODEL:PERCENT@SIZES". Raises UsageError."""
    return [] if expect is None else conditions.read_expected(expect), [read_floor(text) for text in min_percent]


def judge(
    baseline: Baseline,
    candidate: Sequence[Allocation],
    expected: Sequence[ExpectedChange],
    today: date,
    floors_requested: Sequence[Floor] = (),
) -> verdicts.Verdict:
    """Return the verdict on a candidate's allocations, given in the order in which they began; `floors_requested` are floors.

    Raises UsageError if an allocation is in the baseline or is given twice, or if only some are imported. Likewise if the first one has
    no case in common with the baseline, or none that a floor applies to.
    """
    cases = baseline.cases
    last = baseline.allocations[-1]
    conditions.check(baseline, candidate, cases)
    learned, left_out, limits = rule.learned_limits(baseline)
    typical_s = rule.typical_probe_s(baseline.allocations)
    filtered = [rule.filter_launches(allocation, typical_s) for allocation in candidate]
    remaining = [part.allocation for part in filtered]
    excess = rule.exceed(limits, times_of(remaining, cases))
    # [allocations × cases] with too much scatter between launches, but within the limit; and what some launches lack. Of later
    # allocations only suspects count.
    allowed = rule.launch_limits(learned.allocations, cases, limits)
    scattered = np.array([rule.unstable(allocation, cases, allowed) for allocation in remaining]) & limits.judged & ~excess.cases_over
    scattered[1:] &= excess.cases_over[0]
    incomplete = np.array([partly_measured(part.allocation, cases, part.left_out) for part in filtered]) & limits.judged
    incomplete[1:] &= excess.cases_over[0] | excess.groups_over[0][limits.scheme.of] | excess.whole_over[0]  # what is suspected
    changes_by_allocation = [changes(last, allocation) for allocation in candidate]
    unannounced = [conditions.unannounced(differences, expected, today) for differences in changes_by_allocation]
    elsewhere = [conditions.other_cluster(baseline, *pair) for pair in zip(candidate, unannounced, strict=True)]
    used, unused = conditions.used_announcements(expected, candidate, baseline.allocations)
    is_fresh = fresh(candidate, baseline.allocations)
    evaluated = Evaluation(
        remaining, cases, limits, excess,
        undecided=np.asarray((scattered | incomplete).any(axis=0)) | (filtered[0].problem is not None),
        counts=[own_job and part.problem is None for own_job, part in zip(is_fresh, filtered, strict=True)],
        confirmations=CONFIRMATIONS,
        before=() if any(elsewhere) else last.ceilings,  # the links of another cluster did not become slower
        changes=list(dict.fromkeys(change for differences in changes_by_allocation for change in differences)),
        expected=expected, allowing=used, today=today, floors=floors_requested,
    )  # fmt: skip
    required = limits.judged | np.isfinite(times_of(learned.allocations[-1:], cases)).any(axis=0)
    against = [
        *wrong_data(candidate),
        *_incomparable(baseline, learned, limits, candidate, today),
        *list(filter(None, elsewhere))[:1],
        *unexpected(list(dict.fromkeys(change for differences in unannounced for change in differences))),
        *(part.problem for part in filtered if part.problem),
        *unfinished(candidate),
        *missing(remaining[0], cases, required),
    ]
    for allocation, is_incomplete, is_scattered in zip(remaining, incomplete, scattered, strict=True):
        against += incomplete_cases(allocation, cases, is_incomplete)
        unstable_cases = _chosen(cases, is_scattered)
        if unstable_cases:  # with the flags of their rows that may explain it
            flags = {flag for case in unstable_cases if case in allocation.shown for flag in allocation.shown[case].flags}
            explaining = tuple(sorted(flags & {"two_modes", "drift", "state_flip"}))
            against.append(reasons.UnstableCases(allocation.name, names_of(unstable_cases), explaining))
    notes = [
        *left_out,
        *(part.note for part in filtered if part.note),
        *_circumstances(baseline, candidate),
        *_notes_on_cases(candidate, cases, limits, excess),
        *conditions.expired(expected, today),
        *unused,
    ]
    verdict = verdict_of(
        evaluated, against, mode="baseline", notes=tuple(notes), baseline=str(baseline.path),
        allocations=len(learned.allocations), thin=len(learned.allocations) < ENOUGH,
    )  # fmt: skip
    nameless = [case for case in suspects(verdict, cases) if not can_be_named(case)]
    return replace(verdict, notes=(*notes, reasons.NotInSuite(names_of(nameless)))) if nameless else verdict


# Reasons why a verdict is not a pass.

_MOST_NAMED = 4
_ANYWHERE = timedelta(days=1)  # the dates of two time zones differ by at most that


def wrong_data(candidate: Iterable[Allocation]) -> Iterator[GateReason]:
    """Yield a reason for each allocation with wrong data."""
    for allocation in candidate:
        wrong = [case for case, measured in allocation.cases.items() if measured.wrong]
        if wrong:
            yield reasons.WrongCases(allocation.name, names_of(wrong))


def _incomparable(
    baseline: Baseline, learned: Baseline, limits: BaselineLimits, candidate: Sequence[Allocation], today: date
) -> Iterator[GateReason]:
    """Yield why the baseline is too short, and which candidates began before its last allocation, in the future, or in a job twice.

    `learned` is the baseline without what was left out. Chance repeats itself in a job (MEASUREMENT.md: 10 to 15 times).
    """
    count = len(learned.allocations)
    last = baseline.allocations[-1]
    left_out = len(baseline.allocations) - count
    if count < FEWEST:
        yield reasons.ShortBaseline(str(baseline.path), count, FEWEST, left_out)
    elif not limits.judged.any():
        yield reasons.NoHistory(str(baseline.path), FEWEST, left_out)
    for allocation in candidate:
        if allocation.began is not None and last.began is not None and allocation.began < last.began:
            yield reasons.BeganBeforeBaseline(allocation.name, allocation.began_utc, last.name, last.began_utc)
        elif allocation.began is not None and allocation.began.date() > today + _ANYWHERE:
            yield reasons.BeganInFuture(allocation.name, allocation.began_utc, today.isoformat())
    owners = {job: allocation.name for allocation in baseline.allocations for job in allocation.jobs}
    shared = [(allocation.name, owners[job], job) for allocation in candidate for job in allocation.jobs if job in owners]
    if shared:
        yield reasons.SameJobAsBaseline(*shared[0])
    yield from sharing_one_job(candidate)


def sharing_one_job(candidate: Sequence[Allocation]) -> Iterator[GateReason]:
    """Yield two candidates of one job."""
    twice = shares_one_job(candidate)
    if twice is not None:
        yield reasons.SameJob(*twice)


def unexpected(
    differences: Sequence[Difference], kind: type[reasons.UnexpectedChange] | type[reasons.SidesDiffer] = reasons.UnexpectedChange
) -> Iterator[GateReason]:
    """Yield unexpected changes, the first ones by name. A confirmed slowdown is a regression all the same, unless `kind` blocks it."""
    yield from (kind(change) for change in differences[:_MOST_NAMED])
    if len(differences) > _MOST_NAMED:
        yield reasons.MoreUnexpectedChanges(len(differences) - _MOST_NAMED)


def unfinished(candidate: Sequence[Allocation]) -> Iterator[GateReason]:
    """Yield allocations with launches that stopped early."""
    for allocation in candidate:
        if allocation.unfinished:
            yield reasons.UnfinishedLaunches(allocation.name, allocation.unfinished, allocation.launches)


def missing(first: Allocation, cases: Sequence[CaseKey], required: Mask) -> Iterator[GateReason]:
    """Yield the wanted cases that the first allocation lacks; later ones may have the suspects alone."""
    measured = {case for case, times in first.cases.items() if times.log_time is not None}
    lost = [case for case in _chosen(cases, required) if case not in measured]
    if lost:
        na = next((first.cases[case].na for case in lost if case in first.cases and first.cases[case].na), None)
        differs = conditions.differing_column(lost, first.cases) if na is None else None
        yield reasons.MissingCases(first.name, names_of(lost), na, differs)


def partly_measured(allocation: Allocation, cases: Sequence[CaseKey], left_out: Sequence[bool]) -> Mask:
    """Return [cases] which cases some launches have and others lack, launches that were left out aside."""
    is_measured = np.isfinite(seconds_of(allocation, cases)[:, ~np.array(left_out, dtype=np.bool_)])
    return np.asarray(is_measured.any(axis=1) & ~is_measured.all(axis=1))


def incomplete_cases(allocation: Allocation, cases: Sequence[CaseKey], incomplete: Mask) -> Iterator[GateReason]:
    """Yield the cases that only some launches of an allocation have."""
    if incomplete.any():
        yield reasons.IncompleteCases(allocation.name, names_of(_chosen(cases, incomplete)))


def _chosen(cases: Sequence[CaseKey], mask: Mask) -> list[CaseKey]:
    return [cases[number] for number in map(int, np.flatnonzero(mask))]


# Notes.


def _circumstances(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[GateNote]:
    """Yield notes on slowed allocations, too few launches, and missing state probes or start times."""
    yield from (reasons.SlowedOnPurpose(allocation.name, allocation.slowed) for allocation in candidate if allocation.slowed)
    few = [allocation for allocation in candidate if allocation.launches < rule.FEWEST_LAUNCHES]
    if few:
        yield reasons.FewLaunches(few[0].name, len(few) - 1, rule.FEWEST_LAUNCHES)
    shared = shares_one_job(baseline.allocations)
    if shared is not None:
        yield reasons.BaselineOfOneJob(*shared)
    good = len(baseline.allocations)
    probeless = sum(all(value is None for value in allocation.canary_s) for allocation in baseline.allocations)
    if probeless:
        yield reasons.BaselineWithoutProbe(probeless, good)
    for allocation in candidate:
        lacking = allocation.canary_s.count(None)
        if lacking and probeless < good:
            yield reasons.WithoutProbe(allocation.name, lacking, allocation.launches)
    unknown = [allocation.name for allocation in baseline.allocations if allocation.began is None]
    if unknown:
        yield reasons.BaselineWithoutStart(len(unknown), good, unknown[0])
    without = [allocation.name for allocation in candidate if allocation.began is None]
    if without:
        yield reasons.WithoutStart(without[0], several=len(candidate) > 1)


def _notes_on_cases(
    candidate: Sequence[Allocation], cases: Sequence[CaseKey], limits: BaselineLimits, excess: Excess
) -> Iterator[GateNote]:
    """Yield notes on cases without a history or with data that were not checked, and on those slower in later allocations only."""
    first = candidate[0]
    judged = set(_chosen(cases, limits.judged))
    new = [case for case, measured in first.cases.items() if case not in judged and measured.log_time is not None]
    if new:
        yield reasons.WithoutHistory(first.name, len(new), names_of(new))
    for allocation in candidate:
        unchecked = [case for case, shown in allocation.shown.items() if case.size_bytes and not shown.checked]
        if unchecked:
            yield reasons.UncheckedCases(allocation.name, names_of(unchecked))

    def later(over: Mask) -> Mask:  # in several later allocations, but not in the first, which alone makes suspects
        return np.asarray((over[1:].sum(axis=0) > 1) & ~over[0])

    names = ["all cases"] if later(excess.whole_over[:, None]).any() else []
    names += [str(limits.scheme.groups[number]) for number in np.flatnonzero(later(excess.groups_over))]
    single = _chosen(cases, later(excess.cases_over))
    if single:
        names.append(str(names_of(single)))
    if names:
        yield reasons.SlowerLater(first.name, tuple(names))
