"""The state of every group, good ones too: what JUnit, Markdown and the page have a line for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collbench.analysis.outcome import Outcome, count, outcome_by_limit
from collbench.gate.allocation import Cell
from collbench.gate.baseline import group_of_cell
from collbench.gate.names import name_of
from collbench.gate.rule import Excess, Limits, Mask
from collbench.gate.scheme import Figures, Group, Numbers
from collbench.gate.verdict import CONFIRMED, PASSED, SUSPECTED, UNDECIDED, GroupState, Suspicion


@dataclass(frozen=True)
class _Looked:
    """Everything that a group's state is made from."""

    limits: Limits
    excess: Excess
    cells: Sequence[Cell]
    suspicions: Sequence[Suspicion]
    undecided: Mask

    @cached_property
    def states(self) -> dict[Cell, str]:
        """The state of each cell that exceeded its limit."""
        return {tuple(each.cell.values()): each.state for each in self.suspicions if each.kind == "cell"}

    @cached_property
    def open_groups(self) -> set[str]:
        """The names of the groups, and of the whole, that are slower or may be."""
        return {each.name for each in self.suspicions if each.kind != "cell" and each.state in (CONFIRMED, SUSPECTED)}


def group_states(
    limits: Limits, excess: Excess, cells: Sequence[Cell], suspicions: Sequence[Suspicion], undecided: Mask | None = None
) -> list[GroupState]:
    """One for each group that has a cell with a history, in the order of the baseline's cells.

    undecided  [cells] that were measured, but say nothing: unstable, or not in every launch; None: no cell
    """
    looked = _Looked(limits, excess, cells, suspicions, np.zeros(len(cells), dtype=np.bool_) if undecided is None else undecided)
    judged = [members[limits.judged[members]] for members in limits.scheme.members]
    return [_state(number, each, looked) for number, each in enumerate(judged) if len(each)]


def _state(number: int, judged: Numbers, looked: _Looked) -> GroupState:
    limits, group = looked.limits, looked.limits.scheme.groups[number]
    first = looked.excess.cells[0, judged]
    missing = int((~np.isfinite(first)).sum())
    worst = _worst(first, limits.cells[judged])
    state = _result(missing > 0 or bool(looked.undecided[judged].any()), list(_of_group(group, looked.suspicions)))
    outcomes = count(_of_cell(int(cell), looked) for cell in judged)
    return GroupState(
        *group,
        name=str(group),
        cells=len(judged),
        missing=missing,
        factors=tuple(map(_known, looked.excess.groups[:, number])),
        limit=_known(float(np.exp(limits.groups[number]))),
        worst=None if worst is None else name_of(looked.cells[int(judged[worst])]),
        worst_factor=None if worst is None else float(first[worst]),
        worst_limit=None if worst is None else _known(float(np.exp(limits.cells[judged[worst]]))),
        state=state,
        outcome=_of_whole_group(number, state, outcomes, looked).value,
        outcomes={each.value: number for each, number in outcomes.items()},
    )


def _of_cell(cell: int, looked: _Looked) -> Outcome:
    """Return the outcome of one cell. What has to be measured again is inconclusive, and so is a cell of a group that is slower."""
    state = looked.states.get(looked.cells[cell])
    if state == CONFIRMED:
        return Outcome.SLOWER
    if state == SUSPECTED or looked.undecided[cell]:
        return Outcome.INCONCLUSIVE
    own = outcome_by_limit(map(_known, looked.excess.cells[:, cell]), _known(float(np.exp(looked.limits.cells[cell]))))
    with_others = {"all cells", str(group_of_cell(looked.cells[cell]))} & looked.open_groups
    return Outcome.INCONCLUSIVE if own is Outcome.NO_CHANGE and with_others else own


def _of_whole_group(number: int, state: str, outcomes: Mapping[Outcome, int], looked: _Looked) -> Outcome:
    """Return the outcome of a group: by its own limit, or where it is too small for one, that of all its cells."""
    if state == CONFIRMED:
        return Outcome.SLOWER
    if state != PASSED:
        return Outcome.INCONCLUSIVE
    limit = _known(float(np.exp(looked.limits.groups[number])))
    if limit is not None:
        return outcome_by_limit(map(_known, looked.excess.groups[:, number]), limit)
    there = [outcome for outcome, cells in outcomes.items() if cells]
    return there[0] if len(there) == 1 else Outcome.INCONCLUSIVE


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _worst(factors: Figures, limits: Figures) -> int | None:
    """The place of what is nearest to its limit, or furthest above it; None where nothing was measured."""
    known = np.isfinite(factors)
    return int(np.argmax(np.where(known, np.log(factors) - limits, -np.inf))) if known.any() else None


def _of_group(group: Group, suspicions: Sequence[Suspicion]) -> Iterator[str]:
    for each in suspicions:
        if each.kind == "group" and each.name == str(group):
            yield each.state
        if each.kind == "cell" and group_of_cell(tuple(each.cell.values())) == group:
            yield each.state


def _result(unknown: bool, states: Sequence[str]) -> str:
    if CONFIRMED in states:
        return CONFIRMED
    if SUSPECTED in states:
        return SUSPECTED
    return UNDECIDED if unknown else PASSED
