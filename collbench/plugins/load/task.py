"""Measure interference: victims time an operation while aggressors send on the same links, in pairs of blocks with aggressors off and on.

The two blocks of a pair follow one another in random order, so that what changes slowly affects both alike. The rows are measured one after
the other, also in random order, and each is stored when it is finished: in load.jsonl, and as two rows of cases that `compare` and `gate`
use, the victims alone and under load. Rank 0 is a victim. When the victims have finished a block, rank 0 broadcasts that over the control
plane. The first aggressor of each set learns it there, and the set agrees on its last iteration with an all-reduce of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import unsupported_reason
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch import signals
from collbench.measuring.crossing import LeastBytes, least
from collbench.measuring.engine import Measured, Work
from collbench.measuring.loop import Loop, Timed, TimedLoop
from collbench.measuring.prepared_case import BackendContext, PreparedCase, phase, placed, prepare, release
from collbench.measuring.request import Budget, Placement, TaskRequest
from collbench.measuring.sampling import Measurement, SamplingPlan, WarmUp
from collbench.measuring.session import LaunchSession, Plan, Task, WrongDataStop
from collbench.measuring.verification import DataError, check_fields, checks_of_buffers, verify, wrong_evidence
from collbench.operations.case import Case, Split
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation
from collbench.operations.program import Program
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import decode_reason
from collbench.plugins.channels.task import links_of
from collbench.plugins.load import FILE
from collbench.plugins.load.interference import judge, quantiles_of
from collbench.plugins.load.records import LoadRow, SharedLink, Side
from collbench.plugins.load.text import INTERFERENCE
from collbench.reason import Fact, as_json
from collbench.results.reader import Run
from collbench.results.row import UNDER_LOAD, Row, Times
from collbench.stats.median import quantiles
from collbench.units import format_size, plural

T = TypeVar("T")

# The request, and the sides: victims and aggressors.

PATTERNS: Mapping[str, tuple[str, str]] = {  # by name: (operation, description)
    "incast": ("gather", "every rank sends to the first one"),
    "alltoall": ("alltoall", "every rank sends to every other"),
    "broadcast": ("broadcast", "the first rank sends to all, again and again"),
    "random-pairs": ("p2p_bidirectional", "pairs drawn by the seed send both ways"),
    "ring": ("sendrecv", "every rank sends to the next one"),
}
_MOST_SAMPLES = 20_000  # of a block
_FEWEST_SAMPLES = 8
_CHUNK_S = 0.003  # of an aggressor's iterations between two checks for the end
_SETTLE = 0.1  # share of a block before its samples, while the aggressors fill the queues


class LoadRequest(TaskRequest, frozen=True):
    """The request of `collbench load`.

    launch         options of the launch; `budget.max_time_s` is the time of a row's samples
    victim, size_bytes    the operation that is timed, and its size
    mixes          the patterns of each row; those of one mix run at the same time, on equal sets of the aggressors
    message_bytes  size of an aggressor's message
    levels         target rates of the aggressors, as fractions of their full rate; 0: none, a control that must read 1
    blocks         pairs of blocks of each row
    split          groups of ranks: the first one are victims, the others aggressors; None: by node
    nodes          number of aggressor nodes; None: half of them
    preset         name of the published test, or ""
    """

    victim: Operation
    size_bytes: int
    mixes: tuple[tuple[str, ...], ...]
    message_bytes: int
    levels: tuple[float, ...]
    blocks: int = 8
    split: Split | None = None
    nodes: int | None = None
    preset: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        return {
            "victim": self.victim.name, "--size": self.size_bytes, "--against": ["+".join(mix) for mix in self.mixes],
            "--message": self.message_bytes, "--levels": list(self.levels), "--blocks": self.blocks,
            "--split": str(self.split or ""), "--aggressors": self.nodes, "--preset": self.preset,
        }  # fmt: skip

    @property
    def rows(self) -> list[tuple[tuple[str, ...], float]]:
        """The mix and level of each row."""
        return [(mix, level) for mix in self.mixes for level in self.levels]

    def sides(self, placement: Placement) -> Sides:
        """Return the sides of a launch whose ranks are so placed. Raises UsageError if they do not fit."""
        return sides_of(self, [placement.names[number] for number in placement.host_of])

    def check(self, placement: Placement) -> None:
        """Raise UsageError if victims and aggressors share no link, as on one host."""
        self.launch.check_installed()
        self.sides(placement)


class Sides(msgspec.Struct, frozen=True):
    """The ranks of the victims and of the aggressors, and whether both have ranks on the same hosts."""

    victims: tuple[int, ...]
    others: tuple[int, ...]
    hosts: tuple[str, ...]  # by rank

    @property
    def common(self) -> list[str]:
        """The hosts with ranks of both."""
        return sorted({self.hosts[rank] for rank in self.victims} & {self.hosts[rank] for rank in self.others})


def sides_of(request: LoadRequest, hosts: Sequence[str]) -> Sides:
    """Return the ranks of both sides; by node they alternate. hosts: by rank. Raises UsageError if they share no link, or do not fit."""
    names = list(dict.fromkeys(hosts))
    if len(names) < 2:
        raise UsageError("one node: victims and aggressors share no link between nodes; start ranks on at least two nodes")
    if request.split:
        victims, *groups = request.split.groups(len(hosts))
        sides = Sides(victims, tuple(sorted(chain(*groups))), tuple(hosts))
        if not sides.others:
            raise UsageError(f"--split '{request.split}' leaves no aggressors: use a split into two groups, like 'MOD 2'")
    else:
        number = len(names) // 2 if request.nodes is None else request.nodes
        if number > len(names) - 1:
            raise UsageError(f"--aggressors {number} leaves no node of {len(names)} for the victims: use at most {len(names) - 1}")
        chosen = {names[len(names) - 1 - index * len(names) // number] for index in range(number)} - {names[0]}
        chosen |= set([name for name in reversed(names[1:]) if name not in chosen][: number - len(chosen)])
        victims, others = (tuple(rank for rank, host in enumerate(hosts) if (host in chosen) is side) for side in (False, True))
        sides = Sides(victims, others, tuple(hosts))
    for side, ranks in (("victims", sides.victims), ("aggressors", sides.others)):
        if len({hosts[rank] for rank in ranks}) < 2:
            place = hosts[ranks[0]]
            remedy = "use --split 'MOD 2' with two ranks on each node" if len(names) < 4 else "give both sides at least two nodes"
            raise UsageError(f"all {side} are on {place}, so they share no link with the other side: {remedy}")
    need = max(2 * len(mix) for mix in request.mixes)
    if len(sides.others) < need:
        raise UsageError(
            f"{plural(need // 2, 'pattern')} at once need {need} aggressor ranks, and there are {len(sides.others)}: start more"
        )
    return sides


def sets_of(mix: Sequence[str], others: Sequence[int], hosts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ranks of each pattern of a mix: whole hosts as far as possible, dealt one after the other."""
    if len(mix) == 1:
        return [tuple(others)]
    names = list(dict.fromkeys(hosts[rank] for rank in others))
    by_host = len(names) >= 2 * len(mix)
    place = {name: number % len(mix) for number, name in enumerate(names)}
    dealt = [(place[hosts[rank]] if by_host else turn % len(mix), rank) for turn, rank in enumerate(others)]
    return [tuple(rank for number, rank in dealt if number == index) for index in range(len(mix))]


