"""Measure a training step: its exchanges as cases of a backend, timed as one iteration. Each part is also timed alone.

Equal exchanges form one part with one set of buffers, which are used in turn and are together larger than the caches. So
the data of an exchange is no longer in the caches when it is sent again, as with a model's gradients. The whole model need
not fit twice.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend, NonBlockingBackend, steps_of, unsupported_reason
from collbench.backends.host import Buffers
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch.limits import free_bytes
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, no_ceiling
from collbench.measuring.ceilings import Ceilings
from collbench.measuring.crossing import LeastBytes, least
from collbench.measuring.engine import Engine, Measured, Work
from collbench.measuring.loop import Loop, Timed, TimedLoop
from collbench.measuring.monitored import MonitoredMeasurement
from collbench.measuring.open_backends import OpenBackend
from collbench.measuring.prepared_case import (
    BackendContext,
    PreparedCase,
    phase,
    placed,
    prepare,
    release,
)
from collbench.measuring.request import Budget, Request
from collbench.measuring.row import RowContext, against_limits, doubts, times_of
from collbench.measuring.sampling import Measurement, Stopping, slowest, sound
from collbench.measuring.session import LaunchSession
from collbench.measuring.verification import DataError, VerificationTurn, check_fields, mismatches_in, wrong_evidence
from collbench.operations.case import Case, Split
from collbench.operations.data import Mismatch, bytes_needed, bytes_on_host, expected_blocks_of, poison, seeded, slots_for
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation, Place, has_mark
from collbench.operations.program import Call, NonBlocking, Program, PythonCall, joined
from collbench.operations.unsupported import HostMemoryNeeded, TimelineUnsupported, decode_reason
from collbench.plugins.overlap.measurement import bind_started, loop_of
from collbench.plugins.traces.recording import Recording
from collbench.plugins.training.records import PartRow, ReplayedTrace, StepRow
from collbench.plugins.training.timeline import calls_of, check_timeline, slots_needed, timeline_s
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step, bytes_of, disjoint, moved_bytes, operation_of
from collbench.reason import Fact, as_json
from collbench.results.row import Times
from collbench.units import format_bytes, plural


def pieces(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (first element, number) of consecutive pieces with these numbers of elements, without the empty ones."""
    return tuple((first, count) for first, count in zip(accumulate(counts, initial=0), counts, strict=False) if count)


class _Server(msgspec.Struct, frozen=True):
    """A receiving rank of a parameter-server exchange: the position of each sender's share, and memory for one sum per slot.

    rank   in the job; driven: its number among those that this process drives
    """

    rank: int
    place: Place
    buffers: Buffers
    driven: int
    shares: tuple[tuple[int, int], ...]
    totals: NDArray[Any]

    def add(self, slot: int) -> None:
        """Add the shares in the order of the ranks. A share may be shorter than the sum, since its last element was rounded off."""
        received = self.buffers.recv(self.driven, slot)
        total = self.totals[slot]
        total[:] = 0
        for begin, count in self.shares:
            np.add(total[:count], received[begin : begin + count], out=total[:count])


class ServerSums:
    """The servers of one part of a step that this process drives."""

    def __init__(self, ready: PreparedCase) -> None:
        self._ready = ready
        self._servers: list[_Server] = []
        for group, buffers in zip(ready.own_groups, ready.buffers, strict=True):
            assert isinstance(buffers, Buffers), "refused on GPUs before"
            for driven, place in enumerate(buffers.places):
                shares = pieces([block.count for block in ready.operation.expected_blocks(place)])
                if shares:
                    totals = np.zeros((buffers.slots, max(count for _, count in shares)), place.case.dtype.numpy)
                    self._servers.append(_Server(group.ranks[place.rank], place, buffers, driven, shares, totals))

    def program(self) -> Program:
        """Return the program that adds received data, slot by slot."""
        if not self._servers:
            return self._ready.program

        def add(slot: int) -> None:
            for server in self._servers:
                server.add(slot)

        program = self._ready.program
        slots = tuple((*calls, PythonCall("add", partial(add, slot))) for slot, calls in enumerate(program.slots))
        return Program(slots, keep=(program, self), explain=program.explain)

    def spoil(self) -> None:
        """Overwrite the sums, so that verification detects a sum that was not computed."""
        for server in self._servers:
            poison(server.totals)

    def mismatches(self, slot: int) -> list[Mismatch]:
        """Return the mismatches of the sums of this slot.

        The order of the additions is known, so the comparison is exact in every type.
        """
        wrong = []
        for server in self._servers:
            total = server.totals[slot]
            right = np.zeros_like(total)
            for expected in expected_blocks_of(self._ready.operation, seeded(server.place, slot)):
                part = right[: expected.block.count]
                np.add(part, expected.elements(0, expected.block.count), out=part)
            bits = f"u{right.itemsize}"
            bad = np.flatnonzero(right.view(bits) != total.view(bits))
            if bad.size:
                first = int(bad[0])
                wrong.append(Mismatch(server.rank, int(bad.size), first, str(right[first]), str(total[first]), "what the server added up"))
        return wrong


_FOR_PARTS = 0.2  # of a step's time budget, to measure its parts alone
MOST_EXCHANGES = 100_000  # of a step: the loop stores a call for each, and no known model has 1,000
# a prime above the seeds' differences between slots and groups, so that data in a buffer of another part or exchange is detected
BETWEEN_SEEDS = 104_729


