"""One launch of any kind: open the backends, plan, open the run folder, measure a task, store each record at once, and end on all ranks."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from threading import Thread
from typing import Any, Protocol, TypeVar

import msgspec

from collbench import __version__
from collbench.backends.backend import Backend
from collbench.control.diagnosis import Hang
from collbench.control.world import World
from collbench.errors import FAILED, FINE, USAGE, CollbenchError, Interrupted, UsageError
from collbench.launch import signals, software
from collbench.launch.spawn import command_began_s, record_run
from collbench.measuring.ceilings import Ceilings
from collbench.measuring.engine import Engine
from collbench.measuring.instruments import Instruments, binding, settings
from collbench.measuring.monitored import StateProbe, state_probe
from collbench.measuring.open_backends import (
    OpenBackend,
    PlannedCase,
    agreed_backends,
    close_backends,
    first_available,
    open_backends,
)
from collbench.measuring.phases import Phase, switch_on_ranges
from collbench.measuring.prepared_case import BackendContext, make_groups
from collbench.measuring.request import Request
from collbench.measuring.resume import Stored, open_folder, options_of, stored_order_seed
from collbench.measuring.sync import HostSync, host_sync
from collbench.operations.case import Case
from collbench.operations.sweep import Sweep, Sweeps, rounding_note, tuning_note
from collbench.reason import Fact, Text, as_json
from collbench.results.environment import host_facts, loaded_libraries, recorded_environment
from collbench.results.folder import CASES, RunFolder
from collbench.results.reader import Run
from collbench.units import plural

_PATIENCE_S = 1.0
_END_S = 1.5  # from the last case to the end of the command
T = TypeVar("T")

# What a task, its plan and its listener are.


class Plan(msgspec.Struct, frozen=True):
    """What a launch will measure.

    total       the number of cases, rounds or trainings
    facts       entries for run.json
    cases       of a sweep, for its table, with the number of ranks and nodes, and the rank map
    notes       for the user, before the first record
    """

    total: int
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    cases: Sequence[Case] = ()
    ranks: int = 0
    nodes: int = 0
    rank_map: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[Fact | str] = ()


class ProgressListener(Protocol):
    """The progress listener at rank 0, of every kind of launch. collbench/report implements it."""

    def begin(self, plan: Plan, folder: str) -> None:
        """Receive what will be measured, and the run's folder."""

    def status(self, text: str, left_s: float | None = None) -> None:
        """Receive what happens before the first record, "measuring the references…", and the seconds left of a command with a limit."""

    def progress(self, title: str, done: int, total: int | None, eta_s: float | None) -> None:
        """Receive the start of a case or training, or the end of a round: its title, the counts, and the estimated remaining seconds.

        total is None while suspects are measured again.
        """

    def record(self, record: Any, place: int | None) -> None:
        """Receive a row, a round, or the row of a training or of an external tool, once it is stored.

        Cases are measured in shuffled order; `place` is the case's index in the plan, from 0.
        """

    def note(self, sentence: str) -> None:
        """Show a note once."""

    def end(self) -> None:
        """Finish, at the end of the launch."""