# One prepared operation over some ranks, and the loops over it.


class Pressure(msgspec.Struct, frozen=True):
    """A pattern over its aggressors: its case, the all-reduce by which they agree to stop, and the bytes per iteration by host."""

    pattern: str
    ranks: tuple[int, ...]
    ready: PreparedCase
    flag: PreparedCase
    moved: LeastBytes


class Pace(msgspec.Struct):
    """How an aggressor runs: iterations between two checks for the end, and the seconds of so many alone and unpaced."""

    chunk: int = 1
    chunk_s: float = 0.0


class RowBlocks(msgspec.Struct):
    """What was measured of a row at rank 0: seconds of the samples by block, off and on, and the aggressors' iterations per second."""

    off: list[NDArray[np.float64]] = msgspec.field(default_factory=list)
    on: list[NDArray[np.float64]] = msgspec.field(default_factory=list)
    rates: list[NDArray[np.float64]] = msgspec.field(default_factory=list)  # by block [sets]


class Course(msgspec.Struct, frozen=True):
    """How far the launch is: the random order, when the rows began, and the finished and planned pairs of blocks of all rows."""

    order: random.Random
    began: float
    done: int
    total: int


class BlockLoop(TimedLoop):
    """A block in each run: the victims take samples while the aggressors send, and all agree that it has ended.

    turns     for each block whether aggressors send; the same at all ranks
    sample_s  seconds of a sample in the last block, at a victim
    sent      of each block with aggressors that counts: this rank's iterations and seconds
    """

    def __init__(self, measuring: Measuring, row: LoadedRow, turns: Sequence[bool]) -> None:
        self._measuring = measuring
        self._row = row
        self._turns = turns
        self._next = 0
        self.sample_s = 0.0
        self.sent: list[tuple[float, float]] = []

    def run(self, n: int, batch: int = 1, slot: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of n samples at a victim, [1 × n]; NaN at aggressors."""
        measuring = self._measuring
        on = self._turns[self._next]
        self._next += 1
        samples, sent = measuring.block(self._row, on, lambda: self._sample(n))
        if on:
            self.sent.append(sent)
        self.starts_ns = np.full((1, n), np.nan)
        self.iterations_run += n
        return np.full((1, n), np.nan) if samples is None else samples

    def _sample(self, n: int) -> NDArray[np.float64]:
        measuring = self._measuring
        time.sleep(_SETTLE * measuring.block_s)
        with phase(measuring.victim, measuring.world, "measuring"):
            measuring.loop.run(max(1, n // 50))
            began_s = time.monotonic()
            samples = measuring.loop.run(n)
            self.sample_s = (time.monotonic() - began_s) / n
        return samples


class LoadedRow(msgspec.Struct, frozen=True):
    """A row to measure: its patterns, the level of the aggressors, and the prepared sets."""

    mix: tuple[str, ...]
    level: float
    sets: Sequence[Pressure]


_WARMING = (0.0, 0.05, 0.25)  # parts of a block before the blocks that count: each gives a better estimate of how many samples fill one


@dataclass
class LoadWork(Work):
    """The pairs of blocks of a row, with aggressors off and on in random order.

    blocks         what was measured, at rank 0
    victims_wrong  the wrong data of the victims' operation, at rank 0
    """

    measuring: Measuring
    row: LoadedRow
    course: Course
    monitored = False
    blocks: RowBlocks = field(default_factory=RowBlocks)
    victims_wrong: Sequence[DataError] = ()

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Return the victims' operation with the loop over blocks."""
        self.turns = [False] * len(_WARMING) + [True] * len(_WARMING)
        for _ in range(self.measuring.request.blocks):
            self.turns += self.course.order.sample((False, True), 2)
        self.loop = BlockLoop(self.measuring, self.row, self.turns)
        return replace(self.measuring.victim, loop=self.loop)

    def sampling(self, ready: PreparedCase, budget: Budget) -> SamplingPlan:
        """Return rank 0's plan: blocks that last equally long, without and with aggressors."""
        timed = ready.timed if self.measuring.request.victim.pair else self.measuring.sides.victims
        taken: list[NDArray[np.float64]] = []
        warming = 2 * len(_WARMING)
        for number, on in enumerate(self.turns):
            share = _WARMING[number % len(_WARMING)] if number < warming else 1.0
            n = self.measuring.samples_of_block(self.row, on, share)
            if number < warming:
                yield WarmUp((n, 1))
            else:
                if number % 2 == 0:
                    self._progress((number - warming) // 2)
                samples = yield n, 1
                taken.append(samples)
                blocks = self.blocks.on if on else self.blocks.off
                blocks.append(samples[list(timed)].max(axis=0))
            self.measuring.learn_samples(self.row, on, self.loop.sample_s)
        return Measurement(np.concatenate(taken, axis=1), target=0.0, stopped="max_time")

    def _progress(self, pair: int) -> None:
        course = self.course
        done = course.done + pair
        left_s = (time.monotonic() - course.began) / done * (course.total - done) if done else None
        title = f"pair of blocks of {'+'.join(self.row.mix)} at {100 * self.row.level:g} %"
        self.measuring.session.progress(title, done, course.total, left_s)

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> None:
        """Add the aggressors' rates of each block with them, at rank 0."""
        sent = world.gather(self.loop.sent[len(_WARMING) :], "gathering the aggressors' rates")
        if sent is None:
            return
        for block in range(self.measuring.request.blocks):
            self.blocks.rates.append(_rates(sent[pressure.ranks[0]][block] for pressure in self.row.sets))

    def verify(self, ready: PreparedCase, world: World, calls: int) -> tuple[int, Sequence[DataError] | None]:
        """Compare the data of the victims, and of each pattern."""
        cases = [self.measuring.victim, *(pressure.ready for pressure in self.row.sets)]
        wrong = [verify(case, world, checks_of_buffers(case, calls)) or [] for case in cases]
        self.victims_wrong = wrong[0]
        return calls, list(chain(*wrong))

    def release(self, ready: PreparedCase) -> None:
        """Free nothing: the operations are those of all rows."""


@dataclass
class LoadTask(Task):
    """The rows of one load launch, on one backend."""

    request: LoadRequest
    sides: Sides | None = None
    one_backend = True
    what = "row"
    in_order = True

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan. Raises UsageError, on all ranks, for ranks that do not fit."""
        world = session.world
        backend = session.backend.running
        if backend.virtual or backend.ranks != world.size:
            raise UsageError(f"collbench load needs a process per rank and a real backend, and {backend.name} has others: use mpi or gloo")
        hosts = [member.host for member in world.members]
        try:
            self.sides = sides_of(self.request, hosts)
        except UsageError as error:
            world.refuse(str(error))
        if self.case(self.request.victim, self.request.size_bytes, len(self.sides.victims), session).device != "cpu":
            raise UsageError(
                f"collbench load measures host memory, not that of GPUs: use --device cpu, or another backend than {backend.name}"
            )
        return Plan(len(self.request.rows), {"load": self.about(session)}, ranks=world.size, nodes=len(world.hosts))

    def about(self, session: LaunchSession) -> dict[str, Any]:
        """Return run.json's "load"."""
        assert self.sides is not None
        return {
            **{name.lstrip("-"): value for name, value in self.request.options.items()}, "backend": session.backend.name,
            "ranks": session.world.size, "victims": list(self.sides.victims), "others": list(self.sides.others),
            "hosts": list(self.sides.hosts), "rows": len(self.request.rows),
        }  # fmt: skip

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the options."""
        options = {**super().requested(session)["options"], **self.request.options}
        return {"options": options, "values": {"ranks": [session.world.size]}}

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rows by their place."""
        rows, _ = INTERFERENCE.read(run.path)
        places = {("+".join(mix), level): place for place, (mix, level) in enumerate(self.request.rows)}
        done = {places[row.aggressors, row.level]: row for row in rows if (row.aggressors, row.level) in places}
        return done, len(done) == len(places)

    def case(self, operation: Operation, size_bytes: int, ranks: int, session: LaunchSession) -> Case:
        """Return a case of an operation over so many ranks."""
        sweep = session.request.sweep
        assert isinstance(sweep, Sweep)
        dtype = dtype_named("float32" if operation.reduces else "uint8")
        redop = ("max",) if operation.reduces else ("sum",)
        sweep = replace(sweep, operations=(operation,), sizes=(size_bytes,), dtypes=(dtype,), redops=redop, mode="isolated", split=None)
        *_, case = sweep.cases(session.backend.name, ranks)
        return placed(case, operation, session.backend.running)

    def prepared(self, operation: Operation, case: Case, groups: Groups, context: BackendContext, world: World) -> PreparedCase | Fact:
        """Return an operation over these groups, ready on all ranks, or why not."""
        refusal = unsupported_reason(context.backend, operation, case)
        reason = world.first_error(None if refusal is None else as_json(refusal), f"asking {context.backend.name} what it can do")
        if reason is not None:
            return decode_reason(reason)  # type: ignore[return-value]
        if not operation.pair:
            for ranks in groups:
                if ranks not in context.members:
                    with world.watchdog.phase(f"making groups on {context.backend.name}"):
                        context.members[ranks] = context.backend.group(ranks)
        return prepare(operation, case, context, world, groups)

    def measure(self, session: LaunchSession) -> None:
        """Measure the rows that are not stored, and store each when it is finished."""
        assert self.sides is not None
        backend = session.backend.running
        session.monitor([])
        everyone = tuple(range(session.world.size))
        context = BackendContext(backend, {everyone: backend.group(everyone)}, None)
        Measuring(self, session, context, self.sides).run()

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return run.json's "load"."""
        return {"load": self.about(session)}


class Measuring:
    """The blocks of all rows, on all ranks in the same order."""

    victim: PreparedCase
    loop: Loop

    def __init__(self, task: LoadTask, session: LaunchSession, context: BackendContext, sides: Sides) -> None:
        self.task = task
        self.session = session
        self.context = context
        self.sides = sides
        self.request = task.request
        self.world = session.world
        self.backend = context.backend
        self.block_s = session.request.budget.max_time_s / (2 * self.request.blocks)
        self.paces: dict[tuple[str, ...], Pace] = {}
        self.full: dict[tuple[str, ...], NDArray[np.float64]] = {}
        self.numbers: dict[tuple[tuple[str, ...], float, bool], int] = {}
        links = links_of(self.world)
        shared = (SharedLink("host", host, links[host].name, links[host].bytes_per_s) for host in sides.common if host in links)
        self.shared = tuple(shared) or (SharedLink("fabric"),)

    @property
    def is_victim(self) -> bool:
        """Whether this rank is a victim."""
        return self.world.rank in self.sides.victims

    def run(self) -> None:
        """Prepare and calibrate, then measure, verify and store each row."""
        planned = dict(enumerate(self.request.rows))
        missing = {place: row for place, row in planned.items() if place not in self.session.stored.done}
        victim = self._victim()
        if isinstance(victim, Fact):
            self._store_missing(missing, victim)
            return
        self.victim, self.loop = victim
        sets_of: dict[tuple[str, ...], list[Pressure]] = {}
        for mix in dict.fromkeys(mix for mix, _ in missing.values()):
            sets = self._pressures(mix)
            if isinstance(sets, Fact):
                self._store_missing({place: row for place, row in missing.items() if row[0] == mix}, sets)
                continue
            self.session.status(f"finding the full rate of {'+'.join(mix)}…")
            self._calibrate(LoadedRow(mix, 1.0, sets))
            sets_of[mix] = sets
        places = [place for place, (mix, _) in missing.items() if mix in sets_of]
        self.session.lap()
        order = random.Random(f"load, {self.session.order_seed}")
        began = time.monotonic()
        total = self.request.blocks * len(places)
        for done, place in enumerate(order.sample(places, len(places))):
            mix, level = planned[place]
            row = LoadedRow(mix, level, sets_of[mix])
            wrong = self._measure(place, row, Course(order, began, done * self.request.blocks, total))
            if self.session.stops(wrong, WrongDataStop(left=len(places) - done - 1)):
                break
        release(self.victim, self.backend)
        for pressure in chain(*sets_of.values()):
            release(pressure.ready, self.backend)
            release(pressure.flag, self.backend)

    def _measure(self, place: int, row: LoadedRow, course: Course) -> bool:
        """Measure, verify and store a row. Return whether data was wrong, at rank 0."""
        before = self._probed()
        work = LoadWork(self.context, self, row, course)
        result = self.session.engine.measure(work, self.session.request.budget)
        assert isinstance(result, Measured)
        probes = {"before": before, "after": self._probed()}
        if self.world.rank == 0:
            wrong = result.wrong or []
            figures = self._figures(self._blank(row.mix, row.level), row, work.blocks)
            figures = figures.replace(shared=self._shared(row.sets), **check_fields(result.checked, wrong))
            figures = figures.replace(evidence=figures.evidence | wrong_evidence(wrong))
            self._store(place, figures, work, probes)
        return bool(result.wrong)

    def _probed(self) -> float | None:
        """Return the state probe of the slowest rank, in seconds; None if a rank has none."""
        probe = self.session.probe
        values = self.world.allgather(probe.measure() if probe else None, "probing the state")
        seconds = [value for value in values if value is not None]
        return max(seconds) if len(seconds) == len(values) else None

    # Preparation.

    def _victim(self) -> tuple[PreparedCase, Loop] | Fact:
        ready = self.task.prepared(self.request.victim, self._victims_case(), self._victim_groups(), self.context, self.world)
        if isinstance(ready, Fact):
            return ready
        sync = self._sync(self.sides.victims)
        if isinstance(sync, Fact):
            return sync
        return ready, Loop(Timed(ready.program, sync if self.is_victim else None, self.backend.clock(), self.world.watchdog.progress))

    def _victims_case(self) -> Case:
        return self.task.case(self.request.victim, self.request.size_bytes, len(self.sides.victims), self.session)

    def _victim_groups(self) -> Groups:
        """Return the victims as one group, or as pairs for an operation of pairs."""
        return _halves(self.sides.victims) if self.request.victim.pair else (self.sides.victims,)

    def _sync(self, ranks: tuple[int, ...]) -> Program | Fact:
        """Return the synchronization of some ranks by the backend: its own, else its barrier. It does not use other ranks."""
        operation = operations()["barrier"]
        barrier = self.task.prepared(operation, self.task.case(operation, 0, len(ranks), self.session), (ranks,), self.context, self.world)
        if isinstance(barrier, Fact):
            return barrier
        group = self.context.members[ranks]
        return (self.backend.sync(group) if group else None) or barrier.program

    def _pressures(self, mix: tuple[str, ...]) -> list[Pressure] | Fact:
        pressures: list[Pressure] = []
        flags = operations()["allreduce"]
        for pattern, ranks in zip(mix, sets_of(mix, self.sides.others, self.sides.hosts), strict=True):
            operation = operations()[PATTERNS[pattern][0]]
            groups: Groups = (ranks,)
            if operation.pair:
                order = list(ranks)
                random.Random(f"pairs, {self.session.order_seed}").shuffle(order)
                groups = _halves(order)
            n = len(groups[0])
            case = self.task.case(operation, self.request.message_bytes * operation.parts(n), n, self.session)
            case = replace(case, window=1) if case.window else case
            ready = self.task.prepared(operation, case, groups, self.context, self.world)
            if isinstance(ready, Fact):
                return ready
            flag = self.task.prepared(flags, self.task.case(flags, 4, len(ranks), self.session), (ranks,), self.context, self.world)
            if isinstance(flag, Fact):
                return flag
            pressures.append(Pressure(pattern, ranks, ready, flag, least(operation, case, groups, dict(enumerate(self.sides.hosts)))))
        return pressures

    # A block: the victims take samples while the aggressors send; then all agree that it has ended.

    def _set_of_rank(self, sets: Sequence[Pressure]) -> Pressure | None:
        """Return this rank's set; None for a victim."""
        return next((pressure for pressure in sets if self.world.rank in pressure.ranks), None)

    def _calibrate(self, row: LoadedRow) -> None:
        """Find how many iterations of each set take some milliseconds, and its full rate without victims."""
        pressure = self._set_of_rank(row.sets)
        seconds = 0.0
        if pressure:
            with phase(pressure.ready, self.world, "timing it"):
                program = Loop(Timed(pressure.ready.program, None, self.backend.clock(), self.world.watchdog.progress))
                program.run(2)
                began = time.monotonic()
                program.run(3)
                seconds = (time.monotonic() - began) / 3
        times = self.world.allgather(seconds, "timing the aggressors")
        pace = self.paces[row.mix] = Pace()
        if pressure:
            slowest_s = max(1e-9, *(times[rank] for rank in pressure.ranks))
            pace.chunk = max(1, min(1000, round(_CHUNK_S / slowest_s)))
        _, sent = self.block(row, True, lambda: time.sleep(min(0.5, max(0.1, self.block_s))))
        sent_by_rank = self.world.allgather(sent, "calibrating")
        rates = self.full[row.mix] = _rates(sent_by_rank[pressure.ranks[0]] for pressure in row.sets)
        if pressure:
            rate = rates[list(row.sets).index(pressure)]
            pace.chunk_s = pace.chunk / rate if rate > 0 else 0.0

    def samples_of_block(self, row: LoadedRow, on: bool, share: float) -> int:
        """Return how many samples fill this share of a block."""
        samples = self.numbers.get((row.mix, row.level, on), _FEWEST_SAMPLES)
        return max(_FEWEST_SAMPLES, round(samples * share))

    def learn_samples(self, row: LoadedRow, on: bool, sample_s: float) -> None:
        """Receive the seconds of a sample of the last block."""
        fitting = round((1 - _SETTLE) * self.block_s / max(sample_s, 1e-7))
        self.numbers[row.mix, row.level, on] = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, fitting))

    def block(self, row: LoadedRow, on: bool, sample: Callable[[], T]) -> tuple[T | None, tuple[float, float]]:
        """Run `sample` at the victims while the aggressors send. Return (its result at a victim; an aggressor's iterations and seconds)."""
        world = self.world
        name = f"{'+'.join(row.mix)} {'on' if on else 'off'}"
        pressure = self._set_of_rank(row.sets)
        sent = (0.0, 0.0)
        taken = None
        with world.extend_timeout(10 * self.block_s):
            world.allgather(None, f"beginning a block, {name}")
            if self.is_victim:
                taken = sample()
            elif pressure and on and row.level > 0:
                sent = self._press(pressure, self.paces[row.mix], row.level)
            world.broadcast(None, f"ending a block, {name}")
        return taken, sent

    def _press(self, pressure: Pressure, pace: Pace, level: float) -> tuple[float, float]:
        """Repeat the pattern until rank 0 has ended the block. Return (iterations, seconds).

        A paced set begins a chunk of iterations at fixed times. It does not make up for a late one, which would be a burst.
        """
        is_leader = self.world.rank == pressure.ranks[0]
        clock = self.backend.clock()
        pattern, agreeing = (
            Loop(Timed(ready.program, None, clock, self.world.watchdog.progress)) for ready in (pressure.ready, pressure.flag)
        )
        (flags,) = pressure.flag.buffers
        send = flags.send(0, 0)  # type: ignore[attr-defined]
        receive = flags.recv(0, 0)  # type: ignore[attr-defined]
        period = pace.chunk_s / level if level < 1 else 0.0
        count = 0
        began = time.monotonic()
        due = began
        while True:
            send[:] = float(is_leader and self.world.has_message())
            with phase(pressure.ready, self.world, "sending"):
                pattern.run(pace.chunk)
                agreeing.run(1, slot=0)
            count += pace.chunk
            if receive[0] > 0:
                return float(count), time.monotonic() - began
            if period:
                due = max(due + period, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))

    # The rows.

    def _blank(self, mix: tuple[str, ...], level: float) -> LoadRow:
        request = self.request
        case = self._victims_case()
        return LoadRow(
            victim=request.victim.name, backend=self.backend.name, dtype=case.dtype.name, size_bytes=case.size_bytes,
            aggressors="+".join(mix), message_bytes=request.message_bytes, level=level, nodes=len(self.world.hosts), preset=request.preset,
            victims=self.sides.victims, others=self.sides.others,
            other_nodes=len({self.sides.hosts[rank] for rank in self.sides.others}), split=str(request.split or ""),
        )  # fmt: skip

    def _figures(self, row: LoadRow, measured: LoadedRow, blocks: RowBlocks) -> LoadRow:
        moves = self.request.victim.moves(self.victim.case)
        off = [samples / moves for samples in blocks.off]
        on = [samples / moves for samples in blocks.on]
        quantiles = quantiles_of(off, on)
        verdict, reason = judge(quantiles, len(on), self.session.crowded(self.backend, "cpu"))
        full = self.full[measured.mix]
        rates = np.mean(blocks.rates, axis=0)
        fell_back = not self.loop.native and self.loop.could_be_native
        flags = (*self.backend.flags, *self.session.flags(self.backend, [self.victim.case], fell_back))
        return row.replace(
            blocks=len(on), n_off=sum(map(len, off)), n_on=sum(map(len, on)), quantiles=quantiles,
            achieved=float(np.mean(rates / np.where(full > 0, full, 1))), rate_bytes_per_s=self._busiest(measured.sets, rates),
            full_bytes_per_s=self._busiest(measured.sets, full),
            verdict=verdict, reason=as_json(reason) if reason else None, flags=tuple(dict.fromkeys(flags)),
            evidence={"libraries": dict(self.backend.versions()), "conditions": self.session.conditions, "block_s": self.block_s},
        )  # fmt: skip

    def _busiest(self, sets: Sequence[Pressure], rates: NDArray[np.float64]) -> float:
        """Return the bytes per second that leave or reach the host that moves most."""
        hosts: dict[str, float] = {}
        for pressure, rate in zip(sets, rates, strict=True):
            for host in {self.sides.hosts[rank] for rank in pressure.ranks}:
                moved = max(pressure.moved.out.get(host, 0.0), pressure.moved.into.get(host, 0.0))
                hosts[host] = hosts.get(host, 0.0) + moved * float(rate)
        return max(hosts.values(), default=0.0)

    def _shared(self, sets: Sequence[Pressure]) -> tuple[SharedLink, ...]:
        """Return the links that both sides use, with the sides that send and receive over each."""
        moved = least(self.request.victim, self._victims_case(), self._victim_groups(), dict(enumerate(self.sides.hosts)))
        return tuple(
            replace(
                link,
                senders=_sides(moved.out.get(link.place), [pressure.moved.out.get(link.place) for pressure in sets]),
                receivers=_sides(moved.into.get(link.place), [pressure.moved.into.get(link.place) for pressure in sets]),
            )
            for link in self.shared
        )

    def _store_missing(self, rows: Mapping[int, tuple[tuple[str, ...], float]], why: Fact) -> None:
        """Store the rows that cannot be measured, with the reason."""
        for place, (mix, level) in rows.items():
            if self.world.rank == 0:
                self.session.store(self._blank(mix, level).replace(na=str(why), na_fact=as_json(why)), FILE, place)

    def _store(self, place: int, row: LoadRow, work: LoadWork, probes: Mapping[str, float | None]) -> None:
        """Store a row, and before it its two rows of cases with the samples."""
        moves = self.request.victim.moves(self.victim.case)
        with signals.deferred():  # otherwise a resumed run could measure the row again, and have its cases twice
            for on, samples in ((False, work.blocks.off), (True, work.blocks.on)):
                seconds = np.concatenate(samples) / moves
                case = victims_case(row, self.request.victim, self.victim.case, self.backend.api, seconds, on=on)
                if not on:
                    case = replace(case, **check_fields(self.session.request.check, work.victims_wrong))
                if self.session.folder:
                    self.session.folder.append(replace(case, canary_s=dict(probes)), {"max_s": seconds})
            self.session.store(row, FILE, place)


