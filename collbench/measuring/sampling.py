"""Decide how many samples a measurement gets: warm-up until times settle, then until the result is precise enough, within the budget.

Rank 0 decides between batches and sends its decision. Every rank keeps its own samples and sends them after each batch.
A measurement of several states, such as an overlap, takes whole rounds: one sample of each state.

With many short measurements, as of pairs of nodes, batches cost most of the time: each needs a message from rank 0 to all ranks and a
reply of each. With a thousand ranks, or few cores, that takes as long as all samples of a ping-pong. So a short measurement counts this
time separately, warms up with a fixed number of calls, and has two batches at most, of which the second is as large as the time allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.measuring.loop import TimedLoop
from collbench.measuring.phases import Phases
from collbench.measuring.request import Budget
from collbench.stats.median import median, middle, quantile

MOST_SAMPLES = 3000
MOST_WARMUPS = 300
FEW = 60  # fewer samples than these are flagged
_PIPELINE = 20  # iterations between two stamps in the pipelined and batched modes, as nccl-tests' -n 20
_GROWTH = 1.5
_HOPELESS = 4  # missing samples as a multiple of those that fit into the remaining time: the rest of the budget would not help
_FIRST = 6  # rounds of the first batch: the smallest number with an interval
_FEWEST = 12  # samples that must fit into the budget: two windows of 3 and a first batch of 6
_WINDOW = (3, 20)  # rounds of a window of the warm-up
Samples = NDArray[np.float64]


class Measurement(msgspec.Struct):
    """The samples of a case at rank 0: seconds [timed and untimed ranks × n] per iteration, and how the measurement went.

    width      the relative half-width of the result's interval; None: it has none
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
    width: float | None = None
    warmups: int = 0
    batch: int = 1
    iterations: int = 1
    loop_s: float = 0.0
    flags: list[str] = msgspec.field(default_factory=list)
    durations: list[tuple[str, float]] = msgspec.field(default_factory=list)
    starts_ns: Samples = msgspec.field(default_factory=lambda: np.empty((0, 0)))
    phases: Phases = msgspec.field(default_factory=Phases)


Batch = tuple[int, int]  # samples, iterations per sample


class WarmUp(Batch):
    """A batch of warm-up samples, which are not kept."""


SamplingPlan = Generator[Batch, Samples, Measurement]


