"""Prepare one case on all ranks together: groups, buffers, program and first call; and release it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import Backend, Group, Tuning, in_place_only
from collbench.backends.clock import DeviceClock, ProcessClock
from collbench.backends.host import AnyBuffers
from collbench.control.world import World
from collbench.errors import CollbenchError, PeerFailed, WaitExpired
from collbench.measuring.crossing import LeastBytes
from collbench.measuring.loop import CallFailed, Loop, Timed, TimedLoop, Unfinished
from collbench.operations.case import Case
from collbench.operations.data import slots_for
from collbench.operations.groups import Groups, groups_of
from collbench.operations.operation import Operation
from collbench.operations.program import Program, PythonCall, joined
from collbench.operations.unsupported import CaseFailed, decode_reason
from collbench.reason import Fact, as_json

_BETWEEN_GROUPS = 7919  # a prime above the number of slots, which have consecutive seeds
T = TypeVar("T")


class PreparedCase(msgspec.Struct, frozen=True):
    """A case that every rank can run: its groups, this process's part of them, and the loop over its program.

    checking      the loop that is verified: `loop`, unless one turn of it is several iterations or the operation is a barrier
    synchronised  whether the ranks synchronize before each sample, not only before the first of a batch of samples
    program       the calls that `loop` runs, to be joined with others
    must          of several operations in one: the bytes that must cross hosts; None: it is one operation
    first_call_s  seconds of the first call, until it has returned at all ranks
    """

    operation: Operation
    case: Case
    groups: tuple[tuple[int, ...], ...]
    own_groups: tuple[Group, ...]
    buffers: tuple[AnyBuffers, ...]
    loop: TimedLoop
    checking: TimedLoop
    synchronised: bool = True
    program: Program = msgspec.field(default_factory=lambda: Program(((),)))
    must: Callable[[Mapping[int, str]], LeastBytes] | None = None
    first_call_s: float = 0.0

    @property
    def timed(self) -> list[int]:
        """Return the timed ranks, ascending: of a pair the first, else all."""
        return sorted(rank for group in self.groups for rank in (group[:1] if self.operation.pair else group))

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the conditions of the case that this process knows, JSON-ready."""
        pages = {buffers.page_bytes for buffers in self.buffers if buffers.page_bytes}
        loop = "native" if self.loop.native else "python"
        evidence: dict[str, Any] = {"page_bytes": max(pages, default=None), "loop": loop, "synchronised": self.synchronised}
        if self.case.call:
            evidence["calls"] = list(dict.fromkeys(self.program.calls()))
        return evidence

    @property
    def fell_back(self) -> bool:
        """Return whether Python times a program that the C loop could time if it had been built."""
        return not self.loop.native and self.loop.could_be_native


def placed(case: Case, operation: Operation, backend: Backend) -> Case:
    """Return the case, out of place where the library supports it, unless the user chose otherwise."""
    return case if case.in_place is not None else case.placed(in_place_only(backend, operation))


def make_groups(backend: Backend, work: Sequence[tuple[Operation, Case]], world: World) -> dict[tuple[int, ...], Group | None]:
    """Return the groups that these cases need, and that of all ranks; pairs need none.

    All ranks call, and make the groups in the same order. None: this process has no rank in the group.
    """
    splits = dict.fromkeys(case.split for operation, case in work if not operation.pair and case.split)
    needed = [tuple(range(backend.ranks)), *(ranks for split in splits for ranks in split.groups(backend.ranks))]
    with world.watchdog.phase(f"making groups on {backend.name}"):
        return {ranks: backend.group(ranks) for ranks in dict.fromkeys(needed)}


class BackendContext(msgspec.Struct, frozen=True):
    """The state that all cases of a backend share: the backend, its groups by their ranks, and the synchronization of ranks.

    each_time   whether the ranks may synchronize before each sample; else only before the first of a batch
    """

    backend: Backend
    members: dict[tuple[int, ...], Group | None]
    sync: Program | None
    each_time: bool = True

    @property
    def whole(self) -> Group | None:
        """Return this process's part of the group of all ranks."""
        return self.members[tuple(range(self.backend.ranks))]

    @property
    def driven(self) -> frozenset[int]:
        """Return the ranks that this process drives."""
        return frozenset(self.whole.ranks[place] for place in self.whole.driven) if self.whole else frozenset()