class NamedGroups(Split, frozen=True):
    """The groups that a step names, instead of a split of all ranks."""

    named: Groups = ()

    def __str__(self) -> str:
        """Return the text for titles: "2 groups"."""
        return "1 group" if len(self.named) == 1 else f"{len(self.named)} groups"

    def groups(self, n: int) -> Groups:
        """Return the named groups."""
        return self.named


class StepPart(msgspec.Struct, frozen=True):
    """A set of equal exchanges of a step.

    what    name of the first exchange, and of the last one if they differ: "bucket 1 of 14 … bucket 13 of 14"
    ends    the names of the first and the last exchange
    times   how many there are in a step
    in_flight   how many buffers a rank uses at once, where it starts the next exchange before it has waited for one; see `agree`
    """

    what: str
    exchange: Exchange
    operation: Operation
    case: Case
    times: int
    ends: tuple[str, str] = ("", "")
    in_flight: int = 1

    @property
    def groups(self) -> Groups:
        """The groups, which exchange at the same time."""
        return self.exchange.groups

    @property
    def width(self) -> int:
        """The number of ranks of each group."""
        return len(self.groups[0])

    @property
    def slots(self) -> int:
        """The number of buffers that a step uses in turn."""
        return min(max(slots_for(self.case), self.in_flight), self.times)

    @property
    def whole(self) -> Exchange:
        """The part as one exchange, with the size that it moves."""
        return replace(self.exchange, size_bytes=self.case.size_bytes, times=self.times)

    @property
    def laid(self) -> tuple[Operation, Case]:
        """The operation and case from which the groups are derived. Pairs are listed by name."""
        return replace(self.operation, pair=False), replace(self.case, split=_named_groups(self.groups))


class StepPlan(msgspec.Struct, frozen=True):
    """A step on a backend: its parts, and the part of each exchange in their order."""

    step: Step
    parts: tuple[StepPart, ...]
    order: tuple[int, ...]

    @property
    def ordinals(self) -> list[int]:
        """By exchange how many exchanges of its part come before it."""
        earlier = Counter[int]()
        ordinals = []
        for part in self.order:
            ordinals.append(earlier[part])
            earlier[part] += 1
        return ordinals

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part in any exchange, ascending."""
        return tuple(sorted(set(chain.from_iterable(group for part in self.parts for group in part.groups))))


def plan_of(step: Step, request: Request, backend: Backend) -> StepPlan:
    """Return the step's parts as cases. A step with a timeline needs `agree` next.

    Raises UsageError for groups that the operation does not support, sizes below one element, too many exchanges, and a timeline that
    is not complete.
    """
    check_number(step)
    if step.timeline:
        check_timeline(step, backend.ranks)
    part_of: dict[Exchange, int] = {}
    order_once = [part_of.setdefault(replace(exchange, what="", times=1), len(part_of)) for exchange in step.exchanges]
    exchanges_of: list[list[Exchange]] = [[] for _ in part_of]
    for exchange, part in zip(step.exchanges, order_once, strict=True):
        _check(exchange, backend.ranks)
        exchanges_of[part].append(exchange)
    parts = tuple(_part(exchanges, number, request, backend) for number, exchanges in enumerate(exchanges_of))
    if not parts:
        raise UsageError("this step has no exchanges to measure: start more ranks, or use another regime")
    order = [part for exchange, part in zip(step.exchanges, order_once, strict=True) for _ in range(exchange.times)]
    return StepPlan(step, parts, tuple(order))


def agree(plan: StepPlan, world: World) -> StepPlan:
    """Return the plan with the buffers of each part that follow from the timelines of all ranks.

    All ranks must call it, and each needs the timelines of its own ranks only. A plan without a timeline is returned unchanged.
    Raises UsageError on all ranks if a rank lacks its timeline, or if the ranks wait for one another.
    """
    step = plan.step
    if not step.timeline:
        return plan
    by_rank = world.allgather(_own_timelines(plan, world), "comparing the ranks' timelines")
    for timelines in by_rank:
        if timelines["wrong"]:
            raise UsageError(timelines["wrong"])
    in_flight = [max(timelines["in_flight"].get(str(part), 1) for timelines in by_rank) for part in range(len(plan.parts))]
    parts = tuple(replace(part, in_flight=buffers) for part, buffers in zip(plan.parts, in_flight, strict=True))
    return replace(plan, parts=parts)


def _own_timelines(plan: StepPlan, world: World) -> dict[str, Any]:
    """Return what a rank's timelines need, JSON-ready: by part the buffers in flight, if several."""
    step = plan.step
    timelines = [actions for actions in step.timeline if actions]
    wrong = None
    try:
        if world.rank in plan.ranks and not step.timeline[world.rank]:
            raise UsageError(f"rank {world.rank} has exchanges, but not its timeline: give each rank its own")
        timeline_s(step, [0.0] * len(step.exchanges))
    except UsageError as error:
        wrong = str(error)
    ordinals = plan.ordinals
    slots_by_rank = [slots_needed(actions, plan.order, ordinals, len(plan.parts)) for actions in timelines]
    in_flight = {str(part): max(slots) for part, slots in enumerate(zip(*slots_by_rank, strict=True)) if max(slots) > 1}
    return {"wrong": wrong, "in_flight": in_flight}


