"""What exceeds its limit in the first allocation, and what the later ones say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collbench.gate.allocation import COLUMNS, Cell
from collbench.gate.names import name_of
from collbench.gate.rule import STRIKES, Excess, Limits, Mask
from collbench.gate.scheme import Figures
from collbench.gate.verdict import CLEARED, CONFIRMED, SUSPECTED, Suspicion

_ORDER = (CONFIRMED, SUSPECTED, CLEARED)


def suspected_cells(limits: Limits, excess: Excess) -> Mask:
    """[cells] that exceed in the first allocation, be it alone, with their group or with all."""
    groups = excess.groups_over[0][limits.scheme.of]
    return np.asarray(excess.cells_over[0] | groups | bool(excess.whole_over[0]))


def suspicions_of(
    limits: Limits, excess: Excess, cells: Sequence[Cell], strikes: int = STRIKES, counts: Sequence[bool] | None = None
) -> list[Suspicion]:
    """Everything that exceeded its limit in the first allocation, the surest and worst first; confirmed is what did in `strikes`.

    `counts`: of each allocation whether it says anything, as all do where that is None. One measured in another state of the machine
    neither confirms nor clears.
    """
    found = []
    rule = _Strikes(strikes, [True] * len(excess.whole) if counts is None else counts)
    if excess.whole_over[0]:
        found.append(_suspicion(("whole", "all cells"), excess.whole, excess.whole_over, limits.whole, rule))
    for number in map(int, np.flatnonzero(excess.groups_over[0])):
        name = ("group", str(limits.scheme.groups[number]))
        found.append(_suspicion(name, excess.groups[:, number], excess.groups_over[:, number], limits.groups[number], rule))
    for number in map(int, np.flatnonzero(excess.cells_over[0])):
        name = ("cell", name_of(cells[number]))
        one = _suspicion(name, excess.cells[:, number], excess.cells_over[:, number], limits.cells[number], rule)
        found.append(replace(one, cell=dict(zip(COLUMNS, cells[number], strict=True))))
    return sorted(found, key=lambda each: (_ORDER.index(each.state), -max(factor for factor in each.factors if factor is not None)))


@dataclass(frozen=True)
class _Strikes:
    """How many make a regression, and of each allocation whether it says anything."""

    wanted: int
    counts: Sequence[bool]

    def state(self, factors: Sequence[float | None], over: Mask) -> str:
        """Of what exceeded in the first allocation, by its factors and whether it exceeded in each."""
        told = zip(factors, over, self.counts, strict=True)
        measured = [bool(exceeds) for factor, exceeds, counts in told if factor is not None and counts]
        return CLEARED if not all(measured) else CONFIRMED if len(measured) >= self.wanted else SUSPECTED


def _suspicion(name: tuple[str, str], factors: Figures, over: Mask, limit: float, strikes: _Strikes) -> Suspicion:
    told = tuple(float(factor) if np.isfinite(factor) else None for factor in factors)
    return Suspicion(*name, {}, told, float(np.exp(limit)), strikes.state(told, over))
