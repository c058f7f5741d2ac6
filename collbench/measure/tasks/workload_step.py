"""A training step made ready on all ranks, timed as one iteration, each part of it looked at alone, its data verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from collbench.backends.backend import Backend, can_do
from collbench.control.world import World
from collbench.measure.budget import Budget
from collbench.measure.crossing import Least, least
from collbench.measure.loop import Loop, Timed
from collbench.measure.one_cell import Ready, Stage, mismatches_in, phase, prepare_over, release
from collbench.measure.protocol import Measured, measure
from collbench.measure.short import short_schedule
from collbench.measure.tasks.workload_adding import Adding
from collbench.measure.tasks.workload_plan import Part, Plan
from collbench.operations.cell import Cell
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import dtype_named
from collbench.operations.operation import Operation
from collbench.operations.program import Program, joined

_ON_GPUS = "a server adds up on host memory: choose a backend on the CPU (--device cpu)"


@dataclass(frozen=True)
class Prepared:
    """A part that every rank can run.

    program   per buffer slot one exchange, and at a server the adding up
    """

    part: Part
    ready: Ready
    program: Program
    loop: Loop
    adding: Adding | None = None


@dataclass(frozen=True)
class WrongPart:
    """Wrong data in one part of a step."""

    what: str
    mismatch: Mismatch

    @property
    def wrong(self) -> int:
        """How many elements."""
        return self.mismatch.wrong

    def sentence(self) -> str:
        """For rows and errors: "gradients, bucket 3 of 14: rank 1: 5 wrong elements …"."""
        return f"{self.what}: {self.mismatch.sentence()}"

    def as_json(self) -> dict[str, Any]:
        """For the control plane and a row's evidence."""
        return {"what": self.what, **self.mismatch.as_json()}


@dataclass(frozen=True)
class PreparedStep:
    """All parts, and the whole: `ready.loop` runs a step, `ready.checking` each of its buffers once."""

    plan: Plan
    parts: tuple[Prepared, ...]
    ready: Ready


def prepare_step(title: str, plan: Plan, stage: Stage, world: World) -> PreparedStep | str:
    """Allocates, binds and tries every part on all ranks, and joins them; or why some rank cannot, the same on all."""
    found: list[Prepared] = []
    for part in plan.parts:
        one = _prepare(part, stage, world)
        if isinstance(one, str):
            release_step(found, stage.backend)
            return f"{part.what}: {one}"
        found.append(one)
    return PreparedStep(plan, tuple(found), _whole(title, plan, found, stage, world))


def release_step(parts: Sequence[Prepared], backend: Backend) -> None:
    """Frees the groups that were made for these parts alone."""
    for one in parts:
        release(one.ready, backend)


def _prepare(part: Part, stage: Stage, world: World) -> Prepared | str:
    """One part. All ranks call."""
    refusal = can_do(stage.backend, part.operation, part.cell)
    if part.exchange.adds and part.cell.device != "cpu":
        refusal = refusal or _ON_GPUS
    reason = world.first(refusal, f"asking {stage.backend.name} what it can do")
    ready = reason or prepare_over(part.operation, part.cell, part.groups, stage, world, slots=part.slots)
    if isinstance(ready, str):
        return ready
    adding = Adding(ready) if part.exchange.adds else None
    program = adding.program() if adding else ready.program
    return Prepared(part, ready, program, Loop(_timed(program, stage, world)), adding)


def _timed(program: Program, stage: Stage, world: World) -> Timed:
    """The ranks meet before each sample."""
    return Timed(program, stage.sync, stage.backend.clock(), world.watchdog.progress)


def _whole(title: str, plan: Plan, found: Sequence[Prepared], stage: Stage, world: World) -> Ready:
    """The step as something that the house can time: one operation over all ranks that take part in any of it."""
    cell = Cell(title, stage.backend.name, dtype_named(plan.step.exchanges[0].dtype), plan.step.payload_bytes, found[0].ready.cell.device)
    operation = Operation(title, bus_factor=lambda n: 1.0, arrives=lambda x: [])
    timed, once = _timed(_joined(plan, found), stage, world), _timed(_each_once(plan, found), stage, world)
    buffers = tuple(each for one in found for each in one.ready.buffers)
    mine = (stage.whole,) if stage.whole else ()  # for whoever reads counters: which ranks this process drives
    must = partial(must_cross, found)
    return Ready(operation, cell, (plan.ranks,), mine, buffers, Loop(timed), Loop(once), program=timed.program, must=must)


