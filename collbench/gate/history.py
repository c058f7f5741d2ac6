"""How cells, groups and the whole went from allocation to allocation: when they changed, by how much, and what else changed then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp

import numpy as np

from collbench.analysis.differences import Difference
from collbench.gate.allocation import Allocation
from collbench.gate.changes import changes
from collbench.gate.scheme import Figures, known_median
from collbench.gate.series import About, sheet_of
from collbench.gate.steady import STATE, usual_canary
from collbench.gate.steps import LEAST, Step, level_starts, steps


@dataclass(frozen=True)
class Level:
    """From which allocation to which, both included, a series had which median, in ln of time."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, eq=False)
class Series:
    """One thing over all allocations.

    about   what it is of
    values  [allocations] ln of time: of a cell in seconds, of the others by how much their cells are slower than usual; NaN: not measured
    steps   in time
    floor   in ln of time: less is nobody's business
    """

    about: About
    values: Figures
    steps: tuple[Step, ...]
    floor: float

    @cached_property
    def known(self) -> list[int]:
        """The numbers of the allocations in which it was measured."""
        return [int(each) for each in np.flatnonzero(np.isfinite(self.values))]

    @cached_property
    def levels(self) -> list[Level]:
        """In time; none where it was never measured."""
        starts = level_starts(self.steps)
        ends = [*starts[1:], len(self.values)]
        levels = [Level(start, end - 1, float(known_median(self.values[start:end]))) for start, end in zip(starts, ends, strict=True)]
        return levels if self.known else []

    @property
    def trend(self) -> float | None:
        """The factor from the first level to the last: 1.05 is 5 % slower. None where it was never measured."""
        return exp(self.levels[-1].value - self.levels[0].value) if self.known else None

    @property
    def largest(self) -> float:
        """Its largest step, in ln of time, whatever its direction; 0 without any."""
        return max((abs(step.change) for step in self.steps), default=0.0)


@dataclass(frozen=True, eq=False)
class History:
    """of           what it is a history of: a folder
    allocations  in the order in which they began
    series       the whole, then groups of three cells or more, then cells, each in the order of the cells
    notes        what was left out, and what else has to be known, in sentences
    """

    of: str
    allocations: Sequence[Allocation]
    series: Sequence[Series]
    notes: Sequence[str] = ()
    _found: dict[tuple[int, int], list[Difference]] = field(default_factory=dict)

    def of_kind(self, *kinds: str) -> list[Series]:
        """The series of these kinds."""
        return [each for each in self.series if each.about.kind in kinds]

    def between(self, before: int, after: int) -> list[Difference]:
        """What changed, besides times, between two allocations."""
        if (before, after) not in self._found:
            self._found[before, after] = changes(self.allocations[before], self.allocations[after])
        return self._found[before, after]

    def state(self, step: Step) -> str:
        """ "another state of the machine (canary 65 → 260 ns)", of the allocations next to a step; "" where it is the same or not known."""
        sides = self.allocations[max(0, step.before + 1 - LEAST) : step.before + 1], self.allocations[step.at : step.at + LEAST]
        before, after = map(usual_canary, sides)
        if before is None or after is None or max(before, after) <= STATE * min(before, after):
            return ""
        return f"another state of the machine (canary {before * 1e9:.3g} → {after * 1e9:.3g} ns)"

    def missing(self, series: Series) -> str:
        """Where it was not measured: "measured since night-4; not since night-9; missing in 2 between"; "" where it always was."""
        known, names = series.known, [each.name for each in self.allocations]
        if not known:
            return "never measured"
        told = [f"measured since {names[known[0]]}"] if known[0] > 0 else []
        told += [f"not since {names[known[-1] + 1]}"] if known[-1] < len(names) - 1 else []
        gaps = known[-1] - known[0] + 1 - len(known)
        return "; ".join([*told, *([f"missing in {gaps} between"] if gaps else [])])


def history(of: str, allocations: Sequence[Allocation], notes: Sequence[str] = ()) -> History:
    """The history of allocations that are in the order in which they began."""
    sheet = sheet_of(allocations)
    found = steps(sheet.values, sheet.variance(), sheet.floors)
    parts = zip(sheet.abouts, sheet.values.T, found, sheet.floors, strict=True)
    return History(of, allocations, [Series(about, values, tuple(each), float(floor)) for about, values, each, floor in parts], notes)