class Task(ABC):
    """One kind of measurement: test cases, training, rounds of pairs, or a hunt.

    All ranks call its methods in the same order. `session.records` has the results, at rank 0 alone.

    one_backend  whether it measures only on the first of the request's backends that opens
    what         what it measures, one after the other: "case", "round" or "row" (of a training)
    in_order     whether its records follow from the seed of the order and from one another: a resumed run has the same seed
    """

    one_backend: bool = False
    what: str = "case"
    in_order: bool = False

    def agree(self, session: LaunchSession) -> None:
        """Find out what rank 0 alone can read, before the backends are open. Raises UsageError, on all ranks, if it cannot."""
        return

    @abstractmethod
    def plan(self, session: LaunchSession) -> Plan:
        """Return the plan, once the backends are open. Raises UsageError, on all ranks, for a request that does not fit the launch."""

    def requested(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the options for run.json's "asked", at rank 0. A run is resumed only if they are the same."""
        return {"options": options_of(session.request)}

    @abstractmethod
    def take_up(self, run: Run) -> tuple[dict[int, Any], bool]:
        """Return (the records of the run to resume by place in the plan, whether nothing is left to measure), at rank 0.

        Raises UsageError for records that cannot be continued.
        """

    def references(self, session: LaunchSession) -> tuple[list[Backend], list[tuple[Any, Case]]]:
        """Return the backends and the cases for which the references of the hosts are measured."""
        return [], []

    @abstractmethod
    def measure(self, session: LaunchSession) -> None:
        """Measure, and store each record with `session.store`."""

    def conclude(self, session: LaunchSession) -> Mapping[str, Any]:
        """Return the entries of run.json that are known at the end, at rank 0."""
        return {}

    def exit_code(self, records: Sequence[Any]) -> int:
        """Return the exit code, at rank 0: 4 if data was wrong, 2 if nothing could be measured, else 0."""
        if any(row.wrong for row in records):
            return FAILED
        return FINE if any(row.na is None for row in records) else USAGE

    def act(self, session: LaunchSession, code: int) -> None:
        """Act on the result, at rank 0, when it is stored and all ranks still run."""
        return


class WrongDataStop(Fact, frozen=True):
    """The launch ended at the first wrong data, because of --stop-on-wrong.

    where   the case or round; left: how many are not measured, None where that is not known
    detail  the wrong data
    """

    where: str = ""
    left: int | None = None
    detail: str = ""

    def render(self) -> str:
        """Return the sentence that users see."""
        where = f" in {self.where}" if self.where else ""
        missing = f", {plural(self.left, 'case')} not measured" if self.left else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"stopped after wrong data{where}{missing} (--stop-on-wrong){detail}"


# The session: one launch, from its request to its end.


@dataclass
class LaunchSession:
    """The state of one launch, the same on all ranks except the folder, the records and the listener, which only rank 0 has.

    sweep        that of the request, with the default backends on which all ranks agree
    order_seed   seed of the order in which the cases are measured
    opened       the backends
    stored       the part of a resumed run that is not measured again
    records      the results so far, with those of a resumed run
    conditions   constant conditions of these hosts, for every row's evidence
    """

    request: Request
    world: World
    listener: ProgressListener | None = None
    sweep: Sweep | Sweeps = field(init=False)
    order_seed: int = 0
    opened: list[OpenBackend] = field(default_factory=list)
    folder: RunFolder | None = None
    stored: Stored = field(default_factory=Stored)
    records: list[Any] = field(default_factory=list)
    sync: HostSync | None = None
    probe: StateProbe | None = None
    instruments: Instruments | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    _waiting: list[Fact | str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)
    _lap_began_s: float = field(default_factory=time.monotonic)

    @cached_property
    def ceilings(self) -> Ceilings:
        """The limits of the launch's hosts."""
        return Ceilings(self.request, self.world, status=self.status, ends_s=self.ends_s)

    @property
    def backend(self) -> OpenBackend:
        """The backend of a launch on one backend."""
        return self.opened[0]

    # From the request to the run folder.

    def begin(self, task: Task) -> Plan:
        """Open the backends and the run folder, and return the plan. All ranks must call it. Raises CollbenchError."""
        request = self.request
        world = self.world
        self.order_seed = world.broadcast(self._draw_order_seed(task), "beginning")
        missing_nvtx = world.first_error(switch_on_ranges(), "opening NVTX") if request.nvtx else None
        if missing_nvtx:
            world.refuse(missing_nvtx)
        task.agree(self)
        names, self.sweep = agreed_backends(request, world)
        self.status(f"opening {', '.join(names)} on {plural(world.size, 'rank')}…")
        note = self._waiting.append
        if task.one_backend:
            self.opened = [first_available(names, request, world, note)]
        else:
            self.opened = open_backends(names, request, world, note, self.ends_s)
        plan = task.plan(self)
        software_groups = software_of_hosts(world, self.opened)
        self._waiting += [software.difference(name, versions) for name, versions in software.differing(software_groups).items()]

        def opening() -> Stored:
            info = {**describe_run(request, world, self.opened, software_groups), "order_seed": self.order_seed, **plan.facts}
            return open_folder(request, {**info, "asked": task.requested(self)}, task.take_up)

        self.stored = at_rank_0(world, opening, "opening the run folder") or Stored(resumed=request.resume is not None)
        stored_at_rank_0: list[Any] = [sorted(self.stored.records), self.stored.complete]
        done, self.stored.complete = world.broadcast(stored_at_rank_0, "looking at what is stored")
        self.stored.done = frozenset(done)
        self.records = list(self.stored.records.values())
        folder = self.stored.folder
        if folder:
            self.folder = None if self.stored.resumed else folder
            folder.watch = world.watchdog.phase
            world.kept = partial(folder.so_far, plan.total)
            record_run(folder.path, os.environ)
        return plan

    def _draw_order_seed(self, task: Task) -> int:
        """Return the seed of the order at rank 0: of the run to resume if its records depend on it, else the user's, else a new one."""
        request = self.request
        if self.world.rank == 0 and task.in_order and request.earlier:
            seed = stored_order_seed(request.earlier)
            if seed is not None:
                return seed
        return secrets.randbits(32) if request.order_seed is None else request.order_seed

    # The measurement.

    def measure(self, task: Task, plan: Plan) -> int:
        """Measure what is not stored yet, complete the run folder, and return the exit code, the same on all ranks."""
        if not self.stored.complete:
            self.ceilings.prepare(*task.references(self))
            at_rank_0(self.world, lambda: self.stored.go_on(self.ceilings.topology()), "comparing the machines")
            self.folder = self.stored.folder
        else:
            self.folder = self.stored.completed(task.exit_code(self.records))
        if self.listener:
            self.listener.begin(plan, str(self.stored.folder.path) if self.stored.folder else "")
            for place, record in self.stored.records.items():
                self.listener.record(record, place)
        stored = self.stored.notes(None if task.in_order else plan.total, task.what)
        for fact in (*self._waiting, *stored, *self._notes(), *plan.notes):
            self.note(fact)
        try:
            if not self.stored.complete:
                self.lap()
                task.measure(self)
        finally:
            if self.instruments:
                self.instruments.close()
        facts = task.conclude(self) if self.world.rank == 0 else {}
        self.remark()
        code: int = self.world.broadcast(task.exit_code(self.records) if self.world.rank == 0 else 0, "ending")
        task.act(self, code)
        if self.folder:
            logs = {opened.name: opened.paths.facts for opened in self.opened if opened.paths and opened.paths.facts}
            if logs:
                facts = {"nccl_log": logs, **facts}
            self.folder.finish(exit_code=code, **facts)
        return code

    def _notes(self) -> Iterator[str]:
        sweep = self.request.sweep
        world = self.world
        yield from (f"{opened.name} is not measured: {opened.reason}" for opened in self.opened if opened.reason)
        yield from world.info.advice
        crowded = world.oversubscribed
        backends = [opened.backend for opened in self.opened if opened.backend]
        if crowded and any(not backend.virtual and "cpu" in backend.devices for backend in backends):
            cores = world.cores_on(crowded)
            yield (
                f"{len(world.on_host(crowded))} ranks share {plural(cores, 'core')} on {crowded}: times include the wait for a core, so no "
                f"percentage is shown; start at most {plural(cores, 'rank')} there (or use Open MPI: its ranks yield, but MPICH spins and "
                "takes 10 ms for 8 bytes)"
            )
        yield from filter(None, (rounding_note(sweep), tuning_note(sweep, [opened.name for opened in self.opened])))
        if any(operation.pair for operation in sweep.operations) and world.size % 2 and world.size > 1:
            yield f"point-to-point operations use pairs: the last of {world.size} ranks is idle"

    def monitor(self, cases: Iterable[Case]) -> None:
        """Prepare the state probe, the conditions and the instruments that read the hosts' counters around each case."""
        self.probe = state_probe(self.world)
        if self.request.evidence != "off":
            cuda = any(case.device == "cuda" for case in cases)
            self.instruments = Instruments.ready(self.world, cuda, self.request.telemetry_hz)
        # governor, boost and huge pages of all ranks (a list where they differ), and the binding of ranks
        settings_of_ranks = self.world.allgather(settings(), "reading the CPUs' settings")
        cpus = [[f"{member.host} {cpu}" for cpu in member.cpus] for member in self.world.members]
        self.conditions = {}
        for name, value in settings_of_ranks[0].items():
            texts = {str(rank_settings[name]) for rank_settings in settings_of_ranks}
            self.conditions[name] = value if len(texts) == 1 else sorted(texts)
        self.conditions["binding"] = binding(cpus)

    @property
    def engine(self) -> Engine:
        """The engine that samples and verifies, with what `monitor` has prepared."""
        return Engine(
            self.world, self.request.check, monitors=True, probe=self.probe, instruments=self.instruments, conditions=self.conditions,
            slowed=self.request.slowed, paths={opened.name: opened.paths for opened in self.opened if opened.paths},
            machines=lambda: self.ceilings.machines, began_s=lambda: self.run_began_s if self.request.trace else None,
        )  # fmt: skip

    def context_of(self, items: Sequence[PlannedCase], backend: Backend) -> BackendContext:
        """Return the state that the cases of one backend share. All ranks must call it.

        The ranks synchronize before a sample by the backend's own calls, else over shared memory and sockets.
        """
        members = make_groups(backend, [(operation, case) for operation, case, _ in items], self.world)
        whole = members[tuple(range(backend.ranks))]
        program = backend.sync(whole) if whole else None
        if program is None and self.world.size > 1 and not backend.virtual and backend.ranks == self.world.size:
            self.sync = self.sync or host_sync(self.world)
            program = self.sync.program() if self.sync else None
        return BackendContext(backend, members, program)

    def crowded(self, backend: Backend, device: str) -> bool:
        """Return whether ranks, or the busy threads of their library, wait for cores, so that percentages are left out."""
        return self.engine.crowded(backend, device)

    def flags(self, backend: Backend, cases: Sequence[Case], fell_back: bool = False) -> list[str]:
        """Return the quality flags that follow from the launch. fell_back: Python times what the C loop could time."""
        return self.engine.flags(backend, cases, fell_back)

    def store(self, record: Any, file: str, place: int | None = None, arrays: Mapping[str, Any] | None = None) -> None:
        """Store a record and show it, at rank 0. file: its file in the run folder; arrays: the samples of a row of CASES."""
        if self.folder is None:
            return
        with signals.deferred():  # otherwise a record could be stored without being counted
            try:
                if file == CASES:
                    record = self.folder.append(record, arrays or {})
                else:
                    entry = record.as_json()
                    at_s = self.since_start(*self.lap())
                    self.folder.append_record({**entry, "at_s": at_s} if at_s else entry, file)
                self.records.append(record)
            finally:  # count the record even if storing it failed
                if self.listener:
                    self.listener.record(record, place)

    def stops(self, wrong: bool, stop: WrongDataStop | None) -> bool:
        """Return whether wrong data at rank 0 ends the launch (--stop-on-wrong), the same at all ranks. All ranks must call it."""
        ends = self.request.stop_on_wrong and bool(self.world.broadcast(wrong, "deciding whether to go on"))
        if ends and stop:
            self.note(stop)
        return ends

    def lap(self) -> tuple[float, float]:
        """Return (time of the previous call, now) in seconds on CLOCK_MONOTONIC. The first call returns the start of the launch."""
        previous_s = self._lap_began_s
        self._lap_began_s = time.monotonic()
        return previous_s, self._lap_began_s

    @cached_property
    def ends_s(self) -> float | None:
        """Return when the last case must have ended, in seconds on CLOCK_MONOTONIC, so that the command ends in time; None: no limit."""
        wall_s = self.request.budget.wall_s
        return None if wall_s is None else command_began_s(os.environ) + wall_s - _END_S

    @cached_property
    def run_began_s(self) -> float | None:
        """Return when the run began, in seconds on CLOCK_MONOTONIC; None: not recorded.

        It is derived from the calendar time, since a resumed run began in another process.
        """
        if self.folder is None:
            return None
        try:
            began = datetime.fromisoformat(str(self.folder.run["started_utc"]))
            return time.monotonic() - (datetime.now(UTC) - began).total_seconds()
        except (KeyError, TypeError, ValueError, OverflowError):  # the file of a resumed run is not trusted
            return None

    def since_start(self, *times_s: float) -> list[float]:
        """Return times on CLOCK_MONOTONIC in seconds since the run's start, to the microsecond; none if its start is not recorded."""
        start_s = self.run_began_s
        return [] if start_s is None else [round(time_s - start_s, 6) for time_s in times_s]

    def when(self, began_s: float, ended_s: float, phases: Sequence[Phase]) -> dict[str, Any]:
        """Return the entries of a row's evidence with the time of its case and of its phases; none if the run's start is not recorded."""
        at_s = self.since_start(began_s, ended_s)
        if not at_s:
            return {}
        entries: dict[str, Any] = {"at_s": at_s}
        if phases:
            entries["phases"] = [[phase.name, *self.since_start(phase.began_s, phase.ended_s)] for phase in phases]
        return entries

    # What the user sees.

    def status(self, text: str) -> None:
        """Show what happens before the first record, at rank 0, with the time left. Call it before a measurement, never during one."""
        if self.listener:
            self.listener.status(text, None if self.ends_s is None else self.ends_s - time.monotonic())

    def progress(self, title: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Show how far the launch is, at rank 0."""
        if self.listener:
            self.listener.progress(title, done, total, eta_s)

    def note(self, fact: Fact | str) -> None:
        """Show a fact, or a sentence of a plug-in or library, and store it in events.jsonl."""
        if self.listener:
            self.listener.note(str(fact))
        if self.folder:
            entries: dict[str, Any] = {"text": str(fact)}
            if isinstance(fact, Fact):
                entries["reason"] = as_json(fact)
            self.folder.event("note", **entries)

    def note_once(self, subject: str, fact: Fact | str) -> None:
        """Note the first fact of this kind about a subject. The rows have all facts."""
        if subject not in self._noted:
            self._noted.add(subject)
            self.note(fact)

    def remark(self) -> None:
        """Note the connections that the control plane refused."""
        for fact in self.world.remarks():
            self.note(fact)

    # Its end.

    def leave(self, code: int, ended: Callable[[int], None]) -> None:
        """Pass the exit code to `ended`, then close the libraries. A crash there does not affect the results."""
        ended(code)
        self.world.allgather(None, "ending")
        close_backends(self.opened, self.world)
        if self.sync:
            self.sync.close()

    def hang(self, reason: Fact) -> None:
        """Store the reason of the end in the folder, and show the rows that wait for earlier ones. The process ends after this call.

        Both run in their own threads, for at most a second. A disk or a terminal that does not answer may have caused the hang.
        """
        deadline = time.monotonic() + _PATIENCE_S
        end_early = partial(self._end_early, reason, self.world.ending_code)
        threads = [Thread(target=end_early, daemon=True), Thread(target=self._end_listener, daemon=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end_listener(self) -> None:
        with suppress(OSError, ValueError):  # the output is closed
            if self.listener:
                self.listener.end()

    def break_off(self, error: BaseException) -> None:
        """Store why the run ends early, and which connections were refused.

        The folder of a run that was not yet resumed stays unchanged.
        """
        for opened in self.opened:
            if opened.paths:
                opened.paths.close()
        if self.stored.folder and not self.folder:
            self.stored.folder.give_up()
        with suppress(CollbenchError):
            self.remark()
        self._end_early(Text(str(error) or type(error).__name__), getattr(error, "exit_code", FAILED))

    def _end_early(self, reason: Fact, code: int) -> None:
        if self.folder:
            facts = dict(self.world.facts)
            if isinstance(reason, Hang):
                facts = {"diagnosis": as_json(reason), **facts}
            self.folder.end_early("hang" if facts else "abort", reason.render(), code, **facts)


def run_task(task: Task, request: Request, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
    """Measure a task on all ranks of `world` and return the exit code, the same on all ranks. Raises CollbenchError.

    `ended` receives the exit code before the libraries are closed, so that a crash there does not affect the results. An error
    that ends the run early is stored in the folder and raised again with its reason.
    """
    session = LaunchSession(request, world, listener)
    plan = session.begin(task)
    world.watchdog.witness = session.hang
    try:
        code = session.measure(task, plan)
    except BaseException as error:
        signals.settle()
        if isinstance(error, Interrupted) and session.folder:
            session.folder.expect_end(error.exit_code)  # prterun kills all ranks 0.25 s after a signal
        why = world.explained(error)
        session.break_off(why)  # first: a launcher may kill this process as soon as other ranks know of the error
        if why is error:
            raise
        raise why from error
    if listener:
        listener.end()
    session.leave(code, ended)
    return code


def at_rank_0(world: World, do: Callable[[], T], doing: str) -> T | None:
    """Return the result of `do` at rank 0, None elsewhere. All ranks must call it.

    A UsageError in `do` ends the launch, and rank 0 reports it. `doing` names the phase.
    """
    result = None
    refused = None
    if world.rank == 0:
        try:
            with world.watchdog.phase(doing):
                result = do()
        except UsageError as error:
            refused = str(error)
    refused = world.broadcast(refused, doing)
    if refused:
        world.refuse(refused)
    return result


# The launch in run.json: command, ranks, libraries, environment.


def member_places(world: World, opened: list[OpenBackend]) -> list[dict[str, Any]]:
    """Return the rank map: rank, host, local rank, process, CPUs it may use, address; one entry per rank.

    "gpu" is the PCI address of the rank's GPU, where a backend needs one. A process that drives several ranks has an
    entry for each.
    """
    gpus: tuple[str, ...] = max((open_backend.backend.gpus for open_backend in opened if open_backend.backend), key=len, default=())
    ranks_per_process = max(1, len(gpus) // world.size)
    places = [
        {"rank": member.rank * ranks_per_process + index, "host": member.host, "local_rank": member.local_rank * ranks_per_process + index}
        | {name: getattr(member, name) for name in ("pid", "cpus", "address")}
        for member in world.members
        for index in range(ranks_per_process)
    ]
    return [place | {"gpu": gpu} for place, gpu in zip(places, gpus, strict=True)] if gpus else places


def software_of_hosts(world: World, opened: list[OpenBackend]) -> list[dict[str, Any]]:
    """Return the software of the hosts at rank 0, one entry for each combination of versions; empty elsewhere. All ranks call."""
    loaded = {}  # loaded libraries take precedence over those installed
    for backend in [open_backend.backend for open_backend in opened if open_backend.backend]:
        versions = dict(backend.versions())
        for name in ("torch", "mpi", "nccl", "rccl"):
            version = versions.get(name) or versions.get(f"torch_{name}")
            if version:
                loaded[name] = version
    versions_here = {"collbench": str(software.own()), "native": software.native(), **software.installed(), **loaded}
    versions_of_processes = world.gather(versions_here, "comparing the software") or []
    return software.grouped(zip((member.host for member in world.members), versions_of_processes, strict=False))


def describe_run(request: Request, world: World, opened: list[OpenBackend], software_groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of the launch that are known before its first case, for run.json.

    software_groups: the result of `software_of_hosts`
    """
    env = dict(os.environ)  # without the variables that collbench set for NCCL's logs
    for open_backend in opened:
        if open_backend.paths:
            env = open_backend.paths.log.of_user(env)
    facts = {
        "collbench": __version__,
        "software": software_groups,
        "command": ["collbench", *request.argv],
        "seed": request.seed,
        "launcher": world.info.launcher,
        "launcher_facts": world.info.facts,
        "allocation_id": _allocation(request),
        "launch_index": request.launch_index,
        "launches": request.launches,
        "hosts": list(world.hosts),
        "rank_map": member_places(world, opened),
        "backends": {
            open_backend.name: dict(open_backend.backend.versions()) if open_backend.backend else {"not measured": str(open_backend.reason)}
            for open_backend in opened
        },
        "libraries": loaded_libraries(),
        "environment": recorded_environment(env),
        "host": host_facts(),
    }
    if request.slowed:
        facts["slowed"] = request.slowed.texts
    if request.suite:
        facts["suite"] = dict(request.suite)
    if request.configuration:
        facts["configuration"] = dict(request.configuration)
    return facts


def _allocation(request: Request) -> str | None:
    """Return the scheduler's job, else the given name, else None: then each command is an allocation of its own."""
    if request.allocation:
        return request.allocation
    job = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}" if job else None