def must_cross(parts: Sequence[Prepared], host_of: Mapping[int, str]) -> Least:
    """Bytes that must leave and reach each host in a step, whatever the algorithm."""
    each = [(one.part.times, _must_cross(one, host_of)) for one in parts]
    hosts = set(host_of.values())
    out = {host: sum(times * one.out.get(host, 0.0) for times, one in each) for host in hosts}
    into = {host: sum(times * one.into.get(host, 0.0) for times, one in each) for host in hosts}
    return Least(out, into, sum(times * one.total for times, one in each))


def _must_cross(one: Prepared, host_of: Mapping[int, str]) -> Least:
    those = {rank: host_of[rank] for rank in taking_part(one.part)}
    return least(one.ready.operation, one.ready.cell, one.part.groups, those)


def _joined(plan: Plan, found: Sequence[Prepared]) -> Program:
    """The exchanges in their order; those of a part take its buffers in turn."""
    return _program(found, list(_turns(plan, found)))


def _each_once(plan: Plan, found: Sequence[Prepared]) -> Program:
    """The same calls in the same order, but each buffer only the first time: a second sum in place would add to the first."""
    return _program(found, list(dict.fromkeys(_turns(plan, found))))


def _turns(plan: Plan, found: Sequence[Prepared]) -> Iterator[tuple[int, int]]:
    """(part, slot) of every exchange."""
    done: Counter[int] = Counter()
    for part in plan.order:
        yield part, done[part] % found[part].part.slots
        done[part] += 1


def _program(found: Sequence[Prepared], turns: Sequence[tuple[int, int]]) -> Program:
    programs = [replace(found[part].program, slots=(_slot(found[part].program, slot),), once=None) for part, slot in turns]
    explain = next((one.explain for one in programs if one.slots[0]), programs[0].explain)  # where this rank rests nothing can fail
    return replace(joined(programs), explain=explain)


def _slot(program: Program, slot: int) -> Any:
    """A rank that rests has one slot without calls."""
    return program.slots[slot % len(program.slots)]


def time_part(one: Prepared, world: World, budget: Budget) -> Measured | None:
    """A short look at one part alone, the ranks meeting before each of its exchanges; the result is at rank 0."""
    cell = one.ready.cell
    plan = short_schedule(budget, cell.size_bytes, "isolated", taking_part(one.part)) if world.rank == 0 else None
    with phase(one.ready, world, "measuring"), world.patient(budget.max_time_s):
        return measure(one.loop, world, plan, cell.title())


def taking_part(part: Part) -> list[int]:
    """Its ranks, ascending: an exchange has ended when the last of them is done."""
    return sorted(rank for group in part.groups for rank in group)


def verify_step(step: PreparedStep, world: World, calls: int) -> list[WrongPart] | None:
    """Refills all buffers, runs the step's calls once per buffer and compares; at rank 0 what was found wrong."""
    found: list[dict[str, Any]] = []
    with phase(step.ready, world, "verifying"):
        for _ in range(calls):
            for one in step.parts:
                _refill(one)
            step.ready.checking.run(1, slot=0)
            found += [each for one in step.parts for each in _mismatches(one)]
    everyone = world.gather(found, f"{step.ready.cell.title()}: verifying")
    if everyone is None:
        return None
    return [WrongPart(each.pop("what"), Mismatch(**each)) for part in everyone for each in part]


def _refill(one: Prepared) -> None:
    for slot in range(one.part.slots):
        for buffers in one.ready.buffers:
            buffers.fill(slot, for_check=True)
    if one.adding:
        one.adding.spoil()


def _mismatches(one: Prepared) -> list[dict[str, Any]]:
    """Of everything that arrived, and of what was made of it."""
    found = [each for slot in range(one.part.slots) for each in mismatches_in(one.ready, slot)]
    if one.adding:
        found += [wrong.as_json() for slot in range(one.part.slots) for wrong in one.adding.mismatches(slot)]
    return [{"what": one.part.what, **each} for each in found]
