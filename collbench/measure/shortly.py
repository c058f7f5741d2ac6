"""One of many measurements: a prepared cell, timed by the short protocol."""

from __future__ import annotations

from collbench.runner.one_cell import Ready, phase
from collbench.timing.budget import Budget
from collbench.timing.protocol import Measured, measure
from collbench.timing.short import short_schedule
from collbench.world.world import World


def time_shortly(ready: Ready, world: World, budget: Budget) -> Measured | None:
    """Runs the short protocol on all ranks; the result is at rank 0."""
    cell = ready.cell
    plan = short_schedule(budget, cell.size_bytes, cell.mode, ready.timed) if world.rank == 0 else None
    with phase(ready, world, "measuring"), world.patient(budget.max_time_s):
        return measure(ready.loop, world, plan, cell.title())
