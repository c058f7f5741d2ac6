"""Measure expert-parallel training over many routings: each is a step, and all of them are measured in turn with even ones.

All routings use the same buffers, which are as large as the largest routing needs. A turn of the loop is one routing. A round has each
routing once, and a step with as many tokens that are routed evenly several times, in a random order that is the same in all rounds.
So slow changes of the machine affect both in the same way, and the ratio of their times in a round is the imbalance tax.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isqrt
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend, unsupported_reason
from collbench.backends.host import AnyBuffers
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch.limits import free_bytes
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling
from collbench.measuring.ceilings import Ceilings
from collbench.measuring.crossing import LeastBytes
from collbench.measuring.engine import Work
from collbench.measuring.loop import CallFailed, Loop, Timed
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.prepared_case import BackendContext, Preparation, PreparedCase, phase
from collbench.measuring.request import Budget
from collbench.measuring.row import doubts
from collbench.measuring.sampling import FEW, Samples, Stopping, slowest
from collbench.measuring.verification import VerificationTurn
from collbench.operations.case import Case
from collbench.operations.data import Mismatch, bytes_needed, slots_for
from collbench.operations.operation import Block, Operation
from collbench.operations.program import Program, joined
from collbench.operations.unsupported import CaseFailed, decode_reason
from collbench.plugins.training.records import RoutedStep, RoutingResult, StepRow, TimeQuantiles, WayBytes
from collbench.plugins.training.step_task import (
    BETWEEN_SEEDS,
    NO_INTERVAL,
    Around,
    PartLimit,
    PartNotPrepared,
    StepPart,
    StepPlan,
    least_s,
    step_operation,
)
from collbench.plugins.training.workloads.routing import RoutedTraffic, Routing, Way, exchanges_of
from collbench.plugins.training.workloads.step import bytes_of
from collbench.reason import Fact, as_json
from collbench.results.estimate import Estimate
from collbench.results.row import Times
from collbench.stats.median import Median, fewest_for, median, quantile
from collbench.units import format_bytes, plural

MOST_CALLS = 200_000  # of a round: the loop stores each
_MOST_COUNTS = 2**26  # of all exchanges: the calls store as many for each rank


class Turn(msgspec.Struct, frozen=True):
    """A turn of the loop. place: index of the routing in `Routing.steps`; even: whether the step is an even one with as many tokens."""

    place: int
    even: bool


def round_of(routing: Routing, seed: int) -> tuple[Turn, ...]:
    """Return the turns of a round, in random order: every routing once, and about every √n of n routings an even one before them."""
    by_totals: dict[tuple[int, ...], list[int]] = {}
    for place in range(len(routing.steps)):
        by_totals.setdefault(routing.totals(place), []).append(place)
    source = random.Random(f"routings, {seed}")
    blocks = []
    for places in by_totals.values():
        source.shuffle(places)
        size = max(1, isqrt(len(places)))
        blocks += [places[begin : begin + size] for begin in range(0, len(places), size)]
    source.shuffle(blocks)
    return tuple(turn for block in blocks for turn in (Turn(block[0], True), *(Turn(place, False) for place in block)))


class RoutedExchange(msgspec.Struct, frozen=True):
    """One exchange of tokens: its name in errors, its way and case, and the slot of the buffers that it uses."""

    what: str
    way: Way
    case: Case
    slot: int


class RoutedPlan(msgspec.Struct, frozen=True):
    """The exchanges of all routings on a backend.

    exchanges   the different ones
    steps       by turn of a round the indices of its exchanges, in order
    largest     by way the case that sizes the buffers, and the elements that a rank sends and receives at most
    """

    routing: Routing
    parts: tuple[StepPart, StepPart]
    turns: tuple[Turn, ...]
    exchanges: tuple[RoutedExchange, ...]
    steps: tuple[tuple[int, ...], ...]
    largest: tuple[tuple[Case, int, int], tuple[Case, int, int]]

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.routing.ranks))

    @property
    def operation(self) -> Operation:
        """The operation of all exchanges."""
        return self.parts[0].operation

    def part(self, index: int) -> StepPart:
        """Return an exchange as a part of a step."""
        routed = self.exchanges[index]
        part = self.parts[routed.way.back]
        exchange = replace(part.exchange, size_bytes=routed.case.size_bytes, traffic=routed.case.traffic, times=1)
        return replace(part, what=routed.what, ends=(routed.what, routed.what), exchange=exchange, case=routed.case, times=1)

    def moved_bytes(self) -> NDArray[np.float64]:
        """Return [turns] the bytes of the rank that moves most in each, by the conventions of busbw."""
        by_exchange = [np.array(bytes_of(self.part(index).exchange, self.routing.ranks)) for index in range(len(self.exchanges))]
        return np.array([np.sum([by_exchange[index] for index in step], axis=0).max() for step in self.steps])


class _ExchangeKey(NamedTuple):
    """What makes two exchanges the same. place: of the routing, None for an even one; number: the layer, or the tokens of an even one."""

    place: int | None
    number: int
    slot: int
    back: bool


def plan_routed(plan: StepPlan) -> RoutedPlan:
    """Return the exchanges of the routings of a planned step. Raises UsageError for more than a round can have."""
    routing = plan.step.routing
    assert routing is not None
    dispatch, combine = plan.parts
    turns = round_of(routing, dispatch.case.seed)
    calls = 4 * routing.layers * routing.times * len(turns)
    counts = 2 * routing.layers * len(turns) * routing.ranks
    if calls > MOST_CALLS or counts > _MOST_COUNTS:
        fit = max(1, min(len(turns) * MOST_CALLS // calls, len(turns) * _MOST_COUNTS // counts) // 2)
        number = plural(len(routing.steps), "routing")
        raise UsageError(f"a round of {number} has too many exchanges to prepare: use --routings {fit}, or fewer --layers")
    largest = tuple(_largest(routing, part, way) for part, way in zip((dispatch, combine), routing.ways, strict=True))
    slots = [_slots(case, routing.layers) for case, _, _ in largest]
    index_of: dict[_ExchangeKey, int] = {}
    exchanges: list[RoutedExchange] = []
    steps = []
    for turn in turns:
        totals = routing.totals(turn.place)
        step: list[int] = []
        for layer, way in exchanges_of(routing):
            slot = layer % slots[way.back]
            # even exchanges of as many tokens are the same in all layers that use the same buffers
            key = _ExchangeKey(None, totals[layer], slot, way.back) if turn.even else _ExchangeKey(turn.place, layer, slot, way.back)
            if key not in index_of:
                index_of[key] = len(exchanges)
                if turn.even:
                    traffic = routing.even(totals[layer], way)
                    where = "an even routing"
                else:
                    traffic = routing.traffic(turn.place, layer, way)
                    where = f"step {routing.steps[turn.place]}"
                part = combine if way.back else dispatch
                seed = part.case.seed + len(exchanges) * BETWEEN_SEEDS
                case = replace(largest[way.back][0], traffic=traffic, size_bytes=busiest(traffic) * way.token_bytes, seed=seed)
                exchanges.append(RoutedExchange(f"{where}, layer {layer}, {way.name}", way, case, slot))
            step += [index_of[key]] * routing.times
        steps.append(tuple(step))
    return RoutedPlan(routing, (dispatch, combine), turns, tuple(exchanges), tuple(steps), (largest[0], largest[1]))


def busiest(traffic: RoutedTraffic) -> int:
    """Return the copies of tokens that the busiest rank sends or receives."""
    assert traffic.tokens is not None
    return int(max(traffic.tokens.sum(axis=0).max(), traffic.tokens.sum(axis=1).max()))


def _largest(routing: Routing, part: StepPart, way: Way) -> tuple[Case, int, int]:
    """Return the case that sizes the buffers of a way, and the elements that a rank sends and receives at most."""
    sent = int(routing.tokens.sum(axis=3).max())
    received = int(routing.tokens.sum(axis=2).max())
    if way.back:
        sent, received = received, sent
    elements = way.token_bytes // part.case.dtype.size
    case = replace(part.case, size_bytes=max(sent, received) * way.token_bytes, flags=())
    return case, sent * elements, received * elements


def _slots(case: Case, layers: int) -> int:
    return min(slots_for(case), layers)


def _sizing(operation: Operation, sent: int, received: int) -> Operation:
    return replace(operation, uneven=False, sends=lambda x: sent, expected_blocks=lambda x: [Block([x.rank], 0, received)])


def routed_too_large(title: str, plan: StepPlan, backend: Backend, world: World) -> str | None:
    """Return why the buffers of the largest routing do not fit this host or its GPUs; None if they fit."""
    routed = plan_routed(plan)
    need = 0
    for case, sent, received in routed.largest:
        all_slots = bytes_needed(_sizing(routed.operation, sent, received), case, routed.routing.ranks)
        need += all_slots * _slots(case, routed.routing.layers) // slots_for(case)
    free = backend.free_bytes(routed.parts[0].case)
    if free is None:
        need *= backend.ranks if backend.virtual else len(world.on_host())
        free = free_bytes()
    if need <= free:
        return None
    return (
        f"the buffers of {title} need {format_bytes(need)} on {world.me.host}, but only {format_bytes(free)} is free: use a smaller "
        "--microbatch, --sequence or --hidden"
    )


def check_routing(routing: Routing | None, world: World) -> None:
    """Raise UsageError, on all ranks, if the token counts of a rank differ from those of rank 0. All ranks call it."""
    names = world.allgather(routing.name if routing else "", "comparing the routings")
    for rank, name in enumerate(names):
        if name != names[0]:
            raise UsageError(
                f"the token counts of rank {rank} ({world.members[rank].host}) differ from those of rank 0: give the same routing file, "
                "and the same version of numpy, to all ranks"
            )


class PreparedRouting(msgspec.Struct, frozen=True):
    """All routings, ready to run: `ready.loop` runs a turn in each iteration, `ready.checking` an exchange.

    buffers   by exchange those of the ranks that this process drives
    """

    plan: RoutedPlan
    ready: PreparedCase
    buffers: tuple[tuple[AnyBuffers, ...], ...]


def prepare_routed(title: str, plan: RoutedPlan, stage: BackendContext, world: World) -> PreparedRouting | PartNotPrepared:
    """Allocate and bind all exchanges, and run each once on all ranks. Return them, or why a rank cannot, the same at all ranks."""
    operation = plan.operation
    cases = [case for case, _, _ in plan.largest]
    refusal = next(filter(None, (unsupported_reason(stage.backend, operation, case) for case in cases)), None)
    reason = world.first_error(as_json(refusal) if refusal else None, f"asking {stage.backend.name} what it can do")
    if reason is not None:
        return PartNotPrepared(plan.parts[0].what, decode_reason(reason))  # type: ignore[arg-type]
    operation = operation.on(stage.backend.api, stage.backend.passes_messages)
    preparation = Preparation(operation, cases[0], stage, (plan.ranks,), world, 1)
    groups = (stage.whole,) if stage.whole else ()

    def allocate() -> list[tuple[AnyBuffers, ...]]:
        by_way = []
        for case, sent, received in plan.largest:
            slots = _slots(case, plan.routing.layers)
            by_way.append(tuple(stage.backend.allocate(_sizing(operation, sent, received), case, group, slots) for group in groups))
        for buffers in chain.from_iterable(by_way):
            for slot in range(buffers.slots):
                buffers.fill(slot, for_check=False)
        return by_way

    memory = preparation.attempt("allocating", "allocation", allocate)
    failed = preparation.first_failure(memory, "allocating")
    if failed:
        return PartNotPrepared(plan.parts[0].what, failed)
    assert not isinstance(memory, CaseFailed)
    views = [
        tuple(buffers.over(operation, exchange.case, exchange.slot) for buffers in memory[exchange.way.back])  # type: ignore[attr-defined]
        for exchange in plan.exchanges
    ]

    def bind() -> list[Program]:
        programs = []
        for exchange, views_of in zip(plan.exchanges, views, strict=True):
            bound = [stage.backend.bind(operation, exchange.case, group, view) for group, view in zip(groups, views_of, strict=True)]
            programs.append(joined(bound) if bound else Program(((),)))
        return programs

    programs = preparation.attempt("binding its calls", "binding", bind)
    failed = preparation.first_failure(programs, "binding its calls")
    if failed:
        return PartNotPrepared(plan.parts[0].what, failed)
    assert not isinstance(programs, CaseFailed)
    ready = _ready(title, plan, programs, stage, world)
    refused = None
    try:
        with phase(ready, world, "the first call"):
            ready.checking.run(len(plan.exchanges))
    except CallFailed as error:
        refused = CaseFailed("first call", world.rank, str(error))
    failed = preparation.first_failure(refused, "the first call")
    if failed:
        return PartNotPrepared(plan.parts[0].what, failed)
    return PreparedRouting(plan, ready, tuple(views))


def _ready(title: str, plan: RoutedPlan, programs: Sequence[Program], stage: BackendContext, world: World) -> PreparedCase:
    """Return all turns as one case that can be timed."""
    case = Case(title, stage.backend.name, plan.parts[0].case.dtype, plan.largest[0][0].size_bytes, plan.parts[0].case.device)
    calls = [program.slots[0] for program in programs]
    explain = programs[0].explain
    round_program = Program(
        tuple(tuple(call for index in step for call in calls[index]) for step in plan.steps), keep=programs, explain=explain
    )
    timed = Timed(round_program, stage.sync, stage.backend.clock(), world.watchdog.progress)
    checking = Loop(replace(timed, program=Program(tuple(calls), keep=programs, explain=explain)))
    groups = (stage.whole,) if stage.whole else ()
    must = partial(_must_cross, plan)
    return PreparedCase(step_operation(title), case, (plan.ranks,), groups, (), Loop(timed), checking, program=round_program, must=must)


def _must_cross(plan: RoutedPlan, host_of: Mapping[int, str]) -> LeastBytes:
    """Return the bytes that must leave and reach each host in a turn: the mean over a round."""
    hosts = [host_of[rank] for rank in plan.ranks]
    names = list(dict.fromkeys(hosts))
    member = np.array([[host == name for host in hosts] for name in names], np.float64)
    number = np.bincount([index for step in plan.steps for index in step], minlength=len(plan.exchanges)) / len(plan.steps)
    between = np.zeros((len(names), len(names)))
    for exchange, times in zip(plan.exchanges, number, strict=True):
        assert exchange.case.traffic is not None
        between += times * exchange.way.token_bytes * (member @ exchange.case.traffic.weights(len(hosts)) @ member.T)
    np.fill_diagonal(between, 0.0)
    out, into = (dict(zip(names, between.sum(axis=axis).tolist(), strict=True)) for axis in (1, 0))
    return LeastBytes(out, into, float(between.sum()))


# Sampling: whole rounds, so that all routings have equally many samples.


def joint_confidence(number: int) -> float:
    """Return the confidence of each of so many intervals of which all hold at the same time with at least 95 % (Bonferroni)."""
    return 1 - 0.05 / number


@dataclass
class RoutedWork(Work):
    """All routings of a step, measured in turn."""

    title: str
    plan: RoutedPlan
    prepared: PreparedRouting | None = None

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return all turns as one case, or why a rank cannot run an exchange."""
        prepared = prepare_routed(self.title, self.plan, self.context, world)
        if isinstance(prepared, Fact):
            return prepared
        self.prepared = prepared
        return prepared.ready

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return how many rounds are taken: until the time of a round is precise, and each routing has enough rounds for its interval."""
        turns = len(self.plan.turns)
        few = max(fewest_for(joint_confidence(len(self.plan.routing.steps))), -(-FEW // turns))
        return Stopping(budget, ready.case.size_bytes, self.plan.ranks, turns=turns, first=few, few=few, window=(1, 1))

    def checks(self, ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
        """Yield a turn for each exchange."""
        assert self.prepared is not None
        for _ in range(calls):
            for index, (exchange, buffers) in enumerate(zip(self.plan.exchanges, self.prepared.buffers, strict=True)):
                fills = [partial(view.fill, 0, for_check=True) for view in buffers]
                compare = partial(_mismatches, exchange.what, buffers)
                yield VerificationTurn(fills, partial(ready.checking.run, 1, slot=index), [compare], what=exchange.what)

    def release(self, ready: PreparedCase) -> None:
        """Free nothing: the groups are those of the launch."""


def _mismatches(what: str, buffers: Sequence[AnyBuffers]) -> list[Mismatch]:
    return [replace(mismatch, what=what) for view in buffers for mismatch in view.check(0) if mismatch]


_QUANTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}


class RoutedTimes(msgspec.Struct, frozen=True):
    """The times of all routings, from [rounds × turns] seconds.

    each    by routing the median of its time; tax: of its time divided by that of even turns of the same round
    spread  over the routings; mean_even: the mean even time of a round; whole: the tax of all routings together
    """

    each: tuple[Median, ...]
    tax: tuple[Median, ...]
    spread: TimeQuantiles
    mean_even: Median
    whole: Median


def _turns_of_routings(plan: RoutedPlan) -> list[int]:
    """Return by routing the index of its turn in a round."""
    return [index for _, index in sorted((turn.place, index) for index, turn in enumerate(plan.turns) if not turn.even)]


def routed_times(seconds: Samples, plan: RoutedPlan) -> RoutedTimes:
    """Return the statistics of the samples. A ratio compares a routing with the mean of its even turns in the same round."""
    routing = plan.routing
    totals = [routing.totals(place) for place in range(len(routing.steps))]
    even_turns: dict[tuple[int, ...], list[int]] = {}
    for index, turn in enumerate(plan.turns):
        if turn.even:
            even_turns.setdefault(totals[turn.place], []).append(index)
    routed = seconds[:, _turns_of_routings(plan)]
    even = np.stack([seconds[:, even_turns[total]].mean(axis=1) for total in totals], axis=1)
    confidence = joint_confidence(len(totals))
    joint = [median(routed[:, place], confidence) for place in range(len(totals))]
    return RoutedTimes(
        tuple(median(routed[:, place]) for place in range(len(totals))),
        tuple(median(routed[:, place] / even[:, place]) for place in range(len(totals))),
        TimeQuantiles(**{name: _quantile(joint, share) for name, share in _QUANTILES.items()}),
        median(even.mean(axis=1)),
        median(routed.sum(axis=1) / even.sum(axis=1)),
    )


def _quantile(medians: Sequence[Median], share: float) -> Estimate:
    """Return a quantile over the routings. If all intervals hold, the quantile is between those of their ends."""

    def of(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return quantile(np.sort(known), share) if len(known) == len(medians) else None

    return Estimate(of(time.value for time in medians), of(time.ci_low for time in medians), of(time.ci_high for time in medians))


def _estimate(middle: Median) -> Estimate:
    return Estimate(middle.value, middle.ci_low, middle.ci_high)


def routed_limits(plan: RoutedPlan, ceilings: Ceilings, backend: Backend) -> list[PartLimit]:
    """Return the limits of each exchange, at rank 0. References are measured at the size of an even exchange."""
    limits = []
    for exchange in plan.exchanges:
        case = replace(exchange.case, size_bytes=plan.parts[exchange.way.back].case.size_bytes)
        limits.append(PartLimit(*ceilings.of(plan.operation, case, backend, (plan.ranks,))))
    return limits


def routed_row(row: StepRow, plan: RoutedPlan, watched: MonitoredMeasurement, around: Around) -> StepRow:
    """Return the row with all measurements, at rank 0. `around.limits` has those of each exchange."""
    seconds = slowest(watched.measured.samples, plan.ranks, len(plan.turns))
    rounds = watched.measured.samples.shape[1] // len(plan.turns)
    moved = plan.moved_bytes()[_turns_of_routings(plan)]
    row = row.replace(moved_bytes=float(moved.mean()), stopped=watched.measured.stopped)
    if not len(seconds):
        return row.replace(flags=tuple(dict.fromkeys((*around.context.flags, *watched.measured.flags, *watched.flags, "clock_stepped"))))
    times = routed_times(seconds, plan)
    ceiling, expected_s, bound_s = _expected(plan, around.limits)
    measured_s = np.array([time.value for time in times.each])
    passed = bound_s is not None and bool(np.any(measured_s * TOLERANCE < bound_s))
    misleading, flags = around.judged(watched, passed, doubts(seconds.sum(axis=1), rounds, None, 1))
    withheld = misleading or passed
    whole_s, whole_bytes = float(measured_s.sum()), float(moved.sum())
    at_ceiling_s = float(expected_s.sum()) if expected_s is not None else None
    result = _result(plan, times, len(seconds), moved, None if withheld else expected_s)
    ceiling = replace(ceiling, bytes_per_s=whole_bytes / at_ceiling_s if at_ceiling_s else None, **NO_INTERVAL)
    percent = 100 * at_ceiling_s / whole_s if at_ceiling_s and whole_s and not withheld else None
    return row.compared_with(ceiling, percent).replace(
        n=len(seconds) * len(plan.routing.steps), time_s=_times(times), routing=result,
        busbw_bytes_per_s=whole_bytes / whole_s if whole_s else None,
        ceiling_time_s=at_ceiling_s / len(moved) if at_ceiling_s else None,
        flags=flags,
        evidence={**(around.context.evidence or {}), "rounds": len(seconds), "exchanges": len(plan.exchanges)},
    )  # fmt: skip


def _times(times: RoutedTimes) -> Times:
    """Return the quantiles over the routings, of their medians."""
    values = np.sort([time.value for time in times.each])
    middle = times.spread.p50
    return Times(
        middle.value or 0.0, middle.low, middle.high, float(values[0]), quantile(values, 0.95), quantile(values, 0.99), float(values[-1])
    )


def _expected(plan: RoutedPlan, limits: Sequence[PartLimit]) -> tuple[Ceiling, NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return (the ceiling of the longest exchange; [routings] seconds at the ceilings, and at the hard limits, None if unknown)."""
    parts = [plan.part(index) for index in range(len(plan.exchanges))]
    seconds = [least_s(part, limit.ceiling) for part, limit in zip(parts, limits, strict=True)]
    bounds = [least_s(part, limit.bound) for part, limit in zip(parts, limits, strict=True)]
    unknown = next((limit.ceiling for limit, time_s in zip(limits, seconds, strict=True) if time_s is None), None)
    longest = unknown or limits[max(range(len(parts)), key=lambda index: seconds[index] or 0.0)].ceiling

    def of_steps(by_exchange: Sequence[float | None]) -> NDArray[np.float64] | None:
        if None in by_exchange:
            return None
        return np.array([sum(by_exchange[index] or 0.0 for index in plan.steps[turn]) for turn in _turns_of_routings(plan)])

    return longest, of_steps(seconds), of_steps(bounds)


