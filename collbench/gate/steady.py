"""The machine's state. Launches during which it was in another one (the canary says so) are left out, of a baseline and of candidates.

A cache line between two cores takes 65 or 260 ns on one machine, and flips by itself: no figure of such a launch is comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from collbench.analysis.launches import known
from collbench.gate.allocation import Allocation, Measured, Shown, median_of
from collbench.gate.baseline import Baseline
from collbench.gate.names import counted

STATE = 1.20  # a canary that is further off belongs to another state of the machine
MOST_FLIPPED = 2  # launches of an allocation that may be left out, and replaced by others
_OFF, _OFF_USUAL = "canary more than 20 % off the baseline's", "canary more than 20 % off the others'"
LEAST_LEFT = 3  # of an allocation of which some were left out: the median of fewer follows a single one


@dataclass(frozen=True)
class Steady:
    """allocation  without the launches that were left out
    problem     why it cannot be judged, a sentence; None: it can
    note        what was left out, a sentence; None: nothing
    left_out    by launch
    """

    allocation: Allocation
    problem: str | None = None
    note: str | None = None
    left_out: tuple[bool, ...] = ()


def usual_canary(allocations: Sequence[Allocation]) -> float | None:
    """The median over all launches, in seconds, one of them; None where none has a canary."""
    heard = [value for each in allocations for value in each.canary_s if value is not None and known(value)]
    return median_low(heard) if heard else None


def flipped(allocation: Allocation, usual: float | None) -> list[bool]:
    """Of each launch whether the machine was in another state than usual; nothing is said of one without a canary."""
    return [
        usual is not None and value is not None and known(value) and max(value, usual) > STATE * min(value, usual)
        for value in allocation.canary_s
    ]


def without(allocation: Allocation, left_out: Sequence[bool]) -> Allocation:
    """The allocation as if these launches had measured nothing; what was wrong in them stays wrong."""
    cells = {cell: _without(each, left_out) for cell, each in allocation.cells.items()}
    shown = {cell: _shown_without(each, left_out) for cell, each in allocation.shown.items()}
    return replace(allocation, cells=cells, shown=shown)


def steady(allocation: Allocation, usual: float | None) -> Steady:
    """A candidate without its flipped launches; with a problem where more flipped than may be replaced, or too few are left."""
    out = flipped(allocation, usual)
    count, left = sum(out), len(out) - sum(out)
    if not count:
        return Steady(allocation, left_out=tuple(out))
    what = f"allocation {allocation.name}: the machine was in another state in {count} of {counted(len(out), 'launch')}"
    if count > MOST_FLIPPED:
        return _refused(allocation, f"{what} ({_OFF}); measure a fresh one when it is quiet")
    more = max(LEAST_LEFT, count + 1) - left
    if more > 0:
        how = f"measure {counted(more, 'launch')} more in it, and name them too" if left else "measure a fresh one when it is quiet"
        return _refused(allocation, f"{what} ({_OFF}), and {counted(left, 'launch')} left; {how}")
    return Steady(without(allocation, out), None, f"{what} ({_OFF}): left out", tuple(out))


def _refused(allocation: Allocation, problem: str) -> Steady:
    return Steady(allocation, problem, left_out=(False,) * len(allocation.canary_s))


def steady_baseline(baseline: Baseline) -> tuple[Baseline, list[str]]:
    """The baseline to learn from, without flipped launches and allocations that had no others; and what was left out, a sentence each."""
    usual, kept, notes = usual_canary(baseline.allocations), [], []
    for each in baseline.allocations:
        out = flipped(each, usual)
        if any(out):
            what = f"in {sum(out)} of {counted(len(out), 'launch')} ({_OFF_USUAL}): left out"
            notes.append(f"baseline, {each.name}: the machine was in another state {what}")
        if not all(out):
            kept.append(without(each, out) if any(out) else each)
    return replace(baseline, allocations=kept), notes


def _without(measured: Measured, left_out: Sequence[bool]) -> Measured:
    return measured._replace(medians_s=tuple(None if out else value for value, out in zip(measured.medians_s, left_out, strict=True)))


def _shown_without(shown: Shown, left_out: Sequence[bool]) -> Shown:
    """The share of the ceiling is not known where a launch that counts has none."""
    if shown.percent is None or len(shown.percents) != len(left_out):
        return shown
    left = tuple(None if out else share for share, out in zip(shown.percents, left_out, strict=True))
    return shown._replace(percent=median_of(left), percents=left)
