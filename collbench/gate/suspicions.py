"""What exceeds its limit in the first allocation, and what the later ones say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def suspicions_of(limits: Limits, excess: Excess, cells: Sequence[Cell], strikes: int = STRIKES) -> list[Suspicion]:
    """Everything that exceeded its limit in the first allocation, the surest and worst first; confirmed is what did in `strikes`."""
    found = []
    if excess.whole_over[0]:
        found.append(_suspicion(("whole", "all cells"), excess.whole, excess.whole_over, limits.whole, strikes))
    for number in map(int, np.flatnonzero(excess.groups_over[0])):
        name = ("group", str(limits.scheme.groups[number]))
        found.append(_suspicion(name, excess.groups[:, number], excess.groups_over[:, number], limits.groups[number], strikes))
    for number in map(int, np.flatnonzero(excess.cells_over[0])):
        name = ("cell", name_of(cells[number]))
        one = _suspicion(name, excess.cells[:, number], excess.cells_over[:, number], limits.cells[number], strikes)
        found.append(replace(one, cell=dict(zip(COLUMNS, cells[number], strict=True))))
    return sorted(found, key=lambda each: (_ORDER.index(each.state), -max(factor for factor in each.factors if factor is not None)))


def _suspicion(name: tuple[str, str], factors: Figures, over: Mask, limit: float, strikes: int) -> Suspicion:
    told = tuple(float(factor) if np.isfinite(factor) else None for factor in factors)
    measured = [bool(each) for each, factor in zip(over, told, strict=True) if factor is not None]
    state = CLEARED if not all(measured) else CONFIRMED if len(measured) >= strikes else SUSPECTED
    return Suspicion(*name, {}, told, float(np.exp(limit)), state)
