"""The decision: a candidate's allocations against a baseline.

There is no verdict, and no pass, if the baseline is too short, the machine was in another state, a cell is missing or unstable, a launch
broke off, or software or topology changed unexpectedly. A slowdown is a regression only if it exceeds its limit in three fresh
allocations; after the first one it is a suspect. An unexpected change does not excuse a regression: the verdict names it as the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from collbench import __version__
from collbench.analysis.ceilings import CeilingChange, LinkCeiling, fallen_ceilings
from collbench.analysis.differences import Difference
from collbench.gate import notes, problems
from collbench.gate.allocation import Allocation, Cell
from collbench.gate.baseline import Baseline, fresh, scheme_of, times_of
from collbench.gate.cause import cause_of
from collbench.gate.changes import Expected, accepted, changes, expired, of_what_changed, unannounced
from collbench.gate.comparable import check, of_another_cluster
from collbench.gate.confirm import suspects
from collbench.gate.floors import Floor, floor_problems, floor_states
from collbench.gate.groups import group_states
from collbench.gate.names import names_of
from collbench.gate.plausible import ranked
from collbench.gate.problems import Problem
from collbench.gate.rule import ENOUGH, Excess, Limits, Mask, exceed, learn
from collbench.gate.steady import Steady, steady, steady_baseline, usual_canary
from collbench.gate.suspicions import suspected_cells, suspicions_of
from collbench.gate.unstable import launch_limits, unstable
from collbench.gate.verdict import CONFIRMED, PASSED, REGRESSION, UNDECIDED, WRONG_DATA, FloorState, Suspicion, Verdict


@dataclass(frozen=True, eq=False)
class Looked:
    """What the rule says of a candidate.

    cells, limits, excess  the baseline's cells, what may be by chance, and by how much each allocation exceeds it
    steady                 the candidate's allocations without launches in another state of the machine
    unstable               [allocations × cells] whose launches lie too far apart, though they do not exceed; of later ones suspects alone
    torn                   [allocations × cells] that not every launch has; of later ones what is suspected alone
    wanted                 [cells] that a candidate has to have: those with a history, and what the last good allocation has
    """

    cells: Sequence[Cell]
    limits: Limits
    excess: Excess
    steady: Sequence[Steady]
    unstable: Mask
    torn: Mask
    wanted: Mask

    @property
    def undecided(self) -> Mask:
        """[cells] that were measured, but say nothing."""
        return np.asarray((self.unstable | self.torn).any(axis=0)) | (self.steady[0].problem is not None)


def judge(
    baseline: Baseline, candidate: Sequence[Allocation], expected: Sequence[Expected], today: date, asked: Sequence[Floor] = ()
) -> Verdict:
    """The verdict on a candidate's allocations, given in the order in which they began; `asked` are floors of percent of ceiling.

    Raises UsageError where one of them is in the baseline or two are one, some are imported and others are not, or the first has no
    cell in common with it, or none that a floor is asked of.
    """
    cells = baseline.cells
    check(baseline, candidate, cells)
    learned, left_out = steady_baseline(baseline)
    looked = _look(learned, candidate, cells, usual_canary(baseline.allocations))
    found = [changes(baseline.allocations[-1], each) for each in candidate]
    happened, idle = of_what_changed(expected, candidate, baseline.allocations)
    counts = [own and one.problem is None for own, one in zip(fresh(candidate, baseline.allocations), looked.steady, strict=True)]
    suspicions = accepted(suspicions_of(looked.limits, looked.excess, cells, counts=counts), happened, today, cells)
    before = baseline.allocations[-1].ceilings
    floors = floor_states(asked, [each.allocation for each in looked.steady], before=before)
    groups = group_states(looked.limits, looked.excess, cells, suspicions, looked.undecided)
    cause = cause_of(suspicions, groups, cells) if counts[0] else None  # another state of the machine slows as it likes
    wrong = list(wrong_data(candidate))
    against = [
        *problems.of_history(baseline, learned, looked.limits),
        *problems.of_clocks(baseline, candidate, today),
        *problems.of_jobs(baseline, candidate),
        *_of_changes(baseline, candidate, [unannounced(each, expected, today) for each in found]),
        *_of_figures(candidate, looked, suspicions),
        *map(Problem, floor_problems(floors)),
    ]
    verdict = Verdict(
        result=WRONG_DATA if wrong else result_of(against, suspicions, floors),
        mode="baseline",
        reasons=(*wrong, *(problem.sentence for problem in against)),
        notes=(*left_out, *_notes(baseline, candidate, looked), *expired(expected, today), *idle),
        suspicions=tuple(suspicions),
        groups=tuple(groups),
        floors=tuple(floors),
        asked=tuple(each.asked for each in asked),
        ceilings=fallen_since(before, candidate),
        cause=cause,
        changes=tuple(ranked(_all(found), expected, today, suspicions, cause, groups=groups)),
        baseline=str(baseline.path),
        allocations=len(learned.allocations),
        thin=len(learned.allocations) < ENOUGH,
        candidates=tuple(each.name for each in candidate),
        cells=int(looked.limits.judged.sum()),
        judged_on=today.isoformat(),
        collbench=__version__,
    )
    return replace(verdict, notes=(*verdict.notes, *notes.of_confirming(suspects(verdict, cells))))


def _look(learned: Baseline, candidate: Sequence[Allocation], cells: Sequence[Cell], usual: float | None) -> Looked:
    limits = learn(times_of(learned.allocations, cells), scheme_of(cells))
    calm = [steady(each, usual) for each in candidate]
    excess = exceed(limits, times_of([each.allocation for each in calm], cells))
    allowed = launch_limits(learned.allocations, cells, limits)
    scattered = np.array([unstable(each.allocation, cells, allowed) for each in calm]) & limits.judged & ~excess.cells_over
    scattered[1:] &= excess.cells_over[0]
    torn = np.array([problems.torn_cells(each, cells, one.left_out) for each, one in zip(candidate, calm, strict=True)]) & limits.judged
    torn[1:] &= suspected_cells(limits, excess)
    wanted = limits.judged | np.isfinite(times_of(learned.allocations[-1:], cells)).any(axis=0)
    return Looked(cells, limits, excess, calm, scattered, torn, wanted)


def fallen_since(before: Sequence[LinkCeiling], candidate: Sequence[Allocation]) -> tuple[CeilingChange, ...]:
    """Return the ceilings that are lower in an allocation of the candidate than in the baseline, each once."""
    return tuple(dict.fromkeys(change for each in candidate for change in fallen_ceilings(before, each.ceilings)))


def _of_changes(baseline: Baseline, candidate: Sequence[Allocation], found: Sequence[Sequence[Difference]]) -> Iterator[Problem]:
    """`found`: by allocation the unexpected changes."""
    pairs = zip(candidate, found, strict=True)
    elsewhere = next((told for each, changed in pairs if (told := of_another_cluster(baseline, each, changed))), None)
    if elsewhere is not None:
        yield Problem(elsewhere, True)
    yield from problems.of_changes(_all(found), blocks=False)


def _all(found: Sequence[Sequence[Difference]]) -> list[Difference]:
    return list(dict.fromkeys(each for of_one in found for each in of_one))


def _of_figures(candidate: Sequence[Allocation], looked: Looked, suspicions: Sequence[Suspicion]) -> Iterator[Problem]:
    """What keeps the figures themselves from passing."""
    cells, first = looked.cells, looked.steady[0].allocation
    yield from (Problem(each.problem, True) for each in looked.steady if each.problem)
    yield from problems.of_launches(candidate)
    yield from problems.of_missing(first, cells, looked.wanted)
    for each, torn, unstable_ones in zip(looked.steady, looked.torn, looked.unstable, strict=True):
        yield from problems.of_parts(each.allocation, cells, torn)
        yield from problems.of_scatter(each.allocation, cells, unstable_ones)
    yield from problems.of_suspects(suspicions, len(candidate))


def _notes(baseline: Baseline, candidate: Sequence[Allocation], looked: Looked) -> Iterator[str]:
    yield from (each.note for each in looked.steady if each.note)
    yield from notes.of_candidate(baseline, candidate)
    yield from notes.of_cells(candidate[0], looked.cells, looked.limits.judged)
    yield from notes.of_unchecked(candidate)
    yield from notes.of_later(looked.limits, looked.excess, looked.cells, [each.name for each in candidate])


def result_of(against: Sequence[Problem], suspicions: Sequence[Suspicion], floors: Sequence[FloorState]) -> str:
    """What is confirmed of a floor is, whatever else is not known: it needs no history, and nothing to be compared with."""
    if any(each.state == CONFIRMED for each in floors):
        return REGRESSION
    if any(problem.blocks for problem in against):
        return UNDECIDED
    if any(each.state == CONFIRMED for each in suspicions):
        return REGRESSION
    return UNDECIDED if against else PASSED


def wrong_data(candidate: Sequence[Allocation]) -> Iterator[str]:
    """A sentence for each allocation in which something arrived that was not sent."""
    for each in candidate:
        cells = [cell for cell, measured in each.cells.items() if measured.wrong]
        if cells:
            yield f"allocation {each.name}: what arrived is not what was sent in {names_of(cells)}"
