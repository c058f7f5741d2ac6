"""What else has to be known of a verdict: it decides nothing, but whoever reads the verdict should not have to find out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collbench.gate.allocation import COLUMNS, Allocation, Cell
from collbench.gate.baseline import Baseline, of_one_job
from collbench.gate.confirm import NO_KEY, can_be_named
from collbench.gate.names import counted, names_of
from collbench.gate.rule import Excess, Limits, Mask
from collbench.gate.unstable import FEWEST_LAUNCHES
from collbench.gate.verdict import SUSPECTED

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
