"""One of many measurements: a prepared cell, timed by the short protocol."""

from __future__ import annotations

from collbench.control.world import World
from collbench.measure.budget import Budget
from collbench.measure.one_cell import Ready, phase
from collbench.measure.protocol import Measured, measure
from collbench.measure.short import short_schedule


def time_shortly(ready: Ready, world: World, budget: Budget) -> Measured | None:
    """Runs the short protocol on all ranks; the result is at rank 0."""
    cell = ready.cell
    plan = short_schedule(budget, cell.size_bytes, cell.mode, ready.timed) if world.rank == 0 else None
    with phase(ready, world, "measuring"), world.patient(budget.max_time_s):
        return measure(ready.loop, world, plan, cell.title())
