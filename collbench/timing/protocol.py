"""How many times a cell is run: budget first, then warm-up until it settles, then until the median is known well enough.

Rank 0 decides between looks and tells the others; every rank keeps its own samples and sends them after each look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collbench.stats.median import median
from collbench.timing.budget import Budget
from collbench.timing.loop import Loop
from collbench.world.world import World

MOST_SAMPLES = 3000
MOST_WARMUPS = 300
FEW = 60  # fewer samples than these are flagged
_PIPELINE = 20  # iterations a stamp pair spans when pipelined or batched: nccl-tests' -n 20
_GROWTH = 1.5
_FEWEST = 12  # batches that fit into the budget: two windows of 3 and a first look of 6
Samples = NDArray[np.float64]


@dataclass
class Measured:
    """What rank 0 has of a cell: seconds [timed and untimed ranks × n] per iteration, and how the measurement went."""

    samples: Samples
    target: float
    reached: bool | None = None
    warmups: int = 0
    batch: int = 1
    flags: list[str] = field(default_factory=list)


Look = tuple[int, int]  # samples, iterations per sample
Plan = Generator[Look, Samples, Measured]


def measure(loop: Loop, world: World, plan: Plan | None, what: str) -> Measured | None:
    """Runs a plan on all ranks; rank 0 (which has the plan) gets the result, the others None."""
    look: Look | None = next(plan) if plan else None
    while True:
        count, batch = world.decide(look or (0, 0), what)
        if count == 0:
            return None
        arrays = world.gather_array(loop.run(count, batch) / batch, what)
        if plan is None or arrays is None:
            continue
        try:
            look = plan.send(np.concatenate(arrays))
        except StopIteration as stop:
            world.decide((0, 0), what)
            result: Measured = stop.value
            return result


def schedule(budget: Budget, size_bytes: int, mode: str, timed: list[int], now: Callable[[], float] = time.monotonic) -> Plan:
    """Rank 0's plan as a generator: yields looks, is sent their samples [ranks × n], returns what was measured."""
    began = now()
    first = yield 1, 1
    once = max(float(np.max(first[timed])), now() - began, 1e-7)
    batch = 1 if mode == "isolated" else max(1, min(_PIPELINE, int(budget.max_time_s / _FEWEST / once)))
    measured = Measured(np.empty((len(first), 0)), budget.target(size_bytes), batch=batch)
    yield from _warm_up(budget, once, batch, timed, measured)
    yield from _sample(budget, began, timed, measured, now)
    return measured


def _warm_up(budget: Budget, once: float, batch: int, timed: list[int], measured: Measured) -> Generator[Look, Samples, None]:
    """Windows until two in a row agree (medians within 2 %, quartiles within 5 %), the cap, or a quarter of the budget."""
    if budget.warmup is not None:
        if budget.warmup > 1:  # the first call was one already
            yield budget.warmup - 1, 1
        measured.warmups = budget.warmup
        return
    spent, before = once, None
    window = _clamp(budget.max_time_s / (5 * once * batch), 3, 20)
    while measured.warmups < MOST_WARMUPS and spent < budget.max_time_s / 4:
        series = _slowest((yield window, batch), timed)
        measured.warmups += window
        spent += float(series.sum()) * batch
        window = _clamp(budget.max_time_s / (5 * float(np.median(series)) * batch), 3, 20)
        if before is not None and _alike(before, series):
            return
        before = series
    measured.flags.append("warmup_unsettled")


def _alike(a: Samples, b: Samples) -> bool:
    middle, quartiles = 0.02, 0.05
    (a1, a2, a3), (b1, b2, b3) = np.quantile(a, [0.25, 0.5, 0.75]), np.quantile(b, [0.25, 0.5, 0.75])
    return bool(abs(a2 - b2) <= middle * b2 and abs(a1 - b1) <= quartiles * b1 and abs(a3 - b3) <= quartiles * b3)


def _sample(budget: Budget, began: float, timed: list[int], measured: Measured, now: Callable[[], float]) -> Generator[Look, Samples, None]:
    """Looks, each half as large again in all, until the interval is narrow enough, the cap, or the budget's end."""
    look, ending = 6, began + budget.max_time_s
    look = budget.iterations or look
    while True:
        started = now()
        part = yield look, measured.batch
        each = max((now() - started) / look, 1e-7)
        measured.samples = np.concatenate([measured.samples, part], axis=1)
        n = measured.samples.shape[1]
        if budget.iterations:
            break
        known = median(_slowest(measured.samples, timed)).half_width
        measured.reached = known is not None and known <= measured.target
        affordable = int((ending - now()) / each)
        if (measured.reached and n >= FEW) or n >= MOST_SAMPLES or affordable < 1:
            break
        wanted = FEW - n if n < FEW else int(n * (_GROWTH - 1)) + 1
        look = max(1, min(wanted, affordable, MOST_SAMPLES - n))
    _judge(measured, budget)


def _judge(measured: Measured, budget: Budget) -> None:
    if measured.samples.shape[1] < FEW:
        measured.flags.append("few_samples")
    if measured.reached is False:
        measured.flags.append("target_missed")


def _slowest(samples: Samples, timed: list[int]) -> Samples:
    """The value of a sample: the maximum over the timed ranks."""
    value: Samples = np.max(samples[timed], axis=0)
    return value


def _clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))