def measure(loop: TimedLoop, world: World, plan: SamplingPlan | None, title: str) -> Measurement | None:
    """Run a plan on all ranks and return the result at rank 0, None elsewhere. Only rank 0 has a plan.

    title: the name of the case, for messages.
    """
    planned: Batch | None = next(plan) if plan else None
    starts: list[Samples] = []
    durations: list[tuple[str, float]] = []
    phases = Phases()
    loop_s = 0.0
    while True:
        count, batch, warm = world.broadcast([*(planned or (0, 0)), isinstance(planned, WarmUp)], f"{title}: the next samples")
        if count == 0:
            return None
        with world.watchdog.phase(f"{title}: {'warm-up' if warm else 'measuring'}"):
            began = time.monotonic()
            with phases.record("warm-up" if warm else "samples"):
                seconds = loop.run(count, batch) / (batch * loop.iterations)
            loop_s += time.monotonic() - began
        arrays = world.gather_array(np.concatenate([seconds, loop.starts_ns]), f"{title}: gathering samples")
        if plan is None or arrays is None:
            continue
        halves = [(array[: len(array) // 2], array[len(array) // 2 :]) for array in arrays]
        samples, sample_starts = (np.concatenate(part) for part in zip(*halves, strict=True))
        starts.append(sample_starts)
        slowest_s = samples.max(axis=0) * (batch * loop.iterations)
        durations += [("warm-up" if warm else "timed", float(duration_s)) for duration_s in slowest_s]
        try:
            planned = plan.send(samples)
        except StopIteration as stop:
            world.broadcast([0, 0, False], f"{title}: the next samples")
            measured: Measurement = stop.value
            measured.loop_s = loop_s
            measured.durations = durations
            measured.phases = phases
            measured.starts_ns = np.concatenate(starts, axis=1)[:, -measured.samples.shape[1] :]  # the kept samples are the last ones
            return measured


def slowest(samples: Samples, timed: Sequence[int], turns: int = 1) -> Samples:
    """Return the maximum over the timed ranks for each sample, [n]; with several turns for each turn of each round, [rounds × turns].

    Invalid samples are left out, with their round.
    """
    usable = sound(samples, timed)
    by_sample: Samples = samples[list(timed)].max(axis=0)
    return by_sample[usable] if turns == 1 else by_sample.reshape(-1, turns)[usable.reshape(-1, turns).all(axis=1)]


def sound(samples: Samples, timed: Sequence[int]) -> NDArray[np.bool_]:
    """Return which samples are finite and not negative at every timed rank."""
    chosen = samples[list(timed)]
    all_sound: NDArray[np.bool_] = np.all(np.isfinite(chosen) & (chosen >= 0), axis=0)
    return all_sound


class Stopping(msgspec.Struct, frozen=True):
    """How many samples a measurement takes, and when they are enough. Its numbers are of rounds, which are single turns as a rule.

    budget      the user's limits: the time limit takes precedence over numbers
    size_bytes  of the case: the intended precision depends on it
    timed       the ranks that count
    mode        of the case: in some modes a sample has several iterations
    iterations  how many one turn of the loop holds (graphs hold several); samples are seconds of one of them
    turns       turns of the loop that make a round, such as the states of an overlap: only whole rounds are taken
    first       rounds of the first batch
    few         fewer rounds are flagged, and never precise enough
    warmup      rounds before the samples if the user gave no number, with the first call; None: until times settle
    window      the fewest and the most rounds of a window of the warm-up
    short       whether this is one of many short measurements
    least       rounds that are taken even if less time is left, as far as so many fit into all of the time
    half_width  returns the relative half-width of the result's interval; None: the result is the median time of a round
    """

    budget: Budget
    size_bytes: int
    timed: Sequence[int]
    mode: str = "isolated"
    iterations: int = 1
    turns: int = 1
    first: int = _FIRST
    few: int = FEW
    warmup: int | None = None
    window: tuple[int, int] = _WINDOW
    short: bool = False
    least: int = 1
    half_width: Callable[[Samples], float | None] | None = None

    @classmethod
    def short_measurement(cls, budget: Budget, size_bytes: int, timed: Sequence[int], mode: str = "isolated") -> Stopping:
        """Return the rule of one of many short measurements: all samples in one batch, or in two if they scatter."""
        return cls(budget, size_bytes, timed, mode, first=FEW, warmup=1, short=True, least=_FIRST)

    def rounds(self, samples: Samples) -> int:
        """Return how many rounds these samples are."""
        return int(samples.shape[1]) // self.turns

    def times(self, samples: Samples) -> Samples:
        """Return the seconds of each valid round at the slowest rank."""
        series = slowest(samples, self.timed, self.turns)
        total: Samples = series if self.turns == 1 else series.sum(axis=1)
        return total

    def width(self, samples: Samples) -> float | None:
        """Return the relative half-width of the result's interval; None without one."""
        if self.half_width:
            return self.half_width(samples)
        times = self.times(samples)
        return median(times).half_width if len(times) else None

    def mean_s(self, samples: Samples) -> float:
        """Return the mean seconds of a round, since rare long iterations take time too."""
        times = self.times(samples)
        return max(float(times.mean()) if len(times) else 0.0, 1e-7)

    def batch(self, round_s: float) -> int:
        """Return the number of iterations of a sample, given the seconds of one."""
        if self.mode in ("isolated", "graph"):
            return 1
        return max(1, min(_PIPELINE, int(self.budget.max_time_s / _FEWEST / round_s)))


def schedule(rule: Stopping, now: Callable[[], float] = time.monotonic) -> SamplingPlan:
    """Return rank 0's plan, a generator: it yields batches, is sent their samples [ranks × n], and returns the measurement."""
    budget = rule.budget
    began = now()
    first = yield WarmUp((rule.turns, 1))
    elapsed_s = now() - began
    turn_s = rule.mean_s(first) * rule.iterations
    ends_s = began + budget.max_time_s
    if rule.short:
        once_s = turn_s
        ends_s -= max(0.0, elapsed_s - turn_s)  # the messages between the ranks
    else:
        once_s = max(turn_s / rule.iterations, elapsed_s)
    batch = rule.batch(once_s)
    measured = Measurement(np.empty((len(first), 0)), budget.target(rule.size_bytes), batch=batch, iterations=rule.iterations)
    if turn_s > budget.max_time_s:
        measured.samples = first
        measured.stopped = "max_time"
        measured.flags = ["budget_exceeded"]
        measured.reached = None if budget.iterations else False
    else:
        last = yield from _warm_up(rule, once_s, measured)
        sample_s = (rule.mean_s(last) if rule.short and last is not None else once_s) * batch
        # If messages between the ranks alone used up the time, one batch more costs no more for the fewest samples with an interval.
        least = max(rule.least, _FIRST) if once_s > budget.max_time_s else rule.least
        if least * turn_s * batch > budget.max_time_s:
            least = 1
        yield from _sample(rule, (ends_s, sample_s), measured, now, least=least)
    if rule.rounds(measured.samples) < rule.few:
        measured.flags.append("few_samples")
    if measured.reached is False:
        measured.flags.append("target_missed")
    return measured


def _warm_up(rule: Stopping, once_s: float, measured: Measurement) -> Generator[Batch, Samples, Samples | None]:
    """Yield a number of rounds, or windows until two in a row agree, a cap, or a quarter of the budget. Return the last samples, if any.

    once_s: the seconds of a round, with what the ranks exchange
    """
    budget = rule.budget
    number = budget.warmup
    if number is None and rule.warmup is not None:
        number = rule.warmup if rule.warmup * once_s < budget.max_time_s / 2 else 1
    if number is not None:
        measured.warmups = number * rule.turns
        if number < 2:  # the first call was one
            return None
        return (yield WarmUp(((number - 1) * rule.turns, 1)))
    spent_s = once_s
    round_s = once_s * measured.batch
    before = None
    while measured.warmups < MOST_WARMUPS * rule.turns and spent_s < budget.max_time_s / 4:
        fewest, most = rule.window
        window = int(min(max(budget.max_time_s / (5 * round_s), fewest), most))
        if spent_s + window * round_s > budget.max_time_s / 2:
            break
        times = rule.times((yield WarmUp((window * rule.turns, measured.batch))))
        measured.warmups += window * rule.turns
        if len(times):
            round_s = max(middle(np.sort(times)), 1e-9) * measured.batch * measured.iterations
        spent_s += window * round_s
        if before is not None and len(times) and _alike(before, times):
            return None
        before = times if len(times) else None
    measured.flags.append("warmup_unsettled")
    return None


def _alike(a: Samples, b: Samples) -> bool:
    """Return whether two windows agree: medians within 2 %, quartiles within 5 %."""
    first = np.sort(a)
    second = np.sort(b)
    tolerances = {0.25: 0.05, 0.5: 0.02, 0.75: 0.05}
    return all(
        abs(quantile(first, share) - quantile(second, share)) <= tolerance * quantile(second, share)
        for share, tolerance in tolerances.items()
    )


def _sample(
    rule: Stopping, limits: tuple[float, float], measured: Measurement, now: Callable[[], float], *, least: int = 1
) -> Generator[Batch, Samples, None]:
    """Yield batches, each increasing the total by half, until the interval is narrow enough, a cap is reached or the budget ends.

    limits: when the budget ends, and the seconds of a round; least: rounds of the first batch, even if the time is used up.
    """
    ends_s, round_s = limits
    while measured.stopped is None:
        taken = rule.rounds(measured.samples)
        affordable = max(int((ends_s - now()) / round_s), 0 if taken else least)
        number = min(_rounds_needed(rule, measured), affordable)
        if number == 0:
            measured.stopped = "max_time"
            return
        started = now()
        part = yield number * rule.turns, measured.batch
        measured.samples = np.concatenate([measured.samples, part], axis=1)
        round_s = rule.mean_s(part) * measured.batch if rule.short else max((now() - started) / number, 1e-7)
        left_s = ends_s - now()
        measured.stopped = _enough(rule, measured, (left_s, round_s))
        if measured.stopped is None and (taken if rule.short else left_s < round_s):
            measured.stopped = "max_time"


def _rounds_needed(rule: Stopping, measured: Measurement) -> int:
    """Return how many more rounds to take next."""
    taken = rule.rounds(measured.samples)
    if rule.budget.iterations:
        return rule.budget.iterations - taken
    if taken == 0:
        return rule.first
    if rule.short:
        return max(1, min(_missing(rule, measured), MOST_SAMPLES - taken))
    if taken < rule.few:
        return rule.few - taken
    return min(int(taken * (_GROWTH - 1)) + 1, MOST_SAMPLES - taken)


def _missing(rule: Stopping, measured: Measurement) -> int:
    """Return how many rounds are missing for the intended precision. An interval narrows with the square root of their number."""
    taken = rule.rounds(measured.samples)
    if not measured.width:
        return rule.few
    return max(rule.few - taken, int(taken * ((measured.width / measured.target) ** 2 - 1)))


def _enough(rule: Stopping, measured: Measurement, limits: tuple[float, float]) -> str | None:
    """Return why sampling can end, or None. `limits`: the seconds left, and the seconds of a round."""
    taken = rule.rounds(measured.samples)
    if rule.budget.iterations:
        return "iterations" if taken >= rule.budget.iterations else None
    measured.width = rule.width(measured.samples)
    measured.reached = measured.width is not None and measured.width <= measured.target
    if measured.reached and taken >= rule.few:
        return "precision"
    if taken >= MOST_SAMPLES:
        return "most_samples"
    if rule.short or rule.turns > 1 or not measured.width:  # the turns of a round have results of their own, which gain from more rounds
        return None
    left_s, round_s = limits
    halfway = left_s < rule.budget.max_time_s / 2 and taken >= rule.few
    return "out_of_reach" if halfway and _missing(rule, measured) > _HOPELESS * left_s / round_s else None
