"""Checks around a verdict: reasons why it is not a pass, and notes, as facts of `gate.reasons`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import numpy as np

from collbench.analysis.differences import Difference
from collbench.analysis.launches import CaseKey
from collbench.gate.allocation import Allocation, names_of
from collbench.gate.baseline import Baseline, of_one_job, seconds_of
from collbench.gate.changes import differing_column
from collbench.gate.confirm import can_be_named
from collbench.gate.reasons import (
    BaselineOfOneJob,
    BaselineWithoutProbe,
    BaselineWithoutStart,
    BeganBeforeBaseline,
    BeganInFuture,
    FewLaunches,
    GateNote,
    GateReason,
    IncompleteCases,
    MissingCases,
    MoreUnexpectedChanges,
    NoHistory,
    NotInSuite,
    SameJob,
    SameJobAsBaseline,
    ShortBaseline,
    SidesDiffer,
    SlowedOnPurpose,
    SlowerLater,
    StillSuspected,
    UncheckedCases,
    UnexpectedChange,
    UnfinishedLaunches,
    UnstableCases,
    WithoutHistory,
    WithoutProbe,
    WithoutStart,
)
from collbench.gate.rule import CONFIRMATIONS, FEWEST, BaselineLimits, Excess, Mask
from collbench.gate.state import FEWEST_LAUNCHES
from collbench.gate.verdict import SUSPECTED, Suspicion

# Notes.


def of_candidate(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[GateNote]:
    """Yield notes on slowed allocations, too few launches, and missing state probes or start times."""
    yield from (SlowedOnPurpose(each.name, each.slowed) for each in candidate if each.slowed)
    few = [each for each in candidate if each.launches < FEWEST_LAUNCHES]
    if few:
        yield FewLaunches(few[0].name, len(few) - 1, FEWEST_LAUNCHES)
    shared = of_one_job([(each.name, each.jobs) for each in baseline.allocations])
    if shared is not None:
        yield BaselineOfOneJob(*shared)
    probeless = sum(all(value is None for value in each.canary_s) for each in baseline.allocations)
    if probeless:
        yield BaselineWithoutProbe(probeless, len(baseline.allocations))
    for each in candidate:
        lacking = each.canary_s.count(None)
        if lacking and probeless < len(baseline.allocations):
            yield WithoutProbe(each.name, lacking, each.launches)
    unknown = [each.name for each in baseline.allocations if each.began is None]
    if unknown:
        yield BaselineWithoutStart(len(unknown), len(baseline.allocations), unknown[0])
    without = [each.name for each in candidate if each.began is None]
    if without:
        yield WithoutStart(without[0], several=len(candidate) > 1)


def of_cases(first: Allocation, cases: Sequence[CaseKey], judged: Mask) -> Iterator[GateNote]:
    """Yield a note on cases of the first allocation without a history, or with one that is too short."""
    known = {case for case, is_judged in zip(cases, judged, strict=True) if is_judged}
    others = [case for case, measured in first.cases.items() if case not in known and measured.time is not None]
    if others:
        yield WithoutHistory(first.name, len(others), names_of(others))


def of_unchecked(candidate: Sequence[Allocation]) -> Iterator[GateNote]:
    """Yield notes on cases with data that were not checked."""
    for each in candidate:
        others = [case for case, shown in each.shown.items() if case.size_bytes and not shown.checked]
        if others:
            yield UncheckedCases(each.name, names_of(others))


def of_later(limits: BaselineLimits, excess: Excess, cases: Sequence[CaseKey], names: Sequence[str]) -> Iterator[GateNote]:
    """Yield a note on what exceeds its limit in several later allocations, but not in the first, which alone makes suspects."""
    groups = list(map(str, limits.scheme.groups))
    found = [
        *(["all cases"] if _in_later(excess.whole_over[:, None]).any() else []),
        *(groups[number] for number in map(int, np.flatnonzero(_in_later(excess.groups_over)))),
        *([names_of(late).render()] if (late := [cases[at] for at in map(int, np.flatnonzero(_in_later(excess.cases_over)))]) else []),
    ]
    if found:
        yield SlowerLater(names[0], tuple(found))


def _in_later(over: Mask) -> Mask:
    return np.asarray((over[1:].sum(axis=0) > 1) & ~over[0])


def of_confirming(waiting: Sequence[CaseKey]) -> Iterator[GateNote]:
    """Yield a note on suspects that no suite can name."""
    others = [case for case in waiting if not can_be_named(case)]
    if others:
        yield NotInSuite(names_of(others))


# Reasons.

_MOST_NAMED = 4
_ANYWHERE = timedelta(days=1)  # the dates of two time zones differ by at most that


def of_history(baseline: Baseline, learned: Baseline, limits: BaselineLimits) -> Iterator[GateReason]:
    """Yield why the baseline is too short; `learned` is the baseline without what was left out."""
    count, out = len(learned.allocations), len(baseline.allocations) - len(learned.allocations)
    if count < FEWEST:
        yield ShortBaseline(str(baseline.path), count, FEWEST, out)
    elif not limits.judged.any():
        yield NoHistory(str(baseline.path), FEWEST, out)


def of_clocks(baseline: Baseline, candidate: Sequence[Allocation], today: date) -> Iterator[GateReason]:
    """Yield candidates that began before the last allocation of the baseline, or in the future."""
    last = baseline.allocations[-1]
    for each in candidate:
        if each.began is not None and last.began is not None and each.began < last.began:
            yield BeganBeforeBaseline(each.name, each.began_utc, last.name, last.began_utc)
        elif each.began is not None and each.began.date() > today + _ANYWHERE:
            yield BeganInFuture(each.name, each.began_utc, today.isoformat())


def of_jobs(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[GateReason]:
    """Yield candidates that share a job with one another or with the baseline: chance repeats itself in a job (MEASUREMENT.md: 10 to 15
    times).
    """
    known = {job: each.name for each in baseline.allocations for job in each.jobs}
    held = next(((each, job) for each in candidate for job in each.jobs if job in known), None)
    if held is not None:
        each, job = held
        yield SameJobAsBaseline(each.name, known[job], job)
    yield from of_shared_jobs(candidate)


def of_shared_jobs(candidate: Sequence[Allocation]) -> Iterator[GateReason]:
    """Yield two candidates of one job."""
    twice = of_one_job([(each.name, each.jobs) for each in candidate])
    if twice is not None:
        yield SameJob(*twice)


def of_changes(found: Sequence[Difference], kind: type[UnexpectedChange] | type[SidesDiffer] = UnexpectedChange) -> Iterator[GateReason]:
    """Yield unexpected changes, the first ones by name. A confirmed slowdown is a regression all the same, unless `kind` blocks it."""
    yield from (kind(each) for each in found[:_MOST_NAMED])
    if len(found) > _MOST_NAMED:
        yield MoreUnexpectedChanges(len(found) - _MOST_NAMED)


def of_launches(candidate: Sequence[Allocation]) -> Iterator[GateReason]:
    """Yield allocations with launches that stopped early."""
    yield from (UnfinishedLaunches(each.name, each.unfinished, each.launches) for each in candidate if each.unfinished)


def of_missing(first: Allocation, cases: Sequence[CaseKey], required: Mask) -> Iterator[GateReason]:
    """Yield the wanted cases that the first allocation lacks; later ones may have the suspects alone."""
    there = {case for case, measured in first.cases.items() if measured.time is not None}
    lost = [case for case, is_required in zip(cases, required, strict=True) if is_required and case not in there]
    if lost:
        na = next((each.na for case in lost if (each := first.cases.get(case)) is not None and each.na), None)
        yield MissingCases(first.name, names_of(lost), na, differing_column(lost, first.cases) if na is None else None)


def of_parts(allocation: Allocation, cases: Sequence[CaseKey], incomplete: Mask) -> Iterator[GateReason]:
    """Yield the cases that only some launches of an allocation have."""
    names = [case for case, is_incomplete in zip(cases, incomplete, strict=True) if is_incomplete]
    if names:
        yield IncompleteCases(allocation.name, names_of(names))


def of_scatter(allocation: Allocation, cases: Sequence[CaseKey], unstable: Mask) -> Iterator[GateReason]:
    """Yield the unstable cases, with the flags of their rows that may explain it."""
    names = [case for case, is_unstable in zip(cases, unstable, strict=True) if is_unstable]
    if names:
        flags = {flag for case in names if case in allocation.shown for flag in allocation.shown[case].flags}
        yield UnstableCases(allocation.name, names_of(names), tuple(sorted(flags & {"two_modes", "drift", "state_flip"})))


def of_suspects(suspicions: Sequence[Suspicion], allocations: int, confirmations: int = CONFIRMATIONS) -> Iterator[GateReason]:
    """Yield how many suspects need another measurement."""
    waiting = sum(each.state == SUSPECTED for each in suspicions)
    if waiting:
        yield StillSuspected(waiting, max(0, confirmations - allocations))


def incomplete_cases(allocation: Allocation, cases: Sequence[CaseKey], left_out: Sequence[bool]) -> Mask:
    """Return [cases] which cases some launches have and others lack, launches that were left out aside."""
    there = np.isfinite(seconds_of(allocation, cases)[:, ~np.array(left_out, dtype=np.bool_)])
    return np.asarray(there.any(axis=1) & ~there.all(axis=1))
