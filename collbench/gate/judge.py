"""The decision of the gate: a candidate's allocations judged by a baseline.

The result is "no verdict" if the baseline is too short, the machine state differs, or software or topology changed unexpectedly.
Likewise if a case is missing or unstable, or a launch stopped early. A slowdown is a regression only if it exceeds its limit in three
fresh allocations; after the first one it is suspected. An unexpected change does not excuse a regression: the verdict names it as the
cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

import numpy as np

from collbench import __version__
from collbench.analysis.ceilings import CeilingChange, LinkCeiling, dropped_ceilings
from collbench.analysis.differences import Difference
from collbench.analysis.outcome import Outcome, count_outcomes, outcome_by_limit
from collbench.gate import checks
from collbench.gate.allocation import COLUMNS, Allocation, Case, name_of, names_of
from collbench.gate.baseline import Baseline, CaseGroup, Figures, Numbers, fresh, group_of_case, scheme_of, times_of
from collbench.gate.cause import cause_of, ranked
from collbench.gate.changes import ExpectedChange, accepted, changes, check, expired, of_another_cluster, of_what_changed, unannounced
from collbench.gate.confirm import suspects
from collbench.gate.floors import Floor, floor_reasons, floor_states
from collbench.gate.reasons import GateNote, GateReason, WrongCases
from collbench.gate.rule import CONFIRMATIONS, ENOUGH, BaselineLimits, Excess, Mask, exceed, learn
from collbench.gate.state import FilteredAllocation, filter_baseline, filter_launches, launch_limits, typical_probe_s, unstable
from collbench.gate.verdict import (
    CLEARED,
    CONFIRMED,
    PASSED,
    REGRESSION,
    SUSPECTED,
    UNDECIDED,
    WRONG_DATA,
    FloorState,
    GroupState,
    Suspicion,
    Verdict,
)

# The state of every group, including passed ones: JUnit, Markdown and the page have a line for each.


@dataclass(frozen=True)
class _GroupEvaluation:
    """The input from which a group's state is computed."""

    limits: BaselineLimits
    excess: Excess
    cases: Sequence[Case]
    suspicions: Sequence[Suspicion]
    undecided: Mask

    @cached_property
    def states(self) -> dict[Case, str]:
        """Return the state of each case that exceeded its limit."""
        return {tuple(each.case.values()): each.state for each in self.suspicions if each.kind == "cell"}

    @cached_property
    def open_groups(self) -> set[str]:
        """Return the names of the groups, and of the whole, that are or may be slower."""
        return {each.name for each in self.suspicions if each.kind != "cell" and each.state in (CONFIRMED, SUSPECTED)}


def group_states(
    limits: BaselineLimits, excess: Excess, cases: Sequence[Case], suspicions: Sequence[Suspicion], undecided: Mask | None = None
) -> list[GroupState]:
    """Return the state of each group that has a case with a history, in the order of the baseline's cases.

    undecided  [cases] that were measured but do not count: unstable, or missing in some launches; None: no case
    """
    evaluation = _GroupEvaluation(
        limits, excess, cases, suspicions, np.zeros(len(cases), dtype=np.bool_) if undecided is None else undecided
    )
    judged = [members[limits.judged[members]] for members in limits.scheme.members]
    return [_state(number, each, evaluation) for number, each in enumerate(judged) if len(each)]


def _state(number: int, judged: Numbers, evaluation: _GroupEvaluation) -> GroupState:
    limits, group = evaluation.limits, evaluation.limits.scheme.groups[number]
    first = evaluation.excess.cases[0, judged]
    missing = int((~np.isfinite(first)).sum())
    worst = _worst(first, limits.cases[judged])
    state = _result(missing > 0 or bool(evaluation.undecided[judged].any()), list(_of_group(group, evaluation.suspicions)))
    outcomes = count_outcomes(_of_case(int(case), evaluation) for case in judged)
    return GroupState(
        *group,
        name=str(group),
        cases=len(judged),
        missing=missing,
        factors=tuple(map(_known, evaluation.excess.groups[:, number])),
        limit=_known(float(np.exp(limits.groups[number]))),
        worst=None if worst is None else name_of(evaluation.cases[int(judged[worst])]),
        worst_factor=None if worst is None else float(first[worst]),
        worst_limit=None if worst is None else _known(float(np.exp(limits.cases[judged[worst]]))),
        state=state,
        outcome=_of_whole_group(number, state, outcomes, evaluation).value,
        outcomes={each.value: number for each, number in outcomes.items()},
    )