def check_number(step: Step) -> None:
    """Raise UsageError if a step has too many exchanges to prepare."""
    number = sum(exchange.times for exchange in step.exchanges)
    if number > MOST_EXCHANGES:
        smaller = "use a larger --bucket, fewer --layers or --microbatches, or a smaller model"
        remedy = "replay one step of the trace" if step.timeline else smaller
        raise UsageError(f"this step makes {number:,} exchanges, but at most {MOST_EXCHANGES:,} can be prepared: {remedy}")


def _check(exchange: Exchange, ranks: int) -> None:
    sizes = {len(group) for group in exchange.groups}
    if not disjoint(exchange.groups) or len(sizes) != 1 or 0 in sizes:
        raise UsageError(f"{exchange.what}: its groups {exchange.groups} must be disjoint and of one size")
    invalid = [rank for group in exchange.groups for rank in group if not 0 <= rank < ranks]
    if invalid:
        raise UsageError(f"{exchange.what}: rank {invalid[0]} is not among the {ranks} ranks: start more")
    if operation_of(exchange).pair and sizes != {2}:
        raise UsageError(f"{exchange.what}: {exchange.operation} is between two ranks, not {max(sizes)}")


def _part(exchanges: list[Exchange], number: int, request: Request, backend: Backend) -> StepPart:
    first = exchanges[0]
    last = exchanges[-1]
    operation = operation_of(first)
    times = sum(exchange.times for exchange in exchanges)
    what = first.what if first.what == last.what else f"{first.what} … {last.what}"
    case = _case(first, operation, times, request, backend)
    return StepPart(what, first, operation, replace(case, seed=case.seed + number * BETWEEN_SEEDS), times, (first.what, last.what))


def _case(exchange: Exchange, operation: Operation, times: int, request: Request, backend: Backend) -> Case:
    sweep = request.sweep.each[0]
    n = len(exchange.groups[0])
    dtype = dtype_named(exchange.dtype)
    least_bytes = dtype.size * operation.parts(n)
    if exchange.size_bytes < least_bytes and not operation.is_barrier:
        raise UsageError(
            f"{exchange.what}: {exchange.size_bytes} bytes are less than an element for each of {n} ranks ({least_bytes} bytes): "
            "choose a larger model, or start fewer ranks"
        )
    requested = replace(
        sweep, operations=(operation,), sizes=(exchange.size_bytes,), dtypes=(dtype,), redops=(exchange.redop or "sum",),
        roots=(exchange.root or 0,), mode=sweep.mode or "isolated", buffers="rotating" if times > 1 else "fixed", window=1,
        algorithms=sweep.algorithms[:1], protocols=sweep.protocols[:1], registrations=sweep.registrations[:1], backends=(), split=None,
        traffic=exchange.traffic, streams=None,
    )  # fmt: skip
    *_, case = requested.cases(backend.name, n)  # with a forced algorithm or protocol the library's own choice comes before it
    whole = exchange.groups == (tuple(range(backend.ranks)),)
    if not (operation.pair or whole):
        case = replace(case, split=_named_groups(exchange.groups))
    # gradients are all-reduced in place, as in training; others use the default
    if case.in_place is None and operation.name == "allreduce" and not has_mark(steps_of(backend, operation), "out_of_place_only"):
        return case.placed(True)
    return placed(case, operation, backend)


def _named_groups(groups: Groups) -> NamedGroups:
    return NamedGroups("GROUPS", len(groups), groups)


def too_large(title: str, plan: StepPlan, backend: Backend, world: World) -> str | None:
    """Return why a step's buffers do not fit this host or its GPUs; None if they fit."""
    device = backend.free_bytes(plan.parts[0].case)
    here = backend.ranks if backend.virtual else len(world.on_host())
    if device is None:
        need = sum(_on_host(plan, here))
        free = free_bytes()
        place_text = f"for its {plural(here, 'rank')}"
    else:
        need = sum(_on_device(plan))
        free = device
        place_text = "on each GPU"
    if need <= free:
        return None
    return (
        f"the buffers of {title} need {format_bytes(need)} on {world.me.host} {place_text}, but only {format_bytes(free)} is free: "
        "use a smaller model, or smaller exchanges (--bucket, --microbatch; of fsdp more --layers)"
    )


def _on_device(plan: StepPlan) -> Iterator[int]:
    return (_used(part, bytes_needed(part.operation, part.case, part.width)) for part in plan.parts)


def _used(part: StepPart, all_slots_bytes: int) -> int:
    return all_slots_bytes * part.slots // slots_for(part.case)


def _on_host(plan: StepPlan, ranks_here: int) -> Iterator[int]:
    """Yield the host memory of every part. A server's sums need as much memory as its received data."""
    for part in plan.parts:
        ranks = min(ranks_here, part.width * len(part.groups))
        yield _used(part, bytes_on_host(part.operation, part.case, part.width, ranks, len(part.groups)))
        yield ranks * part.slots * part.case.size_bytes if part.exchange.adds else 0


class PreparedPart(msgspec.Struct, frozen=True):
    """A part of a step that every rank can run.

    program   one exchange per buffer slot; at a server followed by the additions
    started   the same exchange in two programs, of a step with a timeline; None where the library cannot start it without waiting
    """

    part: StepPart
    ready: PreparedCase
    program: Program
    loop: Loop
    adding: ServerSums | None = None
    started: NonBlocking | None = None


