"""An old and a new stack in one allocation, their launches by turns: read, put in pairs, and whether they really were side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from collbench.analysis.launches import check_once, launch_folders
from collbench.errors import UsageError
from collbench.gate.allocation import Allocation, Cell, allocations_in, moment
from collbench.gate.baseline import seconds_of
from collbench.gate.by_turns import PAIRS
from collbench.gate.names import counted
from collbench.gate.scheme import Figures, Numbers
from collbench.gate.steady import MOST_FLIPPED, flipped, usual_canary, without
from collbench.results.folder import CELLS, RUN
from collbench.results.reader import Run
from collbench.results.store import read_object

_BY_TURNS = "start a launch of the old stack and one of the new, then the next two, in the same job"
Starts = Sequence[datetime | None]


@dataclass(frozen=True, eq=False)
class SideBySide:
    """An allocation with both stacks.

    old, new    without the launches that were left out
    order       [2 × pairs] the numbers of the launches that form a pair: of the old stack, of the new one
    left_out    by launch of the old stack and of the new one, whether its pair does not count
    problem     why nothing can be judged by it, a sentence; None: it can. note: what was left out; None: nothing
    """

    old: Allocation
    new: Allocation
    order: Numbers
    left_out: tuple[Sequence[bool], Sequence[bool]]
    problem: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The allocation's."""
        return self.new.name

    def differences(self, cells: Sequence[Cell]) -> Figures:
        """[pairs × cells] ln of new over old; NaN where a launch of the pair has no time, or the pair does not count."""
        old, new = (np.log(seconds_of(each, cells)).T[numbers] for each, numbers in zip((self.old, self.new), self.order, strict=True))
        found: Figures = new - old
        return found


def side_by_side(old: Sequence[Path], new: Sequence[Path]) -> list[SideBySide]:
    """Those at one place of the two lists are one allocation's folders of launches; in the order in which they are named.

    Raises UsageError where a launch is named twice, cannot be read, or a folder holds launches of several allocations, and where two
    places name one allocation.
    """
    launches = {path: _launches(path) for path in (*old, *new)}
    check_once(run for path in (*old, *new) for run in launches[path])
    found = [_of_allocation((a, b), (launches[a], launches[b])) for a, b in zip(old, new, strict=True)]
    twice = next((each for place, each in enumerate(found) if each.name in {one.name for one in found[:place]}), None)
    if twice is not None:
        raise UsageError(
            f"--paired: allocation {twice.name} is named twice: the second one has to be fresh; all its launches go in one folder"
        )
    return found


def _launches(path: Path) -> list[Run]:
    """Each launch's run.json alone, in the order in which an allocation has them."""
    folders = [] if any((path / name).exists() for name in (RUN, CELLS)) else launch_folders(path)
    return [Run(folder, _info(folder)) for folder in folders or [path]]


def _info(folder: Path) -> dict[str, Any]:
    """What cannot be read says nothing here: reading the run whole says why."""
    try:
        return read_object(folder / RUN)
    except (OSError, ValueError):
        return {}


def _of_allocation(paths: tuple[Path, Path], launches: tuple[Sequence[Run], Sequence[Run]]) -> SideBySide:
    starts = [[moment(run.info.get("started_utc")) for run in runs] for runs in launches]
    return in_pairs(_one(paths[0]), _one(paths[1]), starts[0], starts[1])


def in_pairs(old: Allocation, new: Allocation, old_starts: Starts, new_starts: Starts) -> SideBySide:
    """Two stacks' launches of one allocation, and when each began, in the order in which the allocation has them."""
    why = _why_not_one(old, new) or _why_not_by_turns(old_starts, new_starts)
    if why:
        left_out = [True] * old.launches, [True] * new.launches
        return SideBySide(old, new, np.zeros((2, 0), np.int64), left_out, f"allocation {new.name}: {why}")
    return _steady(old, new, np.array([_in_time(each) for each in (old_starts, new_starts)]))


def _one(path: Path) -> Allocation:
    found = allocations_in([path])
    if len(found) > 1:
        names = f"{found[0].name}, {found[1].name}{' …' if len(found) > 2 else ''}"
        raise UsageError(
            f"--paired: {path} holds launches of {len(found)} allocations ({names}): name a folder for each allocation and stack"
        )
    return found[0]


def _why_not_one(old: Allocation, new: Allocation) -> str | None:
    """Why two folders are not of one allocation."""
    if old.name != new.name:
        return f"the old stack's launches are of {old.name}: both have to be of one allocation (--allocation NAME)"
    hosts = [each.facts.get("hosts", {}).get("names") for each in (old, new)]
    if hosts[0] != hosts[1]:
        return f"the old stack ran on {hosts[0] or 'unknown nodes'}, the new one on {hosts[1] or 'unknown nodes'}: {_BY_TURNS}"
    return None


def _why_not_by_turns(old: Starts, new: Starts) -> str | None:
    """Both launches of a pair have to begin before any of the next pair: else what changes with time looks like a difference."""
    if len(old) != len(new):
        launches = f"{counted(len(old), 'launch')} of the old stack and {counted(len(new), 'launch')} of the new"
        return f"{launches}: each needs one of the other stack beside it"
    if None in old or None in new:
        return f"a launch does not say when it began, so it is not known whether the stacks took turns: {_BY_TURNS}"
    pairs = list(zip(*(sorted(each for each in starts if each) for starts in (old, new)), strict=True))
    if any(max(pair) >= min(following) for pair, following in pairwise(pairs)):
        return f"the stacks were not side by side: their launches do not take turns; {_BY_TURNS}"
    return None


def _in_time(starts: Starts) -> list[int]:
    known = [each for each in starts if each is not None]
    return sorted(range(len(known)), key=known.__getitem__)


def _steady(old: Allocation, new: Allocation, order: Numbers) -> SideBySide:
    """Without pairs in one of whose launches the machine was in another state."""
    usual = usual_canary([old, new])
    each_out = [np.array(flipped(each, usual))[numbers] for each, numbers in zip((old, new), order, strict=True)]
    out = each_out[0] | each_out[1]
    left = int((~out).sum())
    by_launch = [[bool(out[place]) for place in np.argsort(numbers)] for numbers in order]
    told, problem, note = f"allocation {new.name}: ", None, None
    if out.any():
        state = f"the machine was in another state in {out.sum()} of {counted(len(out), 'pair')} of launches (canary more than 20 % off)"
        note = f"{told}{state}: left out"
        if out.sum() > MOST_FLIPPED:
            problem = f"{told}{state}; measure a fresh one when it is quiet"
    if left < PAIRS and problem is None:
        problem = f"{told}{counted(left, 'pair')} of launches, and {PAIRS} are needed: measure {counted(PAIRS - left, 'pair')} more in it"
    kept = [without(each, mask) if out.any() else each for each, mask in zip((old, new), by_launch, strict=True)]
    return SideBySide(kept[0], kept[1], order, (by_launch[0], by_launch[1]), problem, None if problem else note)


def told_apart(each: SideBySide) -> tuple[Allocation, Allocation]:
    """Both allocations, under names that sentences can tell apart."""
    return replace(each.old, name=f"{each.old.name} (old stack)"), replace(each.new, name=f"{each.new.name} (new stack)")