def prepare(
    operation: Operation, case: Case, stage: BackendContext, world: World, groups: Groups | None = None, *, slots: int | None = None
) -> PreparedCase | Fact:
    """Allocate and bind a case and run its first call on all ranks. Return it, or the first reason of a rank, the same
    on all ranks.

    Pairs, and the groups of a case with a tuning, belong to the case: they are made here, and `release` frees them.

    groups   such as one round of pairs; None: those of the case
    slots    number of rotating buffers; None: the case's own
    """
    groups = groups_of(operation, case, stage.backend.ranks) if groups is None else groups
    operation = operation.on(stage.backend.api, stage.backend.passes_messages)
    preparation = Preparation(operation, case, stage, groups, world, slots or slots_for(case))
    own_groups: tuple[Group, ...] | Fact = preparation.attempt("making its groups", "groups", preparation.make_groups)
    if _has_groups_alone(operation, case):  # others were made before the first case: no rank can fail alone
        own_groups = preparation.first_failure(own_groups, "making its groups") or own_groups
    if isinstance(own_groups, Fact):
        return own_groups
    ready = preparation.bind(own_groups)
    if isinstance(ready, Fact):
        with world.watchdog.phase(f"{case.title()}: freeing its groups"):
            _release(operation, case, stage.backend, own_groups)
    return ready


class Preparation(msgspec.Struct, frozen=True):
    """A case to prepare on all ranks: over these groups, in a backend's context, with so many rotating buffers."""

    operation: Operation
    case: Case
    stage: BackendContext
    groups: Groups
    world: World
    slots: int

    def attempt(self, doing: str, stage: Literal["groups", "allocation", "binding"], make: Callable[[], T]) -> T | CaseFailed:
        """Return what `make` makes under the watchdog, or why the library refuses it at this rank. Raises PeerFailed, WaitExpired."""
        with self.world.watchdog.phase(f"{self.case.title()}: {doing}"):
            try:
                return make()
            except (PeerFailed, WaitExpired):  # of an exchange: the launch ends
                raise
            except (CollbenchError, AttributeError) as error:
                return CaseFailed(stage, self.world.rank, str(error))
            except MemoryError as error:
                return CaseFailed(stage, self.world.rank, str(error) or "not enough memory")

    def first_failure(self, result: object, doing: str) -> Fact | None:
        """Return the first reason of any rank, the same at all ranks; None where no rank has one. All ranks call."""
        reason_here = as_json(result) if isinstance(result, Fact) else None
        reason = self.world.first_error(reason_here, f"{self.case.title()}: {doing}")
        return decode_reason(reason) if reason else None

    def make_groups(self) -> tuple[Group, ...]:
        """Return this process's groups. All ranks call."""
        backend = self.stage.backend
        tuning = Tuning(self.case.algorithm, self.case.protocol)
        whole = self.stage.whole
        driven = self.stage.driven

        def make(ranks: tuple[int, ...]) -> Group | None:
            if self.operation.pair:
                return None if driven.isdisjoint(ranks) else backend.pair(whole, ranks, self.case)
            return backend.group(ranks, tuning) if _is_tuned(self.case) else self.stage.members[ranks]

        return tuple(group for group in [make(ranks) for ranks in self.groups] if group)

    def bind(self, own_groups: tuple[Group, ...]) -> PreparedCase | Fact:
        """Bind the case on all ranks, or return a reason. On GPUs no rank binds before all have memory.

        A call captured into a graph connects the ranks, and would wait for those that fail. So may the making of a persistent request.
        """
        buffers = self.attempt("allocating", "allocation", lambda: self._filled(own_groups))
        if self.case.device != "cpu" or self.case.call == "persistent":
            failed = self.first_failure(buffers, "allocating")
            if failed:
                return failed
        doing = "binding its calls"
        program = buffers if isinstance(buffers, CaseFailed) else self.attempt(doing, "binding", lambda: self._program(own_groups, buffers))
        failed = self.first_failure(program, doing)
        if isinstance(buffers, CaseFailed):
            return failed or buffers
        if isinstance(program, Fact):
            return failed or program
        if failed:
            program.free()
            return failed
        ready = self._looped(own_groups, buffers, program)
        refused = None
        began = time.monotonic()
        try:  # only the library knows which cases it does not support
            with phase(ready, self.world, "the first call"):
                ready.checking.run(1, slot=0)
        except CallFailed as error:
            refused = CaseFailed("first call", self.world.rank, str(error))
        failed = self.first_failure(refused, "the first call")
        if failed:
            program.free()
            return failed
        return replace(ready, first_call_s=time.monotonic() - began)

    def _filled(self, own_groups: tuple[Group, ...]) -> tuple[AnyBuffers, ...]:
        buffers_of_groups = []
        for group in own_groups:
            case = replace(self.case, seed=group_seed(self.case, group))
            buffers_of_groups.append(self.stage.backend.allocate(self.operation, case, group, self.slots))
        for buffers in buffers_of_groups:
            for slot in range(self.slots):
                buffers.fill(slot, for_check=False)
        return tuple(buffers_of_groups)

    def _program(self, own_groups: tuple[Group, ...], buffers: tuple[AnyBuffers, ...]) -> Program | Fact:
        backend = self.stage.backend
        programs: list[Program] = []
        for group, group_buffers in zip(own_groups, buffers, strict=True):
            if self.case.call is None:
                program: Program | Fact = backend.bind(self.operation, self.case, group, group_buffers)
            else:
                from collbench.backends.nonblocking import bind_called

                program = bind_called(backend, self.operation, self.case, group, group_buffers)
            if isinstance(program, Fact):
                return program
            programs.append(program)
        return joined(programs) if programs else Program(((),))

    def _looped(self, own_groups: tuple[Group, ...], buffers: tuple[AnyBuffers, ...], program: Program) -> PreparedCase:
        operation = self.operation
        stage = self.stage
        # several pairs must run at the same time
        alone = (operation.self_synchronizing or operation.one_sided) and len(self.groups) == 1
        is_synchronised = stage.each_time and self.case.mode != "pipelined" and not alone
        clock = stage.backend.clock()
        sync = stage.sync
        if operation.creates and isinstance(clock, DeviceClock):
            clock, sync = _on_host(clock, sync, stage.backend)
        before, meeting = (sync, None) if is_synchronised else (None, sync)
        parting = stage.sync if operation.one_sided else None  # many libraries make progress only while rank 1 is inside a call, too
        timed = Timed(program, before, clock, self.world.watchdog.progress, meeting, parting)
        loop = Loop(timed)
        checking = loop
        if program.once or operation.is_barrier:
            checked = replace(timed, program=program.once or program)
            # a barrier is verified without the synchronization before it, which would also hold the ranks
            checking = Loop(replace(checked, sync=None, meeting=None) if operation.is_barrier else checked)
        return PreparedCase(operation, self.case, self.groups, own_groups, buffers, loop, checking, is_synchronised, program)