def _of_case(case: int, evaluation: _GroupEvaluation) -> Outcome:
    """Return the outcome of one case. One that needs another measurement is inconclusive, and so is a case of a slower group."""
    state = evaluation.states.get(evaluation.cases[case])
    if state == CONFIRMED:
        return Outcome.SLOWER
    if state == SUSPECTED or evaluation.undecided[case]:
        return Outcome.INCONCLUSIVE
    own = outcome_by_limit(map(_known, evaluation.excess.cases[:, case]), _known(float(np.exp(evaluation.limits.cases[case]))))
    with_others = {"all cases", str(group_of_case(evaluation.cases[case]))} & evaluation.open_groups
    return Outcome.INCONCLUSIVE if own is Outcome.NO_CHANGE and with_others else own


def _of_whole_group(number: int, state: str, outcomes: Mapping[Outcome, int], evaluation: _GroupEvaluation) -> Outcome:
    """Return the outcome of a group by its own limit; where it is too small for one, the outcome of all its cases."""
    if state == CONFIRMED:
        return Outcome.SLOWER
    if state != PASSED:
        return Outcome.INCONCLUSIVE
    limit = _known(float(np.exp(evaluation.limits.groups[number])))
    if limit is not None:
        return outcome_by_limit(map(_known, evaluation.excess.groups[:, number]), limit)
    there = [outcome for outcome, cases in outcomes.items() if cases]
    return there[0] if len(there) == 1 else Outcome.INCONCLUSIVE


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _worst(factors: Figures, limits: Figures) -> int | None:
    """Return the index of the case that exceeds its limit most or is nearest to it; None if none was measured."""
    known = np.isfinite(factors)
    return int(np.argmax(np.where(known, np.log(factors) - limits, -np.inf))) if known.any() else None


def _of_group(group: CaseGroup, suspicions: Sequence[Suspicion]) -> Iterator[str]:
    for each in suspicions:
        if each.kind == "group" and each.name == str(group):
            yield each.state
        if each.kind == "cell" and group_of_case(tuple(each.case.values())) == group:
            yield each.state


def _result(unknown: bool, states: Sequence[str]) -> str:
    if CONFIRMED in states:
        return CONFIRMED
    if SUSPECTED in states:
        return SUSPECTED
    return UNDECIDED if unknown else PASSED


# Suspicions: what exceeds its limit in the first allocation, and whether later allocations confirm it.

_ORDER = (CONFIRMED, SUSPECTED, CLEARED)


def suspected_cases(limits: BaselineLimits, excess: Excess) -> Mask:
    """Return [cases] which cases exceed a limit in the first allocation: their own, their group's or that of the whole."""
    groups = excess.groups_over[0][limits.scheme.of]
    return np.asarray(excess.cases_over[0] | groups | bool(excess.whole_over[0]))


def suspicions_of(
    limits: BaselineLimits, excess: Excess, cases: Sequence[Case], confirmations: int = CONFIRMATIONS, counts: Sequence[bool] | None = None
) -> list[Suspicion]:
    """Return everything that exceeded its limit in the first allocation, the surest and worst first.

    confirmations  the number of allocations over the limit that makes a suspect confirmed
    counts   by allocation, whether it counts; None: all do. One in another machine state neither confirms nor clears
    """
    found = []
    rule = _Confirmations(confirmations, [True] * len(excess.whole) if counts is None else counts)
    if excess.whole_over[0]:
        found.append(_suspicion(("whole", "all cases"), excess.whole, excess.whole_over, limits.whole, rule))
    for number in map(int, np.flatnonzero(excess.groups_over[0])):
        name = ("group", str(limits.scheme.groups[number]))
        found.append(_suspicion(name, excess.groups[:, number], excess.groups_over[:, number], limits.groups[number], rule))
    for number in map(int, np.flatnonzero(excess.cases_over[0])):
        name = ("cell", name_of(cases[number]))
        one = _suspicion(name, excess.cases[:, number], excess.cases_over[:, number], limits.cases[number], rule)
        found.append(replace(one, case=dict(zip(COLUMNS, cases[number], strict=True))))
    return sorted(found, key=lambda each: (_ORDER.index(each.state), -max(factor for factor in each.factors if factor is not None)))