class PreparedStep(msgspec.Struct, frozen=True):
    """All parts of a step, and the whole step. `ready.loop` runs the step; `ready.checking` uses each of its buffers once.

    no_overlap   of a step with a timeline: why its exchanges run one after the other, instead of overlapping as recorded; else None
    """

    plan: StepPlan
    parts: tuple[PreparedPart, ...]
    ready: PreparedCase
    no_overlap: Fact | None = None


class PartNotPrepared(Fact, frozen=True):
    """A part of a training step cannot run on the backend: the part, and the reason."""

    text = "{part}: {reason}"
    part: str
    reason: Fact


def prepare_step(title: str, plan: StepPlan, stage: BackendContext, world: World) -> PreparedStep | PartNotPrepared:
    """Allocate, bind and try every part on all ranks, and join them. Return the step, or why some rank cannot, the same on all."""
    parts: list[PreparedPart] = []
    if plan.step.timeline and not runs_timelines(stage):
        return PartNotPrepared(title, TimelineUnsupported(stage.backend.name))
    for part in plan.parts:
        prepared = _prepare(part, stage, world)
        if isinstance(prepared, Fact):
            release_step(parts, stage.backend)
            return PartNotPrepared(part.what, prepared)
        parts.append(prepared)
    no_overlap = None
    if plan.step.timeline:
        parts, no_overlap = startable(parts, stage, world)
    return PreparedStep(plan, tuple(parts), _whole(title, plan, parts, stage, world), no_overlap)


def runs_timelines(stage: BackendContext) -> bool:
    """Return whether a backend can run a step with a timeline: it can compute, and a process drives one rank."""
    return isinstance(stage.backend, NonBlockingBackend) and len(stage.driven) <= 1


def startable(parts: Sequence[PreparedPart], stage: BackendContext, world: World) -> tuple[list[PreparedPart], Fact | None]:
    """Return the parts with the programs that start them, after a trial; or as they are, with the first reason of a rank.

    All ranks call. If one part cannot be started, none is: exchanges that run to their end between others that were started could
    block the ranks.
    """
    started: list[NonBlocking] = []
    reason = None
    for part in parts:
        programs = bind_started(part.ready, stage.backend)
        if isinstance(programs, Fact):
            reason = programs
            break
        started.append(programs)
    first = world.first_error(None if reason is None else as_json(reason), f"asking {stage.backend.name} what it can start")
    if first is not None:
        return list(parts), decode_reason(first)
    for part, programs in zip(parts, started, strict=True):
        both = joined([replace(program, slots=program.slots[:1]) for program in (programs.start, programs.wait)])
        with phase(part.ready, world, "starting it and waiting for it"):
            loop_of(both, stage, world).run(1, slot=0)
    return [replace(part, started=programs) for part, programs in zip(parts, started, strict=True)], None


def release_step(parts: Sequence[PreparedPart], backend: Backend) -> None:
    """Free the groups that were created for these parts only."""
    for part in parts:
        release(part.ready, backend)


def _prepare(part: StepPart, stage: BackendContext, world: World) -> PreparedPart | Fact:
    """Prepare one part, or return why a rank cannot, the same at all ranks. All ranks call."""
    refusal = unsupported_reason(stage.backend, part.operation, part.case)
    if part.exchange.adds and part.case.device != "cpu":
        refusal = refusal or HostMemoryNeeded("server")
    reason = world.first_error(None if refusal is None else as_json(refusal), f"asking {stage.backend.name} what it can do")
    if reason is not None:
        return decode_reason(reason)  # type: ignore[return-value]
    ready = prepare(part.operation, part.case, stage, world, part.groups, slots=part.slots)
    if isinstance(ready, Fact):
        return ready
    adding = ServerSums(ready) if part.exchange.adds else None
    program = adding.program() if adding else ready.program
    return PreparedPart(part, ready, program, _loop(program, stage, world), adding)


def _loop(program: Program, stage: BackendContext, world: World) -> Loop:
    """Return the loop over these calls. The ranks synchronize before each sample."""
    return Loop(Timed(program, stage.sync, stage.backend.clock(), world.watchdog.progress))


def _whole(title: str, plan: StepPlan, parts: Sequence[PreparedPart], stage: BackendContext, world: World) -> PreparedCase:
    """Return the step as one case that can be timed: one operation over all ranks that take part in any exchange."""
    case = Case(title, stage.backend.name, dtype_named(plan.step.exchanges[0].dtype), plan.step.payload_bytes, parts[0].ready.case.device)
    operation = step_operation(title)
    turns = list(turns_of(plan, parts))
    # verification uses each buffer once: a second in-place sum would add to the first
    if plan.step.timeline:
        program = _timeline_program(plan, parts, turns, stage)
        timed = loop_of(program, stage, world)
        once = loop_of(_timeline_program(plan, parts, _first_uses(turns), stage), stage, world)
    else:
        program = _program(parts, turns)
        timed = _loop(program, stage, world)
        once = _loop(_program(parts, list(dict.fromkeys(turns))), stage, world)
    buffers = tuple(chain.from_iterable(part.ready.buffers for part in parts))
    own_groups = (stage.whole,) if stage.whole else ()  # the counters need the ranks that this process drives
    must = partial(must_cross, parts)
    return PreparedCase(operation, case, (plan.ranks,), own_groups, buffers, timed, once, program=program, must=must)


def step_operation(title: str) -> Operation:
    """Return the operation that a whole step counts as."""
    return Operation(title, bus_factor=lambda n: 1.0, expected_blocks=lambda x: [])