def _on_host(clock: DeviceClock, sync: Program | None, backend: Backend) -> tuple[ProcessClock, Program | None]:
    """Return the clock of calls that the host waits for, and the synchronization, after which the host waits for the GPU as well."""
    if sync:
        fence = PythonCall("wait for the GPU", lambda: backend.fence(clock.deadline_s))
        sync = replace(sync, slots=tuple((*slot, fence) for slot in sync.slots))
    return ProcessClock(len(clock.streams)), sync


def _is_tuned(case: Case) -> bool:
    return bool(case.algorithm or case.protocol)


def _has_groups_alone(operation: Operation, case: Case) -> bool:
    return operation.pair or _is_tuned(case)


def group_seed(case: Case, group: Group) -> int:
    """Return a seed that differs between groups, so that verification detects data of another group."""
    return case.seed + _BETWEEN_GROUPS * group.ranks[0]


def release(ready: PreparedCase, backend: Backend) -> None:
    """Free the requests and groups that were made for this case alone."""
    ready.program.free()
    _release(ready.operation, ready.case, backend, ready.own_groups)


def _release(operation: Operation, case: Case, backend: Backend, own_groups: Sequence[Group]) -> None:
    if _has_groups_alone(operation, case):
        for group in own_groups:
            backend.release(group)


@contextmanager
def phase(ready: PreparedCase, world: World, name: str) -> Iterator[None]:
    """Run the block under the watchdog. An error of work that does not end names its case."""
    try:
        with world.watchdog.phase(f"{ready.case.title()}: {name}"):
            yield
    except Unfinished as error:
        raise Unfinished(f"{ready.case.title()}: {error}") from None
