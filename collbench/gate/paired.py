"""No history: an old and a new stack side by side, their launches by turns in one allocation, and in a second one.

That their software differs is the point, and blocks nothing; another topology, other nodes or machines do. What exceeds its limit in
one allocation is a suspect, and a regression what does in both: of 336 limits chance exceeds one in nearly half of all allocations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from collbench import __version__
from collbench.analysis.differences import Difference
from collbench.errors import UsageError
from collbench.gate import problems
from collbench.gate.allocation import Cell
from collbench.gate.baseline import scheme_of, seconds_of
from collbench.gate.by_turns import PAIRED_STRIKES, learn_pairs
from collbench.gate.cause import cause_of
from collbench.gate.changes import Expected, accepted, changes, expired, unannounced
from collbench.gate.floors import Floor, floor_problems, floor_states
from collbench.gate.groups import group_states
from collbench.gate.judge import fallen_since, result_of, wrong_data
from collbench.gate.names import counted, names_of
from collbench.gate.plausible import ranked
from collbench.gate.problems import Problem, torn_cells
from collbench.gate.rule import FEWEST, Excess, Limits, Mask, exceed
from collbench.gate.scheme import Figures, known_median
from collbench.gate.side_by_side import SideBySide, side_by_side, told_apart
from collbench.gate.suspicions import suspicions_of
from collbench.gate.verdict import WRONG_DATA, Suspicion, Verdict

STACK = ("software", "environment")  # what makes a stack: it may differ between the old one and the new one
_MUCH = 1.25  # a slowdown by less should be seen


@dataclass(frozen=True, eq=False)
class _Looked:
    """What the rule says of the cells that the old stack has; `had` [cells] are those that it measured well in the first allocation."""

    cells: Sequence[Cell]
    limits: Limits
    excess: Excess
    had: Mask
    torn: Mask


def judge_paired(
    old: Sequence[Path], new: Sequence[Path], expected: Sequence[Expected], today: date, asked: Sequence[Floor] = ()
) -> Verdict:
    """The verdict on `new` against `old`: as many folders of launches each, those at one place of one allocation. Raises UsageError."""
    return replace(decide(side_by_side(old, new), expected, today, asked), baseline=", ".join(map(str, old)))


def decide(both: Sequence[SideBySide], expected: Sequence[Expected], today: date, asked: Sequence[Floor] = ()) -> Verdict:
    """The verdict on allocations with both stacks, the first of which has all cells. Raises UsageError where it measured nothing."""
    cells = list(dict.fromkeys(cell for each in both for cell, measured in each.old.cells.items() if measured.time is not None))
    if not cells:
        raise UsageError(f"allocation {both[0].old.name} has no cell with a time: name launches that measured something")
    looked = _look(both, cells)
    found = list(dict.fromkeys(change for each in both for change in changes(each.old, each.new)))
    suspicions = accepted(suspicions_of(looked.limits, looked.excess, cells, PAIRED_STRIKES), expected, today, cells)
    before = both[0].old.ceilings
    floors = floor_states(asked, [each.new for each in both], PAIRED_STRIKES, before)
    groups = group_states(looked.limits, looked.excess, cells, suspicions, looked.torn)
    cause = cause_of(suspicions, groups, cells)
    wrong = [sentence for each in both for sentence in wrong_data(told_apart(each))]
    against = [
        *(Problem(each.problem, True) for each in both if each.problem),
        *problems.of_changes(unannounced([each for each in found if each.kind not in STACK], expected, today), blocks=True),
        *problems.of_shared_jobs([each.new for each in both]),
        *_of_stacks(both),
        *_of_figures(both, looked, suspicions),
        *map(Problem, floor_problems(floors)),
    ]
    return Verdict(
        result=WRONG_DATA if wrong else result_of(against, suspicions, floors),
        mode="paired",
        reasons=(*wrong, *(problem.sentence for problem in against)),
        notes=(*_notes(both, looked, found), *expired(expected, today)),
        suspicions=tuple(suspicions),
        groups=tuple(groups),
        floors=tuple(floors),
        asked=tuple(each.asked for each in asked),
        ceilings=fallen_since(before, [each.new for each in both]),
        cause=cause,
        changes=tuple(ranked(found, expected, today, suspicions, cause, groups=groups)),
        baseline=", ".join(each.old.name for each in both),
        allocations=len(both),
        thin=False,
        candidates=tuple(each.name for each in both),
        cells=int(looked.limits.judged.sum()),
        judged_on=today.isoformat(),
        collbench=__version__,
    )


def _look(both: Sequence[SideBySide], cells: Sequence[Cell]) -> _Looked:
    differences = _padded([each.differences(cells) for each in both])
    limits = learn_pairs(differences, scheme_of(cells))
    excess = exceed(limits, known_median(np.moveaxis(differences, 1, -1)))
    first = both[0]
    had = np.isfinite(seconds_of(first.old, cells)).sum(axis=1) >= FEWEST
    torn = np.array([torn_cells(each, cells, out) for each, out in zip((first.old, first.new), first.left_out, strict=True)])
    return _Looked(cells, limits, excess, had, torn.any(axis=0) & had)


def _padded(differences: Sequence[Figures]) -> Figures:
    """[allocations × pairs × cells]; allocations may have pairs in different numbers."""
    most = max(1, *(len(each) for each in differences))
    return np.array([np.pad(each, ((0, most - len(each)), (0, 0)), constant_values=np.nan) for each in differences])


def _of_stacks(both: Sequence[SideBySide]) -> Iterator[Problem]:
    """Each stack has to be the same in all allocations."""
    for stack, allocations in (("old", [each.old for each in both]), ("new", [each.new for each in both])):
        for each in allocations[1:]:
            changed = [change for change in changes(allocations[0], each) if change.kind in STACK]
            if changed:
                where = f"allocations {allocations[0].name} and {each.name}"
                yield Problem(f"the {stack} stack is not the same in {where} ({changed[0].sentence()}): nothing repeats the other", True)


def _of_figures(both: Sequence[SideBySide], looked: _Looked, suspicions: Sequence[Suspicion]) -> Iterator[Problem]:
    """What keeps the figures themselves from passing."""
    first, cells = both[0], looked.cells
    for each in both:
        yield from problems.of_launches(told_apart(each))
    yield from problems.of_missing(told_apart(first)[1], cells, looked.had)
    for allocation, out in zip(told_apart(first), first.left_out, strict=True):
        yield from problems.of_parts(allocation, cells, torn_cells(allocation, cells, out) & looked.had)
    if not looked.limits.judged.any() and not first.problem:
        yield Problem(f"allocation {first.name}: no cell has a time in {FEWEST} pairs of launches: nothing can be judged", True)
    yield from problems.of_suspects(suspicions, len(both), PAIRED_STRIKES)


def _notes(both: Sequence[SideBySide], looked: _Looked, found: Sequence[Difference]) -> Iterator[str]:
    yield from (each.note for each in both if each.note)
    for each in both:
        for allocation in told_apart(each):
            if allocation.slowed:
                yield f"allocation {allocation.name} was slowed on purpose ({allocation.slowed}): this verdict says nothing of the stacks"
            if None in allocation.canary_s:
                yield f"allocation {allocation.name}: launches without a canary: the state of the machine is not known"
    if not any(change.kind in STACK for change in found):
        yield "the two stacks do not differ in anything that is recorded: this compares a stack with itself"
    judged = {cell for cell, is_judged in zip(looked.cells, looked.limits.judged, strict=True) if is_judged}
    others = [cell for cell, measured in both[0].new.cells.items() if cell not in judged and measured.time is not None]
    if others:
        yield f"{counted(len(others), 'cell')} of the new stack without the like of the old one: not judged ({names_of(others)})"
    wide = [cell for cell, limit in zip(looked.cells, np.exp(looked.limits.cells), strict=True) if cell in judged and limit > _MUCH]
    if wide:
        yield f"launches scatter so much that only a slowdown by more than 25 % is seen in {names_of(wide)}"