def must_cross(parts: Sequence[PreparedPart], host_of: Mapping[int, str]) -> LeastBytes:
    """Return the bytes that must leave and reach each host in a step, with any algorithm."""
    out = dict.fromkeys(host_of.values(), 0.0)
    into = dict.fromkeys(host_of.values(), 0.0)
    total = 0.0
    for prepared in parts:
        part = prepared.part
        hosts = {rank: host_of[rank] for rank in taking_part(part)}
        once = least(prepared.ready.operation, prepared.ready.case, part.groups, hosts)
        total += part.times * once.total
        for host in out:
            out[host] += part.times * once.out.get(host, 0.0)
            into[host] += part.times * once.into.get(host, 0.0)
    return LeastBytes(out, into, total)


def turns_of(plan: StepPlan, parts: Sequence[PreparedPart]) -> Iterator[tuple[int, int]]:
    """Yield (part, slot) of every exchange."""
    return ((part, ordinal % parts[part].part.slots) for part, ordinal in zip(plan.order, plan.ordinals, strict=True))


def _program(parts: Sequence[PreparedPart], turns: Sequence[tuple[int, int]]) -> Program:
    """Return the exchanges in this order. A rank that takes no part in one has one slot without calls."""
    programs = []
    for part, slot in turns:
        program = parts[part].program
        programs.append(replace(program, slots=(program.slots[slot % len(program.slots)],), once=None))
    explain = next((program.explain for program in programs if program.slots[0]), programs[0].explain)  # slots without calls cannot fail
    return replace(joined(programs), explain=explain)


