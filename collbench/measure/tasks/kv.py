"""Measure transfers of scattered blocks: each method at each number and size of blocks, in random order, with verified contents."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE, CollbenchError, UsageError
from collbench.measure.block_transfer import METHODS, BlockPattern, TransferMethod
from collbench.measure.loop import Loop, Timed
from collbench.measure.open_backends import OpenBackend
from collbench.measure.request import Request
from collbench.measure.row import check_fields, wrong_evidence
from collbench.measure.sampling import measure, schedule, slowest
from collbench.measure.session import LaunchSession, Plan, ProgressListener, Task, WrongDataStop, run_task
from collbench.measure.tasks.channels import links_of
from collbench.operations.data import Mismatch
from collbench.operations.program import Program
from collbench.operations.unsupported import SharedMemoryTooSmall
from collbench.reason import Fact, Text, as_json, decode_or_text
from collbench.results.folder import KV
from collbench.results.kv import KvRow, read_kv
from collbench.results.reader import Run
from collbench.results.steps import Estimate
from collbench.stats.median import median
from collbench.units import format_bytes, plural
from collbench.workloads.kv import BlockPlan, ModelBlocks, Pattern, PlainBlocks, make_plan

_COPIES = 9  # repetitions of the copies of "packed"


@dataclass(frozen=True)
class KvRequest:
    """The request of `collbench kv`.

    launch      options of the launch; `budget.max_time_s` is the time of a row's samples
    methods     names of METHODS
    blocks      what is sent, one after the other
    parallel    (ranks that send, ranks that receive) from --tp, or None: half of the ranks each; broadcast: one and all others
    prefill_s   the user's time of prefill, for the share of the time to first token
    """

    launch: Request
    methods: tuple[str, ...]
    blocks: tuple[ModelBlocks | PlainBlocks, ...]
    pattern: Pattern = "prefill-decode"
    parallel: tuple[int, int] | None = None
    prefill_s: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        return {
            "--method": list(self.methods), "blocks": [str(each) for each in self.blocks], "--pattern": self.pattern,
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


@dataclass(frozen=True)
class _Opened:
    """A backend, and its synchronization before each sample."""

    of: OpenBackend
    sync: Program | None


@dataclass
class KvTask(Task):
    """The rows of one launch."""

    request: KvRequest
    plans: dict[ModelBlocks | PlainBlocks, BlockPlan] = field(default_factory=dict)
    links: Mapping[str, Any] = field(default_factory=dict)
    what = "row"

    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan. Raises UsageError, on all ranks, for ranks that do not fit and for too little memory."""
        world = session.world
        try:
            self.plans = {blocks: self.request.plan(blocks, world.size) for blocks in self.request.blocks}
        except UsageError as error:
            world.refuse(str(error))
        largest = max(self.plans.values(), key=lambda plan: plan.block_bytes * max(plan.source_places, plan.target_places))
        need = 2 * largest.block_bytes * sum(largest.places(member.rank) for member in world.on_host())  # "packed" has copies
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        wrong = f"{world.me.host} needs {format_bytes(need)} for the blocks and has {format_bytes(free)} free: use fewer blocks or tokens"
        if short := world.first_error(wrong if need > free else None, "comparing the memory"):
            world.refuse(str(short))
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
        _, rows, _ = read_kv(run)
        stored = {(row.method, row.block_bytes, row.blocks): row for row in rows}
        found = {}
        for place, (method, blocks) in enumerate(self.request.rows):
            plan = self.plans[blocks]
            if row := stored.get((method, plan.block_bytes, plan.count)):
                found[place] = row
        return found, len(found) == len(self.request.rows)

    def measure(self, session: LaunchSession) -> None:
        """Measure the rows that are not stored yet, in random order."""
        session.monitor([])
        open_now = {one.name: _Opened(one, session.context_of([], one.backend).sync if one.backend else None) for one in session.opened}
        self.links = links_of(session.world)
        rows = [place for place in range(len(self.request.rows)) if place not in session.stored.done]
        random.Random(f"kv, {session.order_seed}").shuffle(rows)
        began = time.monotonic()
        for done, place in enumerate(rows):
            method, blocks = self.request.rows[place]
            left_s = (time.monotonic() - began) / done * (len(rows) - done) if done else None
            session.progress(f"{method}, {plural(self.plans[blocks].count, 'block')}", done, len(rows), left_s)
            kind = METHODS[method]
            row = self.row(session, open_now.get(kind.backend), kind, blocks)
            if session.world.rank == 0:
                session.store(row, KV, place)
            stop = WrongDataStop(f"kv by {method}", len(rows) - done - 1, row.wrong_detail or "")
            if session.stops(bool(row.wrong), stop):
                return

    def row(self, session: LaunchSession, opened: _Opened | None, kind: type[TransferMethod], blocks: ModelBlocks | PlainBlocks) -> KvRow:
        """Measure and verify one row; the figures are at rank 0."""
        world, plan = session.world, self.plans[blocks]
        sources, targets = self.request.sides(world.size)
        row = KvRow(
            kind.name, kind.backend, self.request.pattern, "plain", sources, targets, plan.count, plan.block_bytes, plan.busiest,
            plan.size_bytes, nodes=len(world.hosts), prefill_s=self.request.prefill_s,
        )  # fmt: skip
        if isinstance(blocks, ModelBlocks):
            row = replace(row, layout=blocks.layout, model=blocks.model.name, tokens=blocks.tokens, block_tokens=blocks.block_tokens,
                          cache_dtype=blocks.dtype)  # fmt: skip
        backend = opened.of.backend if opened else None
        if opened is None or backend is None:
            why: Fact = Text(opened.of.reason if opened and opened.of.reason else f"{kind.backend} is not installed")
            return replace(row, na=str(why), na_fact=as_json(why))
        method = kind(plan, world)
        what = f"kv by {kind.name}"
        refusal = method.refusal()
        if reason := world.first_error(None if refusal is None else as_json(refusal), f"{what}: asking for memory"):
            fact = decode_or_text(reason, SharedMemoryTooSmall)
            return replace(row, na=str(fact), na_fact=reason)
        wrong = None
        with world.watchdog.phase(f"{what}: allocating"):
            try:
                method.allocate()
                program = method.bind()
            except (CollbenchError, MemoryError, OSError) as error:
                wrong = str(error) or type(error).__name__
        if reason := world.first_error(wrong, f"{what}: allocating"):
            return replace(row, na=str(reason), na_fact=as_json(Text(str(reason))))
        loop = Loop(Timed(program, opened.sync, backend.clock(), world.watchdog.progress))
        budget = session.request.budget
        timing = schedule(budget, plan.size_bytes, "isolated", list(range(world.size))) if world.rank == 0 else None
        with world.watchdog.phase(f"{what}: measuring"), world.extend_timeout(budget.max_time_s):
            found = measure(loop, world, timing, what)
        copies = world.gather(self._copies(method), f"{what}: timing the copies")
        mismatches = self._verify(session, method, loop, what)
        with world.watchdog.phase(f"{what}: ending"):
            method.free()
        if found is None or mismatches is None or copies is None:
            return row
        series = slowest(found.samples, list(range(world.size)))
        middle = median(series)
        expected_s, limit = self._expected(plan, world, self.links)
        crowded = session.crowded(backend, "cpu")
        on = {"oversubscribed": crowded, "python_loop": loop.could_be_native and not loop.native}
        flags = [*(flag for flag, true in on.items() if true), *found.flags]
        copy_s = max((max(times) for times in copies[:sources] if times), default=0.0)
        copy_s += max((max(times) for times in copies[sources:] if times), default=0.0)
        return replace(
            row, n=len(series), time_s=Estimate(middle.value, middle.ci_low, middle.ci_high), copy_s=copy_s or None,
            expected_s=None if crowded else expected_s, limited_by=limit, flags=tuple(dict.fromkeys(flags)),
            evidence={"libraries": dict(backend.versions()), "conditions": session.conditions} | wrong_evidence(mismatches),
            **check_fields(session.request.check, mismatches),
        )  # fmt: skip

    def _copies(self, method: TransferMethod) -> list[float]:
        """Return the seconds of all copies of this rank, alone; empty without copies."""
        calls = method.copy_calls()
        times = []
        for _ in range(_COPIES if calls else 0):
            began = time.monotonic()
            for call in calls:
                call()
            times.append(time.monotonic() - began)
        return [float(np.median(times))] if times else []

    def _verify(self, session: LaunchSession, method: TransferMethod, loop: Loop, what: str) -> list[Mismatch] | None:
        """Send new contents, and compare each byte. Return the mismatches at rank 0."""
        world, found = session.world, list[dict[str, Any]]()
        for call in range(session.request.check):
            pattern = BlockPattern(method.plan.block_bytes, session.request.seed + call)
            with world.watchdog.phase(f"{what}: filling"):
                pattern.fill(method)
            world.allgather(None, f"{what}: filled")  # one-sided puts must not come before the target has filled its memory
            with world.watchdog.phase(f"{what}: verifying"):
                loop.run(1)
                mismatch = pattern.check(method)
            found += [mismatch.as_json()] if mismatch else []
        everyone = world.gather(found, f"{what}: verifying")
        return None if everyone is None else [Mismatch(**one) for part in everyone for one in part]

    def _expected(self, plan: BlockPlan, world: World, links: Mapping[str, Any]) -> tuple[float | None, str]:
        """Return (the seconds that the busiest host's link needs for its bytes, its name); (None, "") if a link's rate is unknown."""
        moved: dict[tuple[str, str], int] = {}
        for link in plan.links:
            source, target = (world.members[rank].host for rank in (link.source, link.target))
            if source != target:
                for key in ((source, "out"), (target, "in")):
                    moved[key] = moved.get(key, 0) + len(link.at_source) * plan.block_bytes
        if not moved or any(host not in links or not links[host].bytes_per_s for host, _ in moved):
            return None, ""
        seconds = {host: n_bytes / links[host].bytes_per_s for (host, _), n_bytes in sorted(moved.items(), key=lambda one: one[1])}
        slow = max(seconds, key=seconds.__getitem__)
        return seconds[slow], f"{links[slow].name} on {slow} ({links[slow].source})"

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return run.json's "kv"."""
        return {"kv": self.about(session)}

    def exit_code(self, records: Sequence[KvRow]) -> int:
        """Return the exit code: 4 if data was wrong, 2 if nothing could be measured, else 0."""
        if any(row.wrong for row in records):
            return FAILED
        return FINE if any(row.na is None for row in records) else USAGE


def run_kv(kv: KvRequest, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
    """Measure transfers of blocks on all ranks of `world`; see `run_task`."""
    return run_task(KvTask(kv), kv.launch, world, listener, ended)
