"""Measure transfers of scattered blocks: each method at each number and size of blocks, in random order, with verified contents."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from collbench.backends.backend import Backend, Unavailable
from collbench.backends.registry import backend_class
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch.limits import free_bytes
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.measuring.crossing import LeastBytes
from collbench.measuring.engine import Measured, Work
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.prepared_case import BackendContext, PreparedCase
from collbench.measuring.request import Placement, TaskRequest
from collbench.measuring.row import make_row
from collbench.measuring.sampling import Measurement
from collbench.measuring.session import LaunchSession, Plan, Task, WrongDataStop
from collbench.measuring.verification import VerificationTurn, check_fields, wrong_evidence
from collbench.operations.case import Case
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import dtype_named
from collbench.operations.operation import Operation
from collbench.operations.program import Program
from collbench.operations.traffic import Traffic
from collbench.operations.unsupported import SharedMemoryTooSmall
from collbench.plugins.kv import FILE
from collbench.plugins.kv.block_transfer import METHODS, BlockPattern, TransferMethod
from collbench.plugins.kv.models import BlockPlan, ModelBlocks, Pattern, PlainBlocks, make_plan
from collbench.plugins.kv.records import CASE, KvRow, series_of
from collbench.plugins.kv.text import BLOCK_TRANSFERS
from collbench.reason import Fact, Text, as_json, decode_or_text
from collbench.results.estimate import Estimate
from collbench.results.reader import Run
from collbench.units import format_bytes, plural

_COPIES = 9  # repetitions of the copies of "packed"


class KvRequest(TaskRequest, frozen=True):
    """The request of `collbench kv`.

    launch      options of the launch; `budget.max_time_s` is the time of a row's samples
    methods     names of METHODS
    blocks      what is sent, one after the other
    parallel    (ranks that send, ranks that receive) from --tp, or None: half of the ranks each; broadcast: one and all others
    prefill_s   the user's time of prefill, for the share of the time to first token
    """

    methods: tuple[str, ...]
    blocks: tuple[ModelBlocks | PlainBlocks, ...]
    pattern: Pattern = "prefill-decode"
    parallel: tuple[int, int] | None = None
    prefill_s: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        return {
            "--method": list(self.methods), "blocks": [str(blocks) for blocks in self.blocks], "--pattern": self.pattern,
            "--tp": self.parallel and list(self.parallel), "--prefill-time": self.prefill_s,
        }  # fmt: skip

    @property
    def rows(self) -> list[tuple[str, ModelBlocks | PlainBlocks]]:
        """The method and the blocks of each row."""
        return [(method, blocks) for blocks in self.blocks for method in self.methods]

    def sides(self, ranks: int) -> tuple[int, int]:
        """Return (sources, targets) of a launch of so many ranks. Raises UsageError if they do not fit."""
        if self.pattern == "broadcast":
            if ranks < 2:
                raise UsageError("--pattern broadcast needs at least 2 ranks")
            return 1, ranks - 1
        if self.parallel is None:
            if ranks % 2:
                raise UsageError(f"prefill-decode needs an even number of ranks, and there are {ranks}: use --tp 1:{max(1, ranks - 1)}")
            return ranks // 2, ranks // 2
        if sum(self.parallel) != ranks:
            text = ":".join(map(str, self.parallel))
            raise UsageError(f"--tp {text} needs {sum(self.parallel)} ranks, and there are {ranks}: start {sum(self.parallel)}")
        return self.parallel

    def plan(self, blocks: ModelBlocks | PlainBlocks, ranks: int) -> BlockPlan:
        """Return what all ranks send. Raises UsageError if blocks and ranks do not fit."""
        return make_plan(blocks, self.pattern, *self.sides(ranks), self.launch.seed)

    def check(self, placement: Placement) -> None:
        """Raise UsageError if the blocks do not fit the ranks on this host, or its memory."""
        plans = [self.plan(blocks, placement.ranks) for blocks in self.blocks]
        wrong = too_large(plans, range(placement.ranks), socket.gethostname())
        if wrong:
            raise UsageError(wrong)


def _missing(backend: str) -> Fact:
    """Return why a backend that was not named is not open, with the remedy."""
    answer = backend_class(backend).probe()
    if isinstance(answer, Unavailable):
        return answer.fact or Text(str(answer))
    return Text(f"{backend} is missing on another rank")


def must_cross(plan: BlockPlan, host_of: Mapping[int, str]) -> LeastBytes:
    """Return the bytes of the blocks that leave and reach each host."""
    out: Counter[str] = Counter()
    into: Counter[str] = Counter()
    total = 0.0
    for link in plan.links:
        source = host_of[link.source]
        target = host_of[link.target]
        if source != target:
            n_bytes = len(link.at_source) * plan.block_bytes
            out[source] += n_bytes
            into[target] += n_bytes
            total += n_bytes
    return LeastBytes(out, into, total)


def too_large(plans: Iterable[BlockPlan], ranks: Iterable[int], host: str) -> str | None:
    """Return why the blocks of these ranks, which are on this host, do not fit its memory; None if they fit."""
    largest = max(plans, key=lambda plan: plan.block_bytes * max(plan.source_places, plan.target_places))
    need = 2 * largest.block_bytes * sum(map(largest.places, ranks))  # "packed" has copies
    free = free_bytes()
    if need <= free:
        return None
    return f"{host} needs {format_bytes(need)} for the blocks and has {format_bytes(free)} free: use fewer blocks or tokens"


@dataclass
class KvWork(Work):
    """A transfer of blocks: an operation over all ranks. series: its name among the cases; seed: of the contents of the blocks."""

    method: TransferMethod
    plan: BlockPlan
    series: str
    seed: int

    @property
    def what(self) -> str:
        """The name for messages."""
        return f"kv by {self.method.name}"

    def prepare(self, world: World) -> PreparedCase | Fact:
        """Allocate, connect and bind on all ranks. Return the transfer as a case, or why a rank cannot."""
        refusal = self.method.refusal()
        reason = world.first_error(None if refusal is None else as_json(refusal), f"{self.what}: asking for memory")
        if reason:
            fact: Fact = decode_or_text(reason, SharedMemoryTooSmall)
            return fact
        programs: list[Program] = []
        steps = (self.method.allocate, self.method.meet, lambda: programs.append(self.method.bind()))
        for number, step in enumerate(steps):
            reason = self._failing(world, step)
            if reason:
                if number or not self.method.frees_together:  # else some ranks lack what all must free
                    self._failing(world, self.method.free)
                return Text(reason)
        case = Case(CASE, self.backend.name, dtype_named("uint8"), self.plan.size_bytes, traffic=Traffic(self.series), in_place=False)
        operation = Operation(CASE, bus_factor=lambda n: 1.0, expected_blocks=lambda x: [])
        # A target's MPI_Waitall may end with acknowledgements unsent. Only a call of MPI sends them: the sources would wait for these, and
        # the target for rank 0's next words.
        sync = self.context.sync
        loop = Loop(Timed(programs[0], sync, self.backend.clock(), world.watchdog.progress, parting=sync))
        groups = (tuple(range(world.size)),)
        handles = (self.context.whole,) if self.context.whole else ()
        return PreparedCase(operation, case, groups, handles, (), loop, loop, program=programs[0], must=partial(must_cross, self.plan))

    def _failing(self, world: World, step: Callable[[], object]) -> str | None:
        """Take a step on all ranks, and return why one of them cannot, or None."""
        wrong = None
        with world.watchdog.phase(f"{self.what}: preparing"):
            try:
                step()
            except Exception as error:  # libraries have exceptions of their own
                wrong = f"{world.me}: {str(error) or type(error).__name__}"
        reason = world.first_error(wrong, f"{self.what}: preparing")
        return None if reason is None else str(reason)

    def gather(self, ready: PreparedCase, measured: Measurement | None, world: World) -> list[list[float]] | None:
        """Return the seconds of all copies of each rank, alone; empty without copies."""
        calls = self.method.copy_calls()
        times = []
        for _ in range(_COPIES if calls else 0):
            began = time.monotonic()
            for call in calls:
                call()
            times.append(time.monotonic() - began)
        seconds: list[list[float]] | None = world.gather([float(np.median(times))] if times else [], f"{self.what}: timing the copies")
        return seconds

    def checks(self, ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
        """Send new contents, and compare each byte. One-sided puts must not come before the target has filled its memory."""
        for call in range(calls):
            pattern = BlockPattern(self.plan.block_bytes, self.seed + call)
            fill = partial(pattern.fill, self.method)
            yield VerificationTurn([fill], partial(ready.loop.run, 1), [partial(_mismatches, pattern, self.method)], meets=True)

    def release(self, ready: PreparedCase) -> None:
        """Free the memory on all ranks."""
        with self.method.world.watchdog.phase(f"{self.what}: ending"):
            self.method.free()


def _mismatches(pattern: BlockPattern, method: TransferMethod) -> list[Mismatch]:
    mismatch = pattern.check(method)
    return [mismatch] if mismatch else []


@dataclass
class KvTask(Task):
    """The rows of one launch."""

    request: KvRequest
    plans: dict[ModelBlocks | PlainBlocks, BlockPlan] = field(default_factory=dict)
    what = "row"

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan. Raises UsageError, on all ranks, for ranks that do not fit and for too little memory."""
        world = session.world
        try:
            self.plans = {blocks: self.request.plan(blocks, world.size) for blocks in self.request.blocks}
        except UsageError as error:
            world.refuse(str(error))
        wrong = too_large(self.plans.values(), [member.rank for member in world.on_host()], world.me.host)
        reason = world.first_error(wrong, "comparing the memory")
        if reason:
            world.refuse(str(reason))
        return Plan(len(self.request.rows), {"kv": self.about(session)}, ranks=world.size, nodes=len(world.hosts))

    def about(self, session: LaunchSession) -> dict[str, Any]:
        """Return run.json's "kv"."""
        options = {name.lstrip("-"): value for name, value in self.request.options.items()}
        return {**options, "ranks": session.world.size, "rows": len(self.request.rows)}

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the options."""
        options = {**super().requested(session)["options"], **self.request.options}
        return {"options": options, "values": {"ranks": [session.world.size]}}

    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return the stored rows by their place in the request."""
        rows, _ = BLOCK_TRANSFERS.read(run.path)
        stored = {(row.method, row.block_bytes, row.blocks): row for row in rows}
        done = {}
        for place, (method, blocks) in enumerate(self.request.rows):
            plan = self.plans[blocks]
            key = (method, plan.block_bytes, plan.count)
            if key in stored:
                done[place] = stored[key]
        return done, len(done) == len(self.request.rows)

    def measure(self, session: LaunchSession) -> None:
        """Measure the rows that are not stored yet, in random order."""
        session.monitor([])
        open_now = {opened.name: session.context_of([], opened.backend) for opened in session.opened if opened.backend}
        reasons = {opened.name: opened.reason for opened in session.opened if opened.reason}
        rows = [place for place in range(len(self.request.rows)) if place not in session.stored.done]
        random.Random(f"kv, {session.order_seed}").shuffle(rows)
        began = time.monotonic()
        for done, place in enumerate(rows):
            method, blocks = self.request.rows[place]
            left_s = (time.monotonic() - began) / done * (len(rows) - done) if done else None
            session.progress(f"{method}, {plural(self.plans[blocks].count, 'block')}", done, len(rows), left_s)
            kind = METHODS[method]
            context = open_now.get(kind.backend) or reasons.get(kind.backend) or _missing(kind.backend)
            row = self.row(session, context, kind, blocks)
            if session.world.rank == 0:
                session.store(row, FILE, place)
            stop = WrongDataStop(f"kv by {method}", len(rows) - done - 1, row.wrong_detail or "")
            if session.stops(bool(row.wrong), stop):
                return

    def row(
        self, session: LaunchSession, context: BackendContext | Fact, kind: type[TransferMethod], blocks: ModelBlocks | PlainBlocks
    ) -> KvRow:
        """Measure and verify one row; the figures are at rank 0. context: of the backend, or why it is not open."""
        world = session.world
        plan = self.plans[blocks]
        sources, targets = self.request.sides(world.size)
        row = KvRow(
            method=kind.name, backend=kind.backend, pattern=self.request.pattern, layout="plain", sources=sources, targets=targets,
            nodes=len(world.hosts), blocks=plan.count, block_bytes=plan.block_bytes, busiest=plan.busiest, size_bytes=plan.size_bytes,
            prefill_s=self.request.prefill_s,
        )  # fmt: skip
        if isinstance(blocks, ModelBlocks):
            row = row.replace(layout=blocks.layout, model=blocks.model.name, tokens=blocks.tokens, block_tokens=blocks.block_tokens,
                          cache_dtype=blocks.dtype)  # fmt: skip
        if isinstance(context, Fact):
            return row.replace(na=str(context), na_fact=as_json(context))
        work = KvWork(context, kind(plan, world, context.backend), plan, series_of(row), session.request.seed)
        result = session.engine.measure(work, session.request.budget)
        if isinstance(result, Fact):
            return row.replace(na=str(result), na_fact=as_json(result))
        watched = result.watched
        copies = result.gathered
        if watched is None or result.wrong is None or copies is None:
            return row
        if watched.other_path:
            session.note_once(f"other path of {kind.name}", watched.other_path)
        copy_s = sum(max((max(times) for times in side if times), default=0.0) for side in (copies[:sources], copies[sources:]))
        row = row.replace(copy_s=copy_s or None, **check_fields(result.checked, result.wrong))
        return self._stored(row, session, work, result)

    def _stored(self, row: KvRow, session: LaunchSession, work: KvWork, result: Measured) -> KvRow:
        """Store the samples as a row of cases, which `compare`, `gate` and `baseline` use, and return the row with its figures."""
        assert result.watched is not None
        ceiling = self._ceiling(result.ready, work.backend, session)
        limits = (ceiling, ceiling if ceiling.bytes_per_s else None)
        context = session.engine.context_of_row(result.ready, work.backend, result.watched, limits)
        case, arrays = make_row(result.ready, work.backend, result.watched, context)
        when = session.when(result.phases[0].began_s, result.phases[-1].ended_s, result.phases)
        evidence = {**case.evidence, **result.evidence, **wrong_evidence(result.wrong or []), **when}
        case = replace(case, checked=row.checked, wrong=row.wrong, wrong_detail=row.wrong_detail, evidence=evidence)
        if session.folder:
            session.folder.append(case, arrays)
        limit = ceiling.bytes_per_s
        times = case.time_s
        return row.replace(
            n=case.n, time_s=Estimate(times.p50, times.ci_low, times.ci_high) if times else Estimate(),
            expected_s=case.size_bytes / limit if limit and case.comparison is not None else None,
            limited_by=f"{ceiling.limited_by} ({ceiling.source})" if limit else "", flags=case.flags, evidence=case.evidence,
        )  # fmt: skip

    def _ceiling(self, ready: PreparedCase, backend: Backend, session: LaunchSession) -> Ceiling:
        """Return the rate of all blocks at which the busiest link of a host is full, at rank 0; without a rate inside one host."""
        assert ready.must is not None
        must = ready.must({member.rank: member.host for member in session.world.members})
        crossing = {host: max(must.out.get(host, 0.0), must.into.get(host, 0.0)) for host in session.world.hosts}
        if not any(crossing.values()):
            return no_ceiling("all blocks stay inside a host")
        links = session.ceilings.leaving(backend)
        unknown = [links[host].name for host, n_bytes in crossing.items() if n_bytes and not links[host].bytes_per_s]
        if unknown:
            return no_ceiling(unknown[0])
        slow = max(crossing, key=lambda host: crossing[host] / links[host].rate)
        link = links[slow]
        rate = ready.case.size_bytes / crossing[slow] * link.rate
        parts = (link.part,) if link.part else ()
        return Ceiling("network", rate, f"{link.name} on {slow}", "bound", link.source, limited_by_parts=parts)

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return run.json's "kv"."""
        return {"kv": self.about(session)}