def _first_uses(turns: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Return (part, slot) of the exchanges that use a buffer first; None for the others."""
    first = {turn: number for number, turn in reversed(list(enumerate(turns)))}
    return [turn if first[turn] == number else None for number, turn in enumerate(turns)]


def _timeline_program(
    plan: StepPlan, parts: Sequence[PreparedPart], turns: Sequence[tuple[int, int] | None], stage: BackendContext
) -> Program:
    """Return this rank's timeline: an exchange without a turn is left out. Without `started` each runs to its end where it starts."""
    backend = stage.backend
    assert isinstance(backend, NonBlockingBackend)

    def start(exchange: int) -> Sequence[Call]:
        turn = turns[exchange]
        if turn is None:
            return ()
        part, slot = turn
        started = parts[part].started
        return (started.start if started else parts[part].program).slots[slot]

    def wait(exchange: int) -> Sequence[Call]:
        turn = turns[exchange]
        started = parts[turn[0]].started if turn else None
        return started.wait.slots[turn[1]] if started and turn else ()

    timelines = [plan.step.timeline[rank] for rank in stage.driven]
    calls = tuple(call for actions in timelines for call in calls_of(actions, start, wait, lambda seconds: (backend.compute(seconds),)))
    explain = next((part.program.explain for part in parts if any(part.program.slots)), parts[0].program.explain)
    return Program((calls,), keep=tuple(parts), explain=explain)


def time_parts(
    step: PreparedStep, stage: BackendContext, engine: Engine, budget: Budget
) -> tuple[list[Measurement | None], tuple[str, ...]]:
    """Measure each part alone with few samples, together for a fifth of the budget. Return (results at rank 0, flags of the step's row).

    A part is left out if its first call took longer than the budget, or if the parts before it used the whole budget up. So the parts that
    move most come first. The ranks synchronize before each exchange.
    """
    share = replace(budget, max_time_s=_FOR_PARTS * budget.max_time_s / len(step.parts), iterations=None, warmup=1)
    results: list[Measurement | None] = [None] * len(step.parts)
    flags: tuple[str, ...] = ()
    end_s = time.monotonic() + budget.max_time_s
    for number, part in sorted(enumerate(step.parts), key=lambda numbered: -_moved_once(numbered[1].part)):
        fits = stage.backend.virtual or (part.ready.first_call_s <= budget.max_time_s and time.monotonic() < end_s)
        if engine.world.broadcast(fits, "planning the parts"):
            results[number] = engine.sample(PartWork(stage, part), part.ready, share, part.loop)
        else:
            flags = ("parts_left_out",)
    return results, flags


def taking_part(part: StepPart) -> list[int]:
    """Return the part's ranks, ascending. An exchange ends when the last of them is done."""
    return sorted(rank for group in part.groups for rank in group)


def step_checks(step: PreparedStep, calls: int) -> Iterator[VerificationTurn]:
    """Yield the turns of verification: refill all buffers, run the step's calls once per buffer, and compare each part."""
    for _ in range(calls):
        fills = [partial(_fill, part) for part in step.parts]
        yield VerificationTurn(fills, partial(step.ready.checking.run, 1, slot=0), [partial(_mismatches, part) for part in step.parts])


def _fill(prepared: PreparedPart) -> None:
    for slot in range(prepared.part.slots):
        for buffers in prepared.ready.buffers:
            buffers.fill(slot, for_check=True)
    if prepared.adding:
        prepared.adding.spoil()


def _mismatches(prepared: PreparedPart) -> list[Mismatch]:
    """Return the mismatches of all received data, and of the sums computed from it, with the name of the part."""
    slots = range(prepared.part.slots)
    mismatches = [mismatch for slot in slots for mismatch in mismatches_in(prepared.ready, slot)]
    if prepared.adding:
        mismatches += chain.from_iterable(map(prepared.adding.mismatches, slots))
    return [replace(mismatch, what=prepared.part.what) for mismatch in mismatches]


@dataclass
class StepWork(Work):
    """A step whose parts were prepared, and measured alone, before. `release_step` frees them."""

    step: PreparedStep

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the step."""
        return self.step.ready

    def checks(self, ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
        """Yield the turns of verification."""
        return step_checks(self.step, calls)

    def release(self, ready: PreparedCase) -> None:
        """Free nothing: the parts may be measured again, with a computation."""


@dataclass
class PartWork(Work):
    """One exchange of a step, alone: one of many short measurements."""

    part: PreparedPart

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the exchange."""
        return self.part.ready

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return few batches. The exchange ends when the last of its ranks is done."""
        return Stopping.short_measurement(budget, ready.case.size_bytes, taking_part(self.part.part))


# the interval of the reference's own rate, which has another unit
NO_INTERVAL: dict[str, Any] = {"low_bytes_per_s": None, "high_bytes_per_s": None}
_OF_RANKS = ("given", "measured")  # rates of a rank's own bytes; the rates of links are nccl-tests' busbw, also with uneven parts


class PartLimit(msgspec.Struct, frozen=True):
    """The limits of a part: its ceiling, and its hard limit (None: not known)."""

    ceiling: Ceiling
    bound: Ceiling | None


def limits_of(step: PreparedStep, ceilings: Ceilings, backend: Backend) -> list[PartLimit]:
    """Return the limits of each part, at rank 0."""
    return [PartLimit(*ceilings.of(part.ready.operation, part.ready.case, backend, part.part.groups)) for part in step.parts]


def path_s(plan: StepPlan, seconds_of: Mapping[int, float | None]) -> float | None:
    """Return the seconds of a step from those of its parts; None if one of them is unknown.

    Parts that share a rank follow one another; other parts overlap. An exchange begins when all its ranks are ready, and
    ends on all of them at the same time. With a timeline: see `timeline_s`.
    """
    if None in seconds_of.values():
        return None
    if plan.step.timeline:
        return timeline_s(plan.step, [seconds_of[part] or 0.0 for part in plan.order])
    free_s = dict.fromkeys(plan.ranks, 0.0)
    for part, repeats in groupby(plan.order):
        seconds = (seconds_of[part] or 0.0) * len(list(repeats))
        for group in plan.parts[part].groups:
            free_s.update(dict.fromkeys(group, max(free_s[rank] for rank in group) + seconds))
    return max(free_s.values())


def least_s(part: StepPart, ceiling: Ceiling | None) -> float | None:
    """Return the seconds of one exchange at a ceiling: None without a ceiling, 0 for an exchange that moves no data."""
    is_rank_rate = ceiling is not None and ceiling.kind in _OF_RANKS
    moved = _moved_once(part) if is_rank_rate else part.case.size_bytes * part.operation.bus_factor(part.width)
    if not moved:
        return 0.0
    return moved / ceiling.bytes_per_s if ceiling and ceiling.bytes_per_s else None


def rate_at(part: StepPart, ceiling: Ceiling | None) -> float | None:
    """Return the bytes per second of the busiest rank at a ceiling, comparable with the bus bandwidth of parts; None without one."""
    seconds = least_s(part, ceiling)
    return _moved_once(part) / seconds if seconds else None


def with_figures(
    row: StepRow, step: PreparedStep, watched: MonitoredMeasurement, alone_measurements: Sequence[Measurement | None], around: Around
) -> StepRow:
    """Return the row with all measurements, at rank 0.

    alone_measurements: of each part; None for a part without one.
    """
    series = slowest(watched.measured.samples, step.ready.timed)
    n_sound = len(sound(watched.measured.samples, step.ready.timed))
    times = times_of(series) if len(series) else None
    alone: list[Times | None] = []
    parts_alone = []
    for part, measurement in zip(step.parts, alone_measurements, strict=True):
        part_series = slowest(measurement.samples, taking_part(part.part)) if measurement else np.empty(0)
        alone.append(times_of(part_series) if len(part_series) else None)
        parts_alone.append({"n": measurement.samples.shape[1], "flags": measurement.flags} if measurement else {"n": 0, "flags": []})
    ceiling, ceiling_s, bound_s = _ceiling(step.plan, around.limits, row.moved_bytes)
    passed = bool(times and bound_s and times.p50 * TOLERANCE < bound_s)
    withheld, flags = around.judged(watched, passed, doubts(series, n_sound, None, 1))
    percent = 100 * ceiling_s / times.p50 if times and ceiling_s and times.p50 and not (withheld or passed) else None
    return row.compared_with(ceiling, percent).replace(
        n=len(series), time_s=times, stopped=watched.measured.stopped, ceiling_time_s=ceiling_s,
        busbw_bytes_per_s=row.moved_bytes / times.p50 if times and times.p50 else None,
        parts=tuple(_measured_part(*measured, withheld) for measured in zip(step.parts, alone, around.limits, strict=True)),
        parts_time_s=path_s(step.plan, {number: part.p50 if part else None for number, part in enumerate(alone)}),
        flags=flags, evidence={**(around.context.evidence or {}), "parts_alone": parts_alone},
    )  # fmt: skip


class Around(msgspec.Struct, frozen=True):
    """The fields of a step's row other than its figures: each part's ceilings, and those that all rows have."""

    limits: Sequence[PartLimit]
    context: RowContext

    def judged(self, watched: MonitoredMeasurement, passed: bool, of_samples: Iterable[str]) -> tuple[bool, tuple[str, ...]]:
        """Return (whether percentages would mislead, the flags of the row). passed: a hard limit; of_samples: flags."""
        disturbed = any(limit.ceiling.disturbed for limit in self.limits)
        flags = list(self.context.flags)
        if disturbed:
            flags.append("reference_disturbed")
        if passed:
            flags.append("above_bound")
        flags += (*watched.measured.flags, *watched.flags, *of_samples)
        return self.context.withheld or disturbed, tuple(dict.fromkeys(flags))


def _ceiling(plan: StepPlan, limits: Sequence[PartLimit], moved: float) -> tuple[Ceiling, float | None, float | None]:
    """Return (the step's ceiling, its seconds at the ceilings, its seconds at the hard limits); None if a part has none."""
    ceiling_s = {number: least_s(part, limit.ceiling) for number, (part, limit) in enumerate(zip(plan.parts, limits, strict=True))}
    bound_s = {number: least_s(part, limit.bound) for number, (part, limit) in enumerate(zip(plan.parts, limits, strict=True))}
    step_s = path_s(plan, ceiling_s)
    unknown = next((limits[number].ceiling for number, part_s in ceiling_s.items() if part_s is None), None)
    if unknown or not step_s:
        return unknown or no_ceiling("it moves nothing"), None, None
    longest = max(ceiling_s, key=lambda number: (ceiling_s[number] or 0.0) * plan.parts[number].times)
    return replace(limits[longest].ceiling, bytes_per_s=moved / step_s, **NO_INTERVAL), step_s, path_s(plan, bound_s)


def _measured_part(prepared: PreparedPart, times: Times | None, limit: PartLimit, withheld: bool) -> PartRow:
    part = prepared.part
    moved = _moved_once(part)
    busbw = moved / times.p50 if times and times.p50 and moved else None
    ceiling = replace(limit.ceiling, bytes_per_s=rate_at(part, limit.ceiling), **NO_INTERVAL)
    percent, _ = against_limits(busbw, ceiling, rate_at(part, limit.bound), withheld)
    return PartRow(
        what=part.what, ends=part.ends, operation=part.operation.name, groups=len(part.groups), group_ranks=part.width,
        size_bytes=part.case.size_bytes, times=part.times, moved_bytes=moved * part.times, time_s=times, busbw_bytes_per_s=busbw,
        ceiling=ceiling, percent_of_ceiling=percent,
    )  # fmt: skip


def _moved_once(part: StepPart) -> float:
    return max(bytes_of(replace(part.whole, times=1), part.width))


def moved_by(plan: StepPlan, ranks: int) -> float:
    """Return the bytes of the rank that moves most in a step."""
    step = replace(plan.step, exchanges=tuple(part.whole for part in plan.parts))
    return max(moved_bytes(step, ranks))


class Training(msgspec.Struct, frozen=True):
    """One kind of training of a model.

    regime  defines its exchanges
    shape   returns the regime's shape from the number of each rank's host; called on every rank. May raise UsageError
    model   its name for users: "bert-large"
    optional   whether a training that does not fit these ranks becomes a row without figures, instead of ending the launch
    recording  of a replay: what was recorded
    adapt      returns the step for a backend, where the backend lacks something that can be replaced; None: as it is
    """

    regime: Regime
    shape: Callable[[tuple[int, ...]], Shape]
    model: str = ""
    optional: bool = False
    recording: Recording | None = None
    adapt: Callable[[Step, Request, Backend], Step] | None = None


class LibraryTraining(ABC):
    """A training that is no plan of exchanges: its ranks run at their own pace, or a library runs its steps."""

    def refusal(self, backend: Backend) -> Fact | None:
        """Return why a backend cannot run it, or None."""
        return None

    @abstractmethod
    def bytes_at(self, rank: int) -> int:
        """Return the bytes of memory that a rank needs."""

    def moved_bytes(self, step: Step, ranks: int) -> float:
        """Return the bytes of the rank that moves most in a step."""
        return max(moved_bytes(step, ranks))

    @abstractmethod
    def measure(self, run: TrainingRun, session: LaunchSession) -> StepRow | None:
        """Measure on all ranks. Return the row at rank 0, None elsewhere. Raises RunFailed if the library fails."""


def library_too_large(title: str, training: LibraryTraining, world: World) -> str | None:
    """Return why the buffers of this host's ranks do not fit its memory; None if they fit."""
    here = [member.rank for member in world.on_host()]
    need = sum(map(training.bytes_at, here))
    free = free_bytes()
    if need <= free:
        return None
    return (
        f"the buffers of {title} need {format_bytes(need)} on {world.me.host} for its {len(here)} ranks there, and {format_bytes(free)} is "
        "free: use a smaller model, or more servers"
    )


class StepLoop(TimedLoop):
    """The loop over steps that a library runs, one sample each, on this rank.

    step   runs one; None: this rank only serves, and its samples are zero
    meet   waits for the other ranks before each
    """

    def __init__(self, step: Callable[[], object] | None, meet: Callable[[], object], world: World) -> None:
        self._step = step
        self._meet = meet
        self._progress = world.watchdog.progress
        self.starts_ns = np.empty((1, 0))

    def run(self, n: int, batch: int = 1, slot: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of n samples of `batch` steps each, [1 × n]."""
        seconds = np.zeros((1, n))
        self.starts_ns = np.full((1, n), np.nan)
        if self._step is None:
            return seconds
        for sample in range(n):
            self._meet()
            began_s = time.monotonic()
            for _ in range(batch):
                self._step()
            seconds[0, sample] = time.monotonic() - began_s
            self._progress.value += 1
        self.iterations_run += n * batch
        return seconds


@dataclass
class LibraryWork(Work):
    """The steps that a library runs.

    title     of the training
    step      the exchanges, of which the library moves the bytes
    workers   the ranks that run steps; others serve
    """

    title: str
    step: Step
    workers: list[int]
    monitored = False

    @abstractmethod
    def loop(self, world: World) -> StepLoop:
        """Start the library on this rank, and return its steps, warmed up. All ranks call."""

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the steps as a case that can be timed."""
        loop = self.loop(world)
        case = Case(self.title, self.backend.name, dtype_named(self.step.exchanges[0].dtype), self.step.payload_bytes)
        return PreparedCase(step_operation(self.title), case, (tuple(self.workers),), (), (), loop, loop)

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return how many steps are taken: the first ones are not counted."""
        return Stopping(budget, ready.case.size_bytes, self.workers, warmup=1)

    def gathered(self, wrong: Sequence[Mismatch], world: World) -> list[Mismatch] | None:
        """Return the mismatches of all ranks at rank 0, None elsewhere."""
        by_rank = world.gather([mismatch.as_json() for mismatch in wrong], f"{self.title}: verifying")
        return None if by_rank is None else [Mismatch(**values) for mismatches in by_rank for values in mismatches]

    def release(self, ready: PreparedCase) -> None:
        """Free nothing: the library ends with the launch."""


class TrainingRun(msgspec.Struct, frozen=True):
    """A training to measure on a backend: by its plan, or by `library`. reason: why it is not measured."""

    training: Training
    opened: OpenBackend
    ranks: int
    nodes: int
    shape: Shape | None = None
    step: Step | None = None
    plan: StepPlan | None = None
    library: LibraryTraining | None = None
    reason: Fact | None = None

    @property
    def name(self) -> str:
        """Return the name for titles: "data-parallel bert-large"."""
        return " ".join(filter(None, (self.training.regime.name, self.training.model)))

    @property
    def title(self) -> str:
        """Return the name with the backend: "data-parallel bert-large on mpi"."""
        return f"{self.name} on {self.opened.name}"

    @property
    def backend(self) -> Backend:
        """The open backend."""
        return self.opened.running

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """The parts of its plan."""
        return self.plan.parts if self.plan else ()

    def row(self) -> StepRow:
        """Return the row with the values known before the measurement."""
        shape = self.shape
        moved = 0.0
        if self.plan:
            moved = moved_by(self.plan, self.ranks)
        elif self.library and self.step:
            moved = self.library.moved_bytes(self.step, self.ranks)
        return StepRow(
            self.training.regime.name, self.training.model, self.opened.name, self.parts[0].case.device if self.parts else "cpu",
            self.ranks, self.nodes, shape.dtype if shape else "", shape.parameters if shape and self.step else 0,
            shape.bucket_bytes if shape and self.step else 0, self.step.payload_bytes if shape and self.step else 0, moved,
            options=dict(shape.options) if shape else {}, note=self.step.note if self.step else "", replay=self._replay(),
        )  # fmt: skip

    def measured(
        self, session: LaunchSession, result: Measured | None, flags: Iterable[str], wrong: Sequence[DataError], checked: int,
        **more_evidence: Any,
    ) -> StepRow:  # fmt: skip
        """Return the row of a training that a library ran, with the result of verification. result: its steps; None: not of steps."""
        evidence = {"libraries": dict(self.backend.versions()), "conditions": session.conditions, "loop": "python"} | more_evidence
        row = self.row().replace(evidence=evidence | wrong_evidence(wrong), **check_fields(checked, wrong))
        all_flags = (*self.backend.flags, *flags)
        if result is None or result.measured is None:
            stopped = "iterations" if session.request.budget.iterations else "max_time"
            return row.replace(flags=all_flags, stopped=stopped)
        seconds = slowest(result.measured.samples, result.ready.timed)
        all_flags = (*all_flags, *result.measured.flags, *doubts(seconds, result.measured.samples.shape[1], None, 1))
        times = times_of(seconds) if len(seconds) else None
        return row.replace(n=len(seconds), time_s=times, flags=tuple(dict.fromkeys(all_flags)), stopped=result.measured.stopped)

    def _replay(self) -> ReplayedTrace | None:
        """Return what is known of the trace of a replay, with the recorded time of each part; None for other trainings."""
        recording = self.training.recording
        if recording is None:
            return None
        times: list[list[float]] = [[] for _ in self.parts]
        for part, seconds in zip(self.plan.order if self.plan else (), recording.exchange_s, strict=False):
            if seconds is not None:
                times[part].append(seconds)
        return ReplayedTrace.of(recording, tuple(float(np.mean(seconds)) if seconds else None for seconds in times))

    def without(self, reason: Fact) -> StepRow:
        """Return the n/a row with its reason."""
        return self.row().replace(na=reason.render(), na_fact=as_json(reason))

    def about(self) -> dict[str, Any]:
        """Return the training's entry in run.json's "workload"."""
        row = self.row()
        names = ("regime", "model", "parameters", "dtype", "bucket_bytes", "payload_bytes", "options", "note")
        return {name: getattr(row, name) for name in names}