def _result(
    plan: RoutedPlan, times: RoutedTimes, rounds: int, moved: NDArray[np.float64], expected_s: NDArray[np.float64] | None
) -> RoutingResult:
    """Return the row's field `routing`. expected_s: [routings] seconds at the ceilings; None: unknown, or no percentage applies."""
    routing = plan.routing
    steps = []
    for place, number in enumerate(routing.steps):
        rank, share = routing.busiest(place)
        time_s = times.each[place].value
        step_expected_s = float(expected_s[place]) if expected_s is not None else None
        moved_bytes = float(moved[place])
        step = RoutedStep(
            number, _estimate(times.each[place]), _estimate(times.tax[place]), routing.imbalance(place), rank, share, moved_bytes,
            moved_bytes / time_s if time_s else None, moved_bytes / step_expected_s if step_expected_s else None,
            100 * step_expected_s / time_s if step_expected_s and time_s else None,
        )  # fmt: skip
        steps.append(step)
    copies = float(routing.tokens.sum()) / len(routing.steps) * 2 * routing.times
    dispatch, combine = (WayBytes(way.dtype, copies * way.token_bytes) for way in routing.ways)
    return RoutingResult(
        routing.name, routing.experts, routing.layers, rounds, times.spread, _estimate(times.mean_even), _estimate(times.whole), dispatch,
        combine, tuple(steps),
    )  # fmt: skip
