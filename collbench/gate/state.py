"""The machine's state. Launches during which it was in another one (the canary says so) are left out, of a baseline and of candidates.

A cache line between two cores takes 65 or 260 ns on one machine, and flips by itself: no figure of such a launch is comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np

from collbench.analysis.launches import known
from collbench.gate.allocation import Allocation, CaseTimes, Cell, Shown, median_of
from collbench.gate.baseline import Baseline, Figures, Scheme, known_median, seconds_of
from collbench.gate.reasons import AllocationStateChanged, LaunchesLeftOut, LaunchesNeeded
from collbench.gate.rule import BaselineLimits, Mask

# Unstable cells: launches of one allocation lie so far apart that their median says nothing.
#
# Launches of a cell may scatter as they did in the baseline. Unstable is a cell all but one of whose launches (of many: all but a fifth)
# lie further from their median than 10 %, than twice the baseline's launches from its centre (all but one, or a twentieth), and than twice
# what is usual for its backend and class of sizes (the 95 % quantile over cells): so a cell with two modes that the baseline, by chance,
# saw in one of them only is not called unstable while its like have two. What rows say of themselves (`two_modes`, `drift`) decides
# nothing: it is within a launch, and the baseline's rows say it as often.
#
# Simulated with the noise of `gate.noise` (336 cells, a tenth of them with two modes): of gates where nothing changed about 1 in 70 had an
# unstable cell with a baseline of six allocations, 1 in 30 with one of four; a large cell that came to be slower by 20 % in two of five
# launches was called unstable in 97 %.

FEWEST_LAUNCHES = 3  # of fewer it is not known how they scatter
_FLOOR = float(np.log1p(0.10))
_TIMES, _OF_ITS_LIKE = 2.0, 0.95
_BASELINE_SHARE, _SHARE = 0.05, 0.20  # of the launches that may lie anywhere, at least one


def launch_limits(allocations: Sequence[Allocation], cells: Sequence[Cell], limits: BaselineLimits) -> Figures:
    """[cells] how far from their median a candidate's launches may lie, in ln of time; `allocations` are the baseline's."""
    launches = np.hstack([_logs(each, cells) for each in allocations])
    own = _all_but(np.abs(launches - limits.centre[:, None]), _BASELINE_SHARE, 1)
    return np.maximum(_FLOOR, _TIMES * np.fmax(np.nan_to_num(own), _of_its_like(own, limits.scheme)))


def unstable(allocation: Allocation, cells: Sequence[Cell], allowed: Figures) -> Mask:
    """[cells] whose launches lie further apart than is allowed."""
    launches = _logs(allocation, cells)
    apart = _all_but(np.abs(launches - known_median(launches)[:, None]), _SHARE, FEWEST_LAUNCHES)
    with np.errstate(invalid="ignore"):
        found: Mask = apart > allowed
    return found


def _logs(allocation: Allocation, cells: Sequence[Cell]) -> Figures:
    found: Figures = np.log(seconds_of(allocation, cells))
    return found


def _all_but(distances: Figures, share: float, fewest: int) -> Figures:
    """[cells] the largest of [cells × launches] that are known, but for one or that share of them; NaN of fewer than `fewest`."""
    ordered = np.sort(distances, axis=1)  # NaN comes last
    counts = np.isfinite(distances).sum(axis=1)
    places = np.maximum(counts - 1 - np.maximum(1, (counts * share).astype(np.int64)), 0)
    picked = np.take_along_axis(ordered, places[:, None], axis=1)[:, 0]
    return np.where(counts >= fewest, picked, np.nan)


def _of_its_like(own: Figures, scheme: Scheme) -> Figures:
    """[cells] what is usual for the cell's backend and class of sizes, all operations together; 0 where nothing is known."""
    found = np.zeros(len(own))
    names = [(group.backend, group.size_class) for group in scheme.groups]
    for backend, size in dict.fromkeys(names):
        groups = [number for number, name in enumerate(names) if name == (backend, size)]
        like = np.isin(scheme.of, groups) & np.isfinite(own)
        found[np.isin(scheme.of, groups)] = np.quantile(own[like], _OF_ITS_LIKE) if like.any() else 0.0
    return found


STATE = 1.20  # a canary that is further off belongs to another state of the machine
MOST_FLIPPED = 2  # launches of an allocation that may be left out, and replaced by others
LEAST_LEFT = 3  # of an allocation of which some were left out: the median of fewer follows a single one


@dataclass(frozen=True)
class Steady:
    """allocation  without the launches that were left out
    problem     why it cannot be judged; None: it can
    note        what was left out; None: nothing
    left_out    by launch
    """

    allocation: Allocation
    problem: LaunchesNeeded | AllocationStateChanged | None = None
    note: LaunchesLeftOut | None = None
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
    more = max(LEAST_LEFT, count + 1) - left
    if count > MOST_FLIPPED or (more > 0 and not left):
        return _refused(allocation, AllocationStateChanged(allocation.name, count, len(out)))
    if more > 0:
        return _refused(allocation, LaunchesNeeded(allocation.name, count, len(out), more))
    return Steady(without(allocation, out), None, LaunchesLeftOut(allocation.name, count, len(out)), tuple(out))


def _refused(allocation: Allocation, problem: LaunchesNeeded | AllocationStateChanged) -> Steady:
    return Steady(allocation, problem, left_out=(False,) * len(allocation.canary_s))


def steady_baseline(baseline: Baseline) -> tuple[Baseline, list[LaunchesLeftOut]]:
    """Return the baseline to learn from, without launches in another state and allocations of such alone; and what was left out."""
    usual, notes = usual_canary(baseline.allocations), list[LaunchesLeftOut]()
    kept: list[Allocation] = []
    for each in baseline.allocations:
        out = flipped(each, usual)
        if any(out):
            notes.append(LaunchesLeftOut(each.name, sum(out), len(out), "baseline"))
        if not all(out):
            kept.append(without(each, out) if any(out) else each)
    return replace(baseline, allocations=kept), notes


def _without(measured: CaseTimes, left_out: Sequence[bool]) -> CaseTimes:
    return measured._replace(medians_s=tuple(None if out else value for value, out in zip(measured.medians_s, left_out, strict=True)))


def _shown_without(shown: Shown, left_out: Sequence[bool]) -> Shown:
    """The share of the ceiling is not known where a launch that counts has none."""
    if shown.percent is None or len(shown.percents) != len(left_out):
        return shown
    left = tuple(None if out else share for share, out in zip(shown.percents, left_out, strict=True))
    return shown._replace(percent=median_of(left), percents=left)