@dataclass(frozen=True)
class _Confirmations:
    """The number of allocations over the limit that make a regression, and by allocation whether it counts."""

    required: int
    counts: Sequence[bool]

    def state(self, factors: Sequence[float | None], over: Mask) -> str:
        """Return the state of a suspect from its factor in each allocation, and whether that exceeds the limit."""
        judged = zip(factors, over, self.counts, strict=True)
        measured = [bool(exceeds) for factor, exceeds, counts in judged if factor is not None and counts]
        return CLEARED if not all(measured) else CONFIRMED if len(measured) >= self.required else SUSPECTED


def _suspicion(name: tuple[str, str], factors: Figures, over: Mask, limit: float, confirmations: _Confirmations) -> Suspicion:
    judged = tuple(float(factor) if np.isfinite(factor) else None for factor in factors)
    return Suspicion(*name, {}, judged, float(np.exp(limit)), confirmations.state(judged, over))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A candidate evaluated by the rule.

    cases, limits, excess  the baseline's cases, their limits, and by how much each allocation exceeds them
    filtered               the candidate's allocations without launches in another machine state
    unstable               [allocations × cases] with too much scatter between launches, but within the limit; of later ones suspects only
    incomplete             [allocations × cases] that some launches lack; of later ones suspects only
    required               [cases] that a candidate must have: those with a history, and those of the last good allocation
    """

    cases: Sequence[Case]
    limits: BaselineLimits
    excess: Excess
    filtered: Sequence[FilteredAllocation]
    unstable: Mask
    incomplete: Mask
    required: Mask

    @property
    def undecided(self) -> Mask:
        """Return [cases] that were measured but do not count."""
        return np.asarray((self.unstable | self.incomplete).any(axis=0)) | (self.filtered[0].problem is not None)


def judge(
    baseline: Baseline,
    candidate: Sequence[Allocation],
    expected: Sequence[ExpectedChange],
    today: date,
    floors_requested: Sequence[Floor] = (),
) -> Verdict:
    """Return the verdict on a candidate's allocations, given in the order in which they began; `floors_requested` are floors.

    Raises UsageError if an allocation is in the baseline or is given twice, or if only some are imported. Likewise if the first one has
    no case in common with the baseline, or none that a floor applies to.
    """
    cases = baseline.cases
    check(baseline, candidate, cases)
    learned, left_out = filter_baseline(baseline)
    evaluation = _evaluate(learned, candidate, cases, typical_probe_s(baseline.allocations))
    found = [changes(baseline.allocations[-1], each) for each in candidate]
    happened, idle = of_what_changed(expected, candidate, baseline.allocations)
    counts = [own and one.problem is None for own, one in zip(fresh(candidate, baseline.allocations), evaluation.filtered, strict=True)]
    suspicions = accepted(suspicions_of(evaluation.limits, evaluation.excess, cases, counts=counts), happened, today, cases)
    before = baseline.allocations[-1].ceilings
    floors = floor_states(floors_requested, [each.allocation for each in evaluation.filtered], before=before)
    groups = group_states(evaluation.limits, evaluation.excess, cases, suspicions, evaluation.undecided)
    cause = cause_of(suspicions, groups, cases) if counts[0] else None  # the slowdown in another machine state has no pattern
    wrong = list(wrong_data(candidate))
    against = [
        *checks.of_history(baseline, learned, evaluation.limits),
        *checks.of_clocks(baseline, candidate, today),
        *checks.of_jobs(baseline, candidate),
        *_of_changes(baseline, candidate, [unannounced(each, expected, today) for each in found]),
        *_of_figures(candidate, evaluation, suspicions),
        *floor_reasons(floors),
    ]
    verdict = Verdict(
        result=WRONG_DATA if wrong else result_of(against, suspicions, floors),
        mode="baseline",
        reasons=(*wrong, *against),
        notes=(*left_out, *_notes(baseline, candidate, evaluation), *expired(expected, today), *idle),
        suspicions=tuple(suspicions),
        groups=tuple(groups),
        floors=tuple(floors),
        asked=tuple(each.asked for each in floors_requested),
        ceilings=fallen_since(before, candidate),
        cause=cause,
        changes=tuple(ranked(_all(found), expected, today, suspicions, cause, groups=groups)),
        baseline=str(baseline.path),
        allocations=len(learned.allocations),
        thin=len(learned.allocations) < ENOUGH,
        candidates=tuple(each.name for each in candidate),
        cases=int(evaluation.limits.judged.sum()),
        judged_on=today.isoformat(),
        collbench=__version__,
    )
    return replace(verdict, notes=(*verdict.notes, *checks.of_confirming(suspects(verdict, cases))))


def _evaluate(learned: Baseline, candidate: Sequence[Allocation], cases: Sequence[Case], typical_s: float | None) -> Evaluation:
    limits = learn(times_of(learned.allocations, cases), scheme_of(cases))
    filtered = [filter_launches(each, typical_s) for each in candidate]
    excess = exceed(limits, times_of([each.allocation for each in filtered], cases))
    allowed = launch_limits(learned.allocations, cases, limits)
    scattered = np.array([unstable(each.allocation, cases, allowed) for each in filtered]) & limits.judged & ~excess.cases_over
    scattered[1:] &= excess.cases_over[0]
    incomplete = (
        np.array([checks.incomplete_cases(each, cases, one.left_out) for each, one in zip(candidate, filtered, strict=True)])
        & limits.judged
    )
    incomplete[1:] &= suspected_cases(limits, excess)
    required = limits.judged | np.isfinite(times_of(learned.allocations[-1:], cases)).any(axis=0)
    return Evaluation(cases, limits, excess, filtered, scattered, incomplete, required)


def fallen_since(before: Sequence[LinkCeiling], candidate: Sequence[Allocation]) -> tuple[CeilingChange, ...]:
    """Return the ceilings that are lower in an allocation of the candidate than in the baseline, each once."""
    return tuple(dict.fromkeys(change for each in candidate for change in dropped_ceilings(before, each.ceilings)))


def _of_changes(baseline: Baseline, candidate: Sequence[Allocation], found: Sequence[Sequence[Difference]]) -> Iterator[GateReason]:
    """Yield reasons for unexpected changes; `found` has them by allocation."""
    pairs = zip(candidate, found, strict=True)
    elsewhere = next((reason for each, changed in pairs if (reason := of_another_cluster(baseline, each, changed))), None)
    if elsewhere is not None:
        yield elsewhere
    yield from checks.of_changes(_all(found))


def _all(found: Sequence[Sequence[Difference]]) -> list[Difference]:
    return list(dict.fromkeys(each for of_one in found for each in of_one))


def _of_figures(candidate: Sequence[Allocation], evaluation: Evaluation, suspicions: Sequence[Suspicion]) -> Iterator[GateReason]:
    """Yield the reasons in the measured figures that prevent a pass."""
    cases, first = evaluation.cases, evaluation.filtered[0].allocation
    yield from (each.problem for each in evaluation.filtered if each.problem)
    yield from checks.of_launches(candidate)
    yield from checks.of_missing(first, cases, evaluation.required)
    for each, incomplete, unstable_ones in zip(evaluation.filtered, evaluation.incomplete, evaluation.unstable, strict=True):
        yield from checks.of_parts(each.allocation, cases, incomplete)
        yield from checks.of_scatter(each.allocation, cases, unstable_ones)
    yield from checks.of_suspects(suspicions, len(candidate))


def _notes(baseline: Baseline, candidate: Sequence[Allocation], evaluation: Evaluation) -> Iterator[GateNote]:
    yield from (each.note for each in evaluation.filtered if each.note)
    yield from checks.of_candidate(baseline, candidate)
    yield from checks.of_cases(candidate[0], evaluation.cases, evaluation.limits.judged)
    yield from checks.of_unchecked(candidate)
    yield from checks.of_later(evaluation.limits, evaluation.excess, evaluation.cases, [each.name for each in candidate])


def result_of(against: Sequence[GateReason], suspicions: Sequence[Suspicion], floors: Sequence[FloorState]) -> str:
    """Return the result. A confirmed floor is a regression even with other reasons, since it needs no history and no comparison."""
    if any(each.state == CONFIRMED for each in floors):
        return REGRESSION
    if any(reason.blocks for reason in against):
        return UNDECIDED
    if any(each.state == CONFIRMED for each in suspicions):
        return REGRESSION
    return UNDECIDED if against else PASSED


def wrong_data(candidate: Sequence[Allocation]) -> Iterator[WrongCases]:
    """Yield a reason for each allocation with wrong data."""
    for each in candidate:
        cases = [case for case, measured in each.cases.items() if measured.wrong]
        if cases:
            yield WrongCases(each.name, names_of(cases))
