"""The decision: a candidate's allocations against a baseline.

No verdict is no pass: where the baseline is too short, software or topology changed and nobody announced it, the machine was in
another state, a cell is missing or a launch broke off, the gate says so. A regression is told only of what exceeds its limit in three
fresh allocations; what exceeds it in the first one is a suspect until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median

import numpy as np

from collbench import __version__
from collbench.analysis.cells import known
from collbench.analysis.differences import Difference
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Allocation, Cell, Measured
from collbench.gate.baseline import Baseline, scheme_of, times_of
from collbench.gate.cause import cause_of
from collbench.gate.changes import Expected, changes, unannounced
from collbench.gate.floors import Floor, floor_states
from collbench.gate.groups import group_states
from collbench.gate.names import name_of
from collbench.gate.plausible import ranked
from collbench.gate.rule import ENOUGH, FEWEST, STRIKES, Excess, Limits, Mask, exceed, learn
from collbench.gate.scheme import Figures
from collbench.gate.verdict import CLEARED, CONFIRMED, PASSED, REGRESSION, SUSPECTED, UNDECIDED, WRONG_DATA, Suspicion, Verdict

_STATE = 1.20  # a canary that is further off belongs to another state of the machine
_MOST_FLIPPED = 2  # launches of an allocation that may be left out for it
_MOST_NAMED = 4


@dataclass(frozen=True)
class _Problem:
    """Why there is no pass; `blocks`: nor a regression, since what is compared is not comparable."""

    sentence: str
    blocks: bool


def judge(
    baseline: Baseline, candidate: Sequence[Allocation], expected: Sequence[Expected], today: date, asked: Sequence[Floor] = ()
) -> Verdict:
    """The verdict on a candidate's allocations, given in the order in which they began; `asked` are floors of percent of ceiling.

    Raises UsageError where one of them is in the baseline or two have one name, or the first has no cell in common with it.
    """
    _check(baseline, candidate)
    cells = baseline.cells
    limits = learn(times_of(baseline.allocations, cells), scheme_of(cells))
    found = list(dict.fromkeys(each for one in candidate for each in changes(baseline.allocations[-1], one)))
    steady = [_steady(each, baseline) for each in candidate]
    problems = [
        *_of_history(baseline, limits),
        *_of_clocks(baseline, candidate),
        *_of_changes(unannounced(found, expected, today)),
        *(problem for each in steady for problem in each[1]),
        *_of_launches(candidate),
    ]
    allocations = [each for each, _ in steady]
    excess = exceed(limits, times_of(allocations, cells))
    suspicions = _suspicions(limits, excess, cells)
    problems += [*_missing(limits, allocations, cells), *_in_part(limits, candidate[0], cells), *_open(suspicions, len(candidate))]
    wrong = list(_wrong(candidate))
    groups = group_states(limits, excess, cells, suspicions)
    floors = floor_states(asked, allocations)
    cause = cause_of(suspicions, groups)
    return Verdict(
        result=WRONG_DATA if wrong else _result(problems, suspicions),
        mode="baseline",
        reasons=(*wrong, *(problem.sentence for problem in problems)),
        notes=(),
        suspicions=tuple(suspicions),
        groups=tuple(groups),
        floors=tuple(floors),
        cause=cause,
        changes=tuple(ranked(found, expected, today, suspicions, cause)),
        baseline=str(baseline.path),
        allocations=len(baseline.allocations),
        thin=len(baseline.allocations) < ENOUGH,
        candidates=tuple(each.name for each in candidate),
        cells=int(limits.judged.sum()),
        judged_on=today.isoformat(),
        collbench=__version__,
    )


def _check(baseline: Baseline, candidate: Sequence[Allocation]) -> None:
    twice = next(((each, held) for each in candidate for held in baseline.allocations if _same(each, held)), None)
    if twice is not None:
        known_as = "" if twice[0].name == twice[1].name else f" as {twice[1].name}"
        raise UsageError(
            f"allocation {twice[0].name} is in the baseline {baseline.path}{known_as}: it cannot be judged by itself; drop it there first"
        )
    if len({each.name for each in candidate}) < len(candidate):
        raise UsageError("two of the candidate's allocations have one name: each counts once; measure with another --allocation NAME")
    if not any(cell in candidate[0].cells for cell in baseline.cells):
        raise UsageError(f"allocation {candidate[0].name} has no cell in common with {baseline.path}: measure the same suite")


def _same(one: Allocation, other: Allocation) -> bool:
    """Whether they are one, be it under another name."""
    return one.name == other.name or (one.began_utc == other.began_utc and one.cells == other.cells)


def _result(problems: Sequence[_Problem], suspicions: Sequence[Suspicion]) -> str:
    if any(problem.blocks for problem in problems):
        return UNDECIDED
    if any(each.state == CONFIRMED for each in suspicions):
        return REGRESSION
    return UNDECIDED if problems else PASSED


def _of_history(baseline: Baseline, limits: Limits) -> Iterator[_Problem]:
    count = len(baseline.allocations)
    if count < FEWEST:
        yield _Problem(f"{baseline.path} has {count} allocations: with fewer than {FEWEST} nothing is known of chance; add good ones", True)
    elif not limits.judged.any():
        yield _Problem(f"{baseline.path} has no cell in {FEWEST} allocations: nothing is known of chance; add good ones", True)


def _of_clocks(baseline: Baseline, candidate: Sequence[Allocation]) -> Iterator[_Problem]:
    last = baseline.allocations[-1]
    for each in candidate:
        if each.began_utc and each.began_utc < last.began_utc:
            when = f"began {each.began_utc}, before the baseline's last one, {last.name} ({last.began_utc})"
            yield _Problem(f"allocation {each.name} {when}: a clock is wrong, or it is older than what judges it", True)


def _of_changes(found: Sequence[Difference]) -> Iterator[_Problem]:
    for each in found[:_MOST_NAMED]:
        yield _Problem(f"{each.sentence()}: nobody announced it (--expect FILE)", True)
    if len(found) > _MOST_NAMED:
        yield _Problem(f"and {len(found) - _MOST_NAMED} more changes that nobody announced", True)


def _of_launches(candidate: Sequence[Allocation]) -> Iterator[_Problem]:
    for each in candidate:
        if each.unfinished:
            yield _Problem(f"allocation {each.name}: {each.unfinished} of {each.launches} launches broke off; repeat them", False)


def _steady(allocation: Allocation, baseline: Baseline) -> tuple[Allocation, list[_Problem]]:
    """The allocation without launches during which the machine was in another state, and what that leaves to be said."""
    usual = [value for each in baseline.allocations for value in each.canary_s if value is not None]
    if not usual:
        return allocation, []
    middle = median(usual)
    flipped = [value is not None and known(value) and max(value, middle) > _STATE * min(value, middle) for value in allocation.canary_s]
    if not any(flipped):
        return allocation, []
    if sum(flipped) > _MOST_FLIPPED or all(flipped):
        why = f"the machine was in another state in {sum(flipped)} of {len(flipped)} launches (canary more than 20 % off the baseline's)"
        return allocation, [_Problem(f"allocation {allocation.name}: {why}; measure again when it is quiet", True)]
    return replace(allocation, cells={cell: _without(each, flipped) for cell, each in allocation.cells.items()}), []


def _without(measured: Measured, left_out: Sequence[bool]) -> Measured:
    return measured._replace(medians_s=tuple(None if out else value for value, out in zip(measured.medians_s, left_out, strict=True)))


def _missing(limits: Limits, candidate: Sequence[Allocation], cells: Sequence[Cell]) -> Iterator[_Problem]:
    """Cells with a history that the first allocation lacks; later ones may hold suspects alone."""
    first = candidate[0]
    lost = [cell for cell, judged in zip(cells, limits.judged, strict=True) if judged and not _has(first, cell)]
    if lost:
        why = next((each.na for cell in lost if (each := first.cells.get(cell)) is not None and each.na), None)
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        named = f"{', '.join(map(name_of, lost[:_MOST_NAMED]))}{more}"
        yield _Problem(f"allocation {first.name} lacks {named}{f' ({why})' if why else ''}: what is missing never passes", False)


def _in_part(limits: Limits, first: Allocation, cells: Sequence[Cell]) -> Iterator[_Problem]:
    """Cells with a history that some launches of the first allocation lack: what broke there is not known to be well."""
    judged = (cell for cell, known_well in zip(cells, limits.judged, strict=True) if known_well and _has(first, cell))
    torn = [cell for cell in judged if None in first.cells[cell].medians_s]
    if torn:
        more = f" and {len(torn) - _MOST_NAMED} more" if len(torn) > _MOST_NAMED else ""
        named = f"{', '.join(map(name_of, torn[:_MOST_NAMED]))}{more}"
        yield _Problem(f"allocation {first.name}: not every launch measured {named}; repeat those launches", False)


def _has(allocation: Allocation, cell: Cell) -> bool:
    return cell in allocation.cells and allocation.cells[cell].time is not None


def _open(suspicions: Sequence[Suspicion], allocations: int) -> Iterator[_Problem]:
    waiting = sum(each.state == SUSPECTED for each in suspicions)
    if waiting:
        more = STRIKES - allocations
        how = f"in {more} fresh allocation{'s' if more > 1 else ''}, and judge all together" if more > 0 else "where they were left out"
        yield _Problem(f"suspected: {waiting}; measure those again {how}", False)


def _suspicions(limits: Limits, excess: Excess, cells: Sequence[Cell]) -> list[Suspicion]:
    """Everything that exceeded its limit in the first allocation."""
    found = []
    if excess.whole_over[0]:
        found.append(_suspicion(("whole", "all cells"), excess.whole, excess.whole_over, limits.whole))
    for number in map(int, np.flatnonzero(excess.groups_over[0])):
        name = ("group", str(limits.scheme.groups[number]))
        found.append(_suspicion(name, excess.groups[:, number], excess.groups_over[:, number], limits.groups[number]))
    for number in map(int, np.flatnonzero(excess.cells_over[0])):
        name = ("cell", name_of(cells[number]))
        one = _suspicion(name, excess.cells[:, number], excess.cells_over[:, number], limits.cells[number])
        found.append(replace(one, cell=dict(zip(COLUMNS, cells[number], strict=True))))
    order = (CONFIRMED, SUSPECTED, CLEARED)
    return sorted(found, key=lambda each: (order.index(each.state), -max(factor for factor in each.factors if factor is not None)))


def _suspicion(name: tuple[str, str], factors: Figures, over: Mask, limit: float) -> Suspicion:
    told = tuple(float(factor) if np.isfinite(factor) else None for factor in factors)
    measured = [bool(each) for each, factor in zip(over, told, strict=True) if factor is not None]
    state = CLEARED if not all(measured) else CONFIRMED if len(measured) >= STRIKES else SUSPECTED
    return Suspicion(*name, {}, told, float(np.exp(limit)), state)


def _wrong(candidate: Sequence[Allocation]) -> Iterator[str]:
    for each in candidate:
        cells = [cell for cell, measured in each.cells.items() if measured.wrong]
        if cells:
            more = f" and {len(cells) - _MOST_NAMED} more" if len(cells) > _MOST_NAMED else ""
            yield f"allocation {each.name}: what arrived is not what was sent in {', '.join(map(name_of, cells[:_MOST_NAMED]))}{more}"
