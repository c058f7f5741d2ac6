"""Why there is no pass: everything that keeps a verdict from being one, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from collbench.analysis.differences import Difference
from collbench.gate.allocation import COLUMNS, Allocation, Cell, counted, names_of
from collbench.gate.baseline import Baseline, of_one_job, seconds_of
from collbench.gate.changes import differing_way
from collbench.gate.confirm import NO_KEY, can_be_named
from collbench.gate.rule import FEWEST, STRIKES, Excess, Limits, Mask
from collbench.gate.state import FEWEST_LAUNCHES
from collbench.gate.verdict import SUSPECTED, Suspicion

# What else has to be known of a verdict: it decides nothing, but whoever reads the verdict should not have to find out.

_UNCHECKED = "the state of the machine is not known"
_SIZE = COLUMNS.index("size_bytes")


def of_candidate(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[str]:
    """Made slower on purpose, without a canary, without a start, of too few launches."""
    for each in candidate:
        if each.slowed:
            yield f"allocation {each.name} was slowed on purpose ({each.slowed}): this verdict says nothing of the cluster"
    few = [each for each in candidate if each.launches < FEWEST_LAUNCHES]
    if few:
        many = f" and {counted(len(few) - 1, 'other')}" if len(few) > 1 else ""
        yield f"{few[0].name}{many}: fewer than {FEWEST_LAUNCHES} launches, so it is not known whether cells are stable; five are usual"
    shared = of_one_job([(each.name, each.jobs) for each in baseline.allocations])
    if shared is not None:
        one, other, job = shared
        yield f"baseline: {one} and {other} are both of {job}: its limits may be too narrow; drop one, and add one of a job of its own"
    yield from _of_canaries(baseline, candidate)
    yield from _of_starts(baseline, candidate)


def _of_canaries(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[str]:
    """Where nothing says in which state the machine was."""
    silent = sum(all(value is None for value in each.canary_s) for each in baseline.allocations)
    if silent:
        yield f"{silent} of {counted(len(baseline.allocations), 'allocation')} of the baseline without a canary: {_UNCHECKED}"
    for each in candidate:
        quiet = each.canary_s.count(None)
        if quiet and silent < len(baseline.allocations):
            yield f"allocation {each.name}: {quiet} of {counted(each.launches, 'launch')} without a canary: {_UNCHECKED}"


def _of_starts(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[str]:
    """Where nothing says which came first."""
    unknown = [each.name for each in baseline.allocations if each.began is None]
    if unknown:
        count = f"{len(unknown)} of {counted(len(baseline.allocations), 'allocation')}"
        yield f"{count} of the baseline do not say when they began ({unknown[0]}): they count as the oldest"
    without = [each.name for each in candidate if each.began is None]
    if without:
        order = "; all are taken in the order in which they are named" if len(candidate) > 1 else ", and may be older than the baseline"
        yield f"allocation {without[0]} does not say when it began{order}"


def of_cells(first: Allocation, cells: Sequence[Cell], judged: Mask) -> Iterator[str]:
    """Cells of the first allocation that have no history, or one that is too short."""
    known = {cell for cell, known_well in zip(cells, judged, strict=True) if known_well}
    others = [cell for cell, measured in first.cells.items() if cell not in known and measured.time is not None]
    if others:
        what = f"{counted(len(others), 'cell')} of allocation {first.name} without a history long enough: not judged"
        yield f"{what} ({names_of(others)}); the baseline gets to know them as allocations are added"


def of_unchecked(candidate: Sequence[Allocation]) -> Iterator[str]:
    """Cells of which nobody knows whether the data were right; what moves nothing has none."""
    for each in candidate:
        others = [cell for cell, shown in each.shown.items() if cell[_SIZE] and not shown.checked]
        if others:
            yield f"allocation {each.name}: what arrived was not compared with what was sent in {names_of(others)}"


def of_later(limits: Limits, excess: Excess, cells: Sequence[Cell], names: Sequence[str]) -> Iterator[str]:
    """What exceeds its limit in several later allocations, though not in the first, which alone makes suspects."""
    groups = list(map(str, limits.scheme.groups))
    found = [
        *(["all cells"] if _in_later(excess.whole_over[:, None]).any() else []),
        *(groups[number] for number in map(int, np.flatnonzero(_in_later(excess.groups_over)))),
        *([names_of(late)] if (late := [cells[number] for number in map(int, np.flatnonzero(_in_later(excess.cells_over)))]) else []),
    ]
    if found:
        yield f"slower in several allocations, but not in {names[0]}, which came first: {'; '.join(found)}; judge the later ones alone"


def _in_later(over: Mask) -> Mask:
    return np.asarray((over[1:].sum(axis=0) > 1) & ~over[0])


def of_confirming(waiting: Sequence[Cell]) -> Iterator[str]:
    """Suspects that no suite can measure alone."""
    others = [cell for cell in waiting if not can_be_named(cell)]
    if others:
        yield f"{SUSPECTED}, but not in --confirm-suite, since {NO_KEY}: {names_of(others)}; measure the whole suite again"


_MOST_NAMED = 4
_NOT_FRESH = "what happens in one job is no proof of the next, so it counts once; measure in a job of its own"
_ANYWHERE = timedelta(days=1)  # by which the date of one zone is ahead of another's


@dataclass(frozen=True)
class Problem:
    """Why there is no pass; `blocks`: nor a regression, because the two sides are not comparable."""

    sentence: str
    blocks: bool = False


def of_history(baseline: Baseline, learned: Baseline, limits: Limits) -> Iterator[Problem]:
    """Too few allocations; `learned` is the baseline without what was left out."""
    count, out = len(learned.allocations), len(baseline.allocations) - len(learned.allocations)
    besides = f" besides {counted(out, 'allocation')} in another state of the machine" if out else ""
    if count < FEWEST:
        held = counted(count, "allocation")
        yield Problem(f"{baseline.path} has {held}{besides}: with fewer than {FEWEST} nothing is known of chance; add good ones", True)
    elif not limits.judged.any():
        yield Problem(f"{baseline.path} has no cell in {FEWEST} allocations{besides}: nothing is known of chance; add good ones", True)


def of_clocks(baseline: Baseline, candidate: Sequence[Allocation], today: date) -> Iterator[Problem]:
    """Candidates that began before what they are judged by, or have not begun yet."""
    last = baseline.allocations[-1]
    for each in candidate:
        if each.began is not None and last.began is not None and each.began < last.began:
            when = f"began {each.began_utc}, before the baseline's last one, {last.name} ({last.began_utc})"
            yield Problem(f"allocation {each.name} {when}: a clock is wrong, or it is older than what judges it", True)
        elif each.began is not None and each.began.date() > today + _ANYWHERE:
            yield Problem(f"allocation {each.name} began {each.began_utc}, and today is {today}: a clock is wrong", True)


def of_jobs(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[Problem]:
    """Candidates of one job, or of one of the baseline's: in the same allocation chance repeats itself (MEASUREMENT.md: 10 to 15 times)."""
    known = {job: each.name for each in baseline.allocations for job in each.jobs}
    held = next(((each, job) for each in candidate for job in each.jobs if job in known), None)
    if held is not None:
        each, job = held
        yield Problem(f"allocation {each.name} is of {job}, and {known[job]} of the baseline, too: {_NOT_FRESH}", True)
    yield from of_shared_jobs(candidate)


