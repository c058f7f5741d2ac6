"""How many times one of many short measurements is run: as in `timing.protocol`, but in few looks.

Each look costs a word from rank 0 to all ranks and an answer of each: with a thousand ranks, or where they share few cores, as much as
all samples of a ping-pong. So what a look costs besides its samples is reckoned apart, warm-up is a fixed number of calls, and the
samples are taken in two looks at most, of which the second is as large as the time allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import numpy as np

from collbench.measure.budget import Budget
from collbench.measure.protocol import FEW, MOST_SAMPLES, Look, Measured, Plan, Samples, WarmUp, slowest
from collbench.stats.median import median

_FEWEST = 6  # samples that an interval needs
_BATCH = 20  # iterations between two stamps where the ranks do not meet before each
_BATCHES = 12  # as many batches fit into the time at least


def short_schedule(budget: Budget, size_bytes: int, mode: str, timed: list[int], now: Callable[[], float] = time.monotonic) -> Plan:
    """Rank 0's plan, as `timing.protocol.schedule`: a first call, warm-up (`budget.warmup` calls in all), samples.

    At least 6 samples are taken where so many fit into the budget, whatever the looks cost.
    """
    began = now()
    first = yield WarmUp((1, 1))
    each = _seconds(first, timed)
    look_s = max(0.0, now() - began - each)
    batch = 1 if mode == "isolated" else max(1, min(_BATCH, int(budget.max_time_s / _BATCHES / each)))
    measured = Measured(np.empty((len(first), 0)), budget.target(size_bytes), warmups=budget.warmup or 1, batch=batch)
    if each > budget.max_time_s:
        measured.samples, measured.stopped, measured.flags = first, "max_time", ["budget_exceeded"]
        measured.reached = None if budget.iterations else False
    else:
        if measured.warmups > 1:
            each = _seconds((yield WarmUp((measured.warmups - 1, 1))), timed)
        yield from _sample(budget, (began + budget.max_time_s - look_s, each), timed, measured, now)
    n = measured.samples.shape[1]
    measured.flags += [flag for flag, true in (("few_samples", n < FEW), ("target_missed", measured.reached is False)) if true]
    return measured


def _sample(
    budget: Budget, limits: tuple[float, float], timed: list[int], measured: Measured, now: Callable[[], float]
) -> Generator[Look, Samples, None]:
    """Up to two looks. `limits`: when the last one must begin to return, and the seconds of an iteration."""
    ending, each = limits
    least = _FEWEST if _FEWEST * each * measured.batch <= budget.max_time_s else 1
    wanted = budget.iterations or FEW
    while measured.stopped is None:
        n = measured.samples.shape[1]
        affordable = int((ending - now()) / (each * measured.batch))
        look = min(wanted, max(affordable, 0 if n else least))
        if look == 0:
            measured.stopped = "max_time"
            return
        part = yield look, measured.batch
        measured.samples = np.concatenate([measured.samples, part], axis=1)
        each = _seconds(part, timed)
        measured.stopped, wanted = _enough(budget, timed, measured, second=n > 0)


def _enough(budget: Budget, timed: list[int], measured: Measured, second: bool) -> tuple[str | None, int]:
    """Why the samples suffice (None: they do not), and how many more would."""
    n = measured.samples.shape[1]
    if budget.iterations:
        missing = budget.iterations - n
        return ("max_time" if second else None) if missing else "iterations", missing
    known = median(slowest(measured.samples, timed)).half_width
    measured.reached = known is not None and known <= measured.target
    if measured.reached and n >= FEW:
        return "precision", 0
    missing = FEW if not known else max(FEW - n, int(n * ((known / measured.target) ** 2 - 1)))
    return "max_time" if second else None, max(1, min(missing, MOST_SAMPLES - n))


def _seconds(samples: Samples, timed: list[int]) -> float:
    """What an iteration takes at the slowest of all pairs: the mean, since rare long ones take time as well."""
    series = slowest(samples, timed)
    return max(float(series.mean()) if len(series) else 0.0, 1e-7)