def _halves(ranks: Sequence[int]) -> Groups:
    """Return pairs of a rank of the first half and one of the second."""
    half = len(ranks) // 2
    return tuple(zip(ranks[:half], ranks[half:], strict=False))


def _rates(sent: Iterable[tuple[float, float]]) -> NDArray[np.float64]:
    return np.array([iterations / seconds if seconds else 0.0 for iterations, seconds in sent])


def _sides(victims: float | None, aggressors: Sequence[float | None]) -> tuple[Side, ...]:
    """Return the sides that move bytes, from the bytes of the victims and of each pattern."""
    sides: list[Side] = []
    if victims:
        sides.append("victims")
    if any(aggressors):
        sides.append("aggressors")
    return tuple(sides)


def victims_case(row: LoadRow, operation: Operation, case: Case, api: str, seconds: NDArray[np.float64], *, on: bool) -> Row:
    """Return the victims alone, or under load (`on`), as a row of cases, which `compare`, `gate` and `baseline` use.

    Its traffic and its group contain what changes the meaning: patterns, messages, level, aggressors, and how the ranks were divided.
    case, api: of the victims' operation; seconds: the samples of the slowest victim
    """
    times = row.quantiles["p50"].on if on else row.quantiles["p50"].off
    group_ranks = 2 if operation.pair else len(row.victims)
    algbw = case.size_bytes / times.value if case.size_bytes and times.value else None
    bus = operation.bus_factor(group_ranks)
    traffic = f"{'against' if on else 'without'} {row.aggressors} of {format_size(row.message_bytes)} at {100 * row.level:g} %"
    traffic += f" from {plural(len(row.others), 'rank')} on {plural(row.other_nodes, 'node')}"
    interference: dict[str, Any] = {}
    if on:
        interference = {"factor": row.factor.value, "low": row.factor.low, "high": row.factor.high}
        if row.reason:
            interference["why"] = row.reason["why"]
    return Row(
        operation=operation.name, backend=row.backend, api=api, device=case.device, dtype=row.dtype, redop=case.redop, root=case.root,
        mode=UNDER_LOAD if on else case.mode, in_place=bool(case.in_place), buffers=case.buffers,
        group=row.split or "by node", window=case.window, size_bytes=row.size_bytes, count=operation.count(case, group_ranks),
        ranks=len(row.victims), nodes=row.nodes, registration=case.registration, algorithm=case.algorithm, protocol=case.protocol,
        traffic=traffic, streams=case.streams, n=row.n_on if on else row.n_off, stopped="max_time",
        time_s=None if times.value is None else Times(times.value, times.low, times.high, **quantiles(seconds)),
        algbw_bytes_per_s=algbw, busbw_bytes_per_s=algbw * bus if algbw and bus else None, interference=interference,
        checked=row.checked, wrong=row.wrong, wrong_detail=row.wrong_detail, flags=row.flags, evidence=dict(row.evidence),
    )  # fmt: skip