def of_shared_jobs(candidate: Sequence[Allocation]) -> Iterator[Problem]:
    """Two of them that are of one job."""
    twice = of_one_job([(each.name, each.jobs) for each in candidate])
    if twice is not None:
        one, other, job = twice
        yield Problem(f"allocations {one} and {other} are both of {job}: {_NOT_FRESH}", True)


def of_changes(found: Sequence[Difference], blocks: bool) -> Iterator[Problem]:
    """Unexpected changes. A confirmed slowdown is a regression all the same, unless they block it."""
    for each in found[:_MOST_NAMED]:
        yield Problem(f"unexpected change: {each.sentence()} (announce expected changes with --expect FILE)", blocks)
    if len(found) > _MOST_NAMED:
        yield Problem(f"and {len(found) - _MOST_NAMED} more unexpected changes", blocks)


def of_launches(candidate: Sequence[Allocation]) -> Iterator[Problem]:
    """Launches that broke off."""
    for each in candidate:
        if each.unfinished:
            yield Problem(f"allocation {each.name}: {each.unfinished} of {counted(each.launches, 'launch')} broke off; repeat them")


def of_missing(first: Allocation, cells: Sequence[Cell], wanted: Mask) -> Iterator[Problem]:
    """Cells that are wanted and that the first allocation lacks; later ones may hold suspects alone."""
    lost = [cell for cell, is_wanted in zip(cells, wanted, strict=True) if is_wanted and not _has(first, cell)]
    if lost:
        why = next((each.na for cell in lost if (each := first.cells.get(cell)) is not None and each.na), None)
        why = why or differing_way(lost, first.cells)
        yield Problem(f"allocation {first.name} lacks {names_of(lost)}{f' ({why})' if why else ''}: what is missing never passes")


def of_parts(allocation: Allocation, cells: Sequence[Cell], torn: Mask) -> Iterator[Problem]:
    """Cells that some launches of an allocation lack: what broke there is not known to be well."""
    names = [cell for cell, is_torn in zip(cells, torn, strict=True) if is_torn]
    if names:
        yield Problem(f"allocation {allocation.name}: not every launch measured {names_of(names)}; repeat those launches")


def of_scatter(allocation: Allocation, cells: Sequence[Cell], unstable: Mask) -> Iterator[Problem]:
    """Cells whose launches lie too far apart; what their rows say of themselves is told as a hint."""
    names = [cell for cell, is_unstable in zip(cells, unstable, strict=True) if is_unstable]
    if names:
        flags = {flag for cell in names if cell in allocation.shown for flag in allocation.shown[cell].flags}
        hint = ", ".join(sorted(flags & {"two_modes", "drift", "state_flip"}))
        what = f"launches lie further apart than the baseline's ever did in {names_of(names)}{f' ({hint})' if hint else ''}"
        yield Problem(f"allocation {allocation.name}: {what}: unstable, so no verdict on that; measure a fresh one")


def of_suspects(suspicions: Sequence[Suspicion], allocations: int, strikes: int = STRIKES) -> Iterator[Problem]:
    """Suspects that were not measured often enough."""
    waiting = sum(each.state == SUSPECTED for each in suspicions)
    if waiting:
        more = strikes - allocations
        how = f"in {more} fresh allocation{'s' if more > 1 else ''}, and judge all together" if more > 0 else "where they were left out"
        yield Problem(f"{SUSPECTED}: {waiting}; measure those again {how}")


def torn_cells(allocation: Allocation, cells: Sequence[Cell], left_out: Sequence[bool]) -> Mask:
    """[cells] which some launches have, and others, but for those that were left out, do not."""
    there = np.isfinite(seconds_of(allocation, cells)[:, ~np.array(left_out, dtype=np.bool_)])
    return np.asarray(there.any(axis=1) & ~there.all(axis=1))


def _has(allocation: Allocation, cell: Cell) -> bool:
    return cell in allocation.cells and allocation.cells[cell].time is not None
