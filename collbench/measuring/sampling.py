"""Decide how many samples a case gets: warm-up until times settle, then until the median is precise enough, within the
budget.

Rank 0 decides between batches and sends its decision. Every rank keeps its own samples and sends them after each batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.measuring.loop import Loop
from collbench.measuring.phases import Phases
from collbench.measuring.request import Budget
from collbench.stats.median import median

MOST_SAMPLES = 3000
MOST_WARMUPS = 300
FEW = 60  # fewer samples than these are flagged
_PIPELINE = 20  # iterations between two stamps in the pipelined and batched modes, as nccl-tests' -n 20
_GROWTH = 1.5
_HOPELESS = 4  # missing samples as a multiple of those that fit into the remaining time: the rest of the budget would not help
_FIRST = 6  # samples of the first batch: the smallest number with an interval
_FEWEST = 12  # samples that must fit into the budget: two windows of 3 and a first batch of 6
Samples = NDArray[np.float64]


@dataclass
class Measurement:
    """The samples of a case at rank 0: seconds [timed and untimed ranks × n] per iteration, and how the measurement went.

    stopped    why sampling ended: "precision", "out_of_reach", "max_time", "most_samples", "iterations"
    batch      turns of the loop per sample, of so many `iterations` each
    loop_s     seconds that rank 0 spent in the loop, including the first call and the warm-up
    durations  of every sample, including warm-up: its phase, and the seconds of the slowest rank for all of its iterations
    starts_ns  when the samples began, as `Loop.starts_ns`, for all ranks
    phases     warm-up and samples at rank 0, each from its first to its last batch
    """

    samples: Samples
    target: float
    reached: bool | None = None
    stopped: str | None = None
    warmups: int = 0
    batch: int = 1
    iterations: int = 1
    loop_s: float = 0.0
    flags: list[str] = field(default_factory=list)
    durations: list[tuple[str, float]] = field(default_factory=list)
    starts_ns: Samples = field(default_factory=lambda: np.empty((0, 0)))
    phases: Phases = field(default_factory=Phases)


Batch = tuple[int, int]  # samples, iterations per sample


class WarmUp(Batch):
    """A batch of warm-up samples, which are not kept."""


SamplingPlan = Generator[Batch, Samples, Measurement]


def measure(loop: Loop, world: World, plan: SamplingPlan | None, what: str) -> Measurement | None:
    """Run a plan on all ranks and return the result at rank 0, None elsewhere. Only rank 0 has a plan.

    what: the name of the case, for messages.
    """
    look: Batch | None = next(plan) if plan else None
    starts: list[Samples] = []
    durations: list[tuple[str, float]] = []
    phases = Phases()
    loop_s = 0.0
    while True:
        count, batch, warm = world.broadcast([*(look or (0, 0)), isinstance(look, WarmUp)], f"{what}: the next samples")
        if count == 0:
            return None
        with world.watchdog.phase(f"{what}: {'warm-up' if warm else 'measuring'}"):
            began = time.monotonic()
            with phases.record("warm-up" if warm else "samples"):
                seconds = loop.run(count, batch) / (batch * loop.iterations)
            loop_s += time.monotonic() - began
        arrays = world.gather_array(np.concatenate([seconds, loop.starts_ns]), f"{what}: gathering samples")
        if plan is None or arrays is None:
            continue
        halves = [(array[: len(array) // 2], array[len(array) // 2 :]) for array in arrays]
        taken, starting = (np.concatenate(part) for part in zip(*halves, strict=True))
        starts.append(starting)
        durations += [("warm-up" if warm else "timed", float(one)) for one in taken.max(axis=0) * (batch * loop.iterations)]
        try:
            look = plan.send(taken)
        except StopIteration as stop:
            world.broadcast([0, 0, False], f"{what}: the next samples")
            measured: Measurement = stop.value
            measured.loop_s, measured.durations, measured.phases = loop_s, durations, phases
            measured.starts_ns = np.concatenate(starts, axis=1)[:, -measured.samples.shape[1] :]  # the kept samples are the last ones
            return measured


def slowest(samples: Samples, timed: list[int]) -> Samples:
    """Return for each sample the maximum over the timed ranks. Invalid samples are left out."""
    value: Samples = samples[timed][:, sound(samples, timed)].max(axis=0)
    return value


def sound(samples: Samples, timed: list[int]) -> NDArray[np.bool_]:
    """Return which samples are finite and not negative at every timed rank."""
    chosen = samples[timed]
    all_sound: NDArray[np.bool_] = np.all(np.isfinite(chosen) & (chosen >= 0), axis=0)
    return all_sound


def schedule(
    budget: Budget, size_bytes: int, mode: str, timed: list[int], now: Callable[[], float] = time.monotonic, *, iterations: int = 1
) -> SamplingPlan:
    """Return rank 0's plan, a generator: it yields batches, is sent their samples [ranks × n], and returns the measurement.

    iterations: how many one turn of the loop holds (graphs hold several); samples are seconds of one of them.
    """
    began = now()
    first = yield WarmUp((1, 1))
    turn = max([*slowest(first, timed), 1e-7]) * iterations
    once = max(turn / iterations, now() - began)
    batch = 1 if mode in ("isolated", "graph") else max(1, min(_PIPELINE, int(budget.max_time_s / _FEWEST / once)))
    measured = Measurement(np.empty((len(first), 0)), budget.target(size_bytes), batch=batch, iterations=iterations)
    if turn > budget.max_time_s:
        measured.samples, measured.stopped, measured.flags = first, "max_time", ["budget_exceeded"]
        measured.reached = None if budget.iterations else False
    else:
        yield from _warm_up(budget, once, timed, measured)
        # If messages between the ranks alone used up the time, one batch more costs no more for the fewest samples with an interval.
        least = _FIRST if once > budget.max_time_s >= _FIRST * turn * batch else 1
        yield from _sample(budget, (began + budget.max_time_s, once * batch), timed, measured, now, least=least)
    _judge(measured)
    return measured


def _warm_up(budget: Budget, once: float, timed: list[int], measured: Measurement) -> Generator[Batch, Samples, None]:
    """Yield windows until two in a row agree (medians within 2 %, quartiles within 5 %), a cap, or a quarter of the budget."""
    if budget.warmup is not None:
        if budget.warmup > 1:  # the first call was one
            yield WarmUp((budget.warmup - 1, 1))
        measured.warmups = budget.warmup
        return
    spent, before, each = once, None, once * measured.batch
    of_one = measured.batch * measured.iterations
    while measured.warmups < MOST_WARMUPS and spent < budget.max_time_s / 4:
        window = int(min(max(budget.max_time_s / (5 * each), 3), 20))
        if spent + window * each > budget.max_time_s / 2:
            break
        series = slowest((yield WarmUp((window, measured.batch))), timed)
        measured.warmups += window
        each = max(float(np.median(series)) if len(series) else each, 1e-9) * (of_one if len(series) else 1)
        spent += window * each
        if before is not None and _alike(before, series):
            return
        before = series if len(series) else None
    measured.flags.append("warmup_unsettled")


def _alike(a: Samples, b: Samples) -> bool:
    middle, quartiles = 0.02, 0.05
    (a1, a2, a3), (b1, b2, b3) = np.quantile(a, [0.25, 0.5, 0.75]), np.quantile(b, [0.25, 0.5, 0.75])
    return bool(abs(a2 - b2) <= middle * b2 and abs(a1 - b1) <= quartiles * b1 and abs(a3 - b3) <= quartiles * b3)


def _sample(
    budget: Budget, limits: tuple[float, float], timed: list[int], measured: Measurement, now: Callable[[], float], *, least: int = 1
) -> Generator[Batch, Samples, None]:
    """Yield batches, each increasing the total by half, until the interval is narrow enough, a cap is reached or the budget ends.

    `limits`: when the budget ends, and the seconds that a sample takes; `least`: samples of a batch, if the time is used up.
    """
    ending, each = limits
    while measured.stopped is None:
        affordable = max(least, int((ending - now()) / each))
        batch, started = min(_samples_needed(measured.samples.shape[1], budget), affordable), now()
        part = yield batch, measured.batch
        each = max((now() - started) / batch, 1e-7)
        measured.samples = np.concatenate([measured.samples, part], axis=1)
        left_s = ending - now()
        measured.stopped = _enough(measured, budget, timed, (left_s, each)) or ("max_time" if left_s < each else None)


def _samples_needed(n: int, budget: Budget) -> int:
    """Return how many more samples to take next, after n."""
    if budget.iterations:
        return budget.iterations - n
    if n < FEW:
        return FEW - n if n else _FIRST
    return min(int(n * (_GROWTH - 1)) + 1, MOST_SAMPLES - n)


def _enough(measured: Measurement, budget: Budget, timed: list[int], limits: tuple[float, float]) -> str | None:
    """Return why sampling can end, or None. `limits`: the seconds left, and the seconds that a sample takes."""
    n = measured.samples.shape[1]
    if budget.iterations:
        return "iterations" if n >= budget.iterations else None
    series = slowest(measured.samples, timed)
    known = median(series).half_width if len(series) else None
    measured.reached = known is not None and known <= measured.target
    if measured.reached and n >= FEW:
        return "precision"
    if n >= MOST_SAMPLES:
        return "most_samples"
    # an interval narrows with the square root of the number of samples
    missing = n * ((known / measured.target) ** 2 - 1) if known else 0.0
    left_s, each = limits
    halfway = left_s < budget.max_time_s / 2 and n >= FEW
    return "out_of_reach" if halfway and missing > _HOPELESS * left_s / each else None


def _judge(measured: Measurement) -> None:
    if measured.samples.shape[1] < FEW:
        measured.flags.append("few_samples")
    if measured.reached is False:
        measured.flags.append("target_missed")


# The plan of one of many short measurements: like `schedule`, but with few batches.
#
# Each batch needs a message from rank 0 to all ranks and a reply of each. With a thousand ranks, or few cores, that takes as long as all
# samples of a ping-pong. So this time is counted separately, and warm-up is a fixed number of calls. Samples are taken in at most two
# batches, of which the second is as large as the time allows.

_SHORT_FEWEST = 6  # the smallest number with an interval
_BATCH = 20  # iterations between two stamps if the ranks do not synchronize before each
_BATCHES = 12  # at least as many batches fit into the time


def short_schedule(budget: Budget, size_bytes: int, mode: str, timed: list[int], now: Callable[[], float] = time.monotonic) -> SamplingPlan:
    """Return rank 0's plan like `schedule`, but short: a first call, warm-up (`budget.warmup` calls in all), samples.

    It takes at least 6 samples if they fit into the budget, even if each sample is long.
    """
    began = now()
    first = yield WarmUp((1, 1))
    each = _seconds(first, timed)
    look_s = max(0.0, now() - began - each)
    batch = 1 if mode == "isolated" else max(1, min(_BATCH, int(budget.max_time_s / _BATCHES / each)))
    measured = Measurement(np.empty((len(first), 0)), budget.target(size_bytes), warmups=budget.warmup or 1, batch=batch)
    if each > budget.max_time_s:
        measured.samples, measured.stopped, measured.flags = first, "max_time", ["budget_exceeded"]
        measured.reached = None if budget.iterations else False
    else:
        if measured.warmups > 1:
            each = _seconds((yield WarmUp((measured.warmups - 1, 1))), timed)
        yield from _sample_short(budget, (began + budget.max_time_s - look_s, each), timed, measured, now)
    _judge(measured)
    return measured


def _sample_short(
    budget: Budget, limits: tuple[float, float], timed: list[int], measured: Measurement, now: Callable[[], float]
) -> Generator[Batch, Samples, None]:
    """Yield up to two batches. `limits`: when the last one must begin, and the seconds of an iteration."""
    ending, each = limits
    least = _SHORT_FEWEST if _SHORT_FEWEST * each * measured.batch <= budget.max_time_s else 1
    needed = budget.iterations or FEW
    while measured.stopped is None:
        n = measured.samples.shape[1]
        affordable = int((ending - now()) / (each * measured.batch))
        batch = min(needed, max(affordable, 0 if n else least))
        if batch == 0:
            measured.stopped = "max_time"
            return
        part = yield batch, measured.batch
        measured.samples = np.concatenate([measured.samples, part], axis=1)
        each = _seconds(part, timed)
        measured.stopped, needed = _enough_short(budget, timed, measured, second=n > 0)


def _enough_short(budget: Budget, timed: list[int], measured: Measurement, second: bool) -> tuple[str | None, int]:
    """Return (why sampling can end, or None; how many more samples would be enough)."""
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
    """Return the seconds of an iteration of the slowest pair: the mean, since rare long iterations take time too."""
    series = slowest(samples, timed)
    return max(float(series.mean()) if len(series) else 0.0, 1e-7)
