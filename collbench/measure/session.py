"""The state of one launch: its backends, its run folder, its notes, and how it ends."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from collbench import __version__
from collbench.backends.backend import Backend, Settings, Unavailable
from collbench.backends.registry import backend_class
from collbench.control.diagnosis import Hang
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import FAILED, CollbenchError, RunFailed, UsageError
from collbench.launch import signals, software
from collbench.launch import software as build
from collbench.launch.spawn import record_run
from collbench.measure.instruments import Instruments, binding, settings
from collbench.measure.monitored import StateProbe
from collbench.measure.request import Request
from collbench.measure.sync import HostSync
from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.reason import Fact, Text, as_json
from collbench.results.environment import host_facts, loaded_libraries, recorded_environment
from collbench.results.folder import RunFolder
from collbench.results.row import Row
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.measure.nccl_paths import NcclPaths


NO_BACKEND = (
    "no backend is installed: run pip install 'collbench[mpich]' or 'collbench[torch]' (`collbench backends` lists what is missing)"
)

# Opening of the backends on all ranks.


class BackendSkipped(Fact, frozen=True):
    """A backend is left out, because it is not installed and was not requested by name."""

    backend: str
    reason: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.backend} is skipped: {self.reason}"


class BackendNotMeasured(Fact, frozen=True):
    """A backend is installed, but cannot run in this launch: its cases are not available."""

    backend: str
    reason: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.backend} is not measured: {self.reason}"


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
        left = f", {plural(self.left, 'case')} not measured" if self.left else ""
        return f"stopped after wrong data{where}{left} (--stop-on-wrong){f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class OpenBackend:
    """A backend that is open on every rank, or the reason why not, the same on every rank; with NCCL's log where there is one."""

    name: str
    backend: Backend | None
    reason: str | None = None
    paths: NcclPaths | None = None


def open_backends(request: Request, world: World, note: Callable[[Fact], None]) -> list[OpenBackend]:
    """Open every backend of the request on all ranks. Default backends may be missing; a missing requested one ends the run.

    Raises UsageError (exit 2) for a backend that is not installed, RunFailed (exit 4) for one that cannot run in this
    launch.
    """
    found = [_open_one(name, request, world, note) for name in request.backends]
    opened = [one for one in found if one]
    if not opened:
        raise UsageError(NO_BACKEND)
    return opened


def _open_one(name: str, request: Request, world: World, note: Callable[[Fact], None]) -> OpenBackend | None:
    kind, requested = backend_class(name), name in request.requested
    if not _is_there(name, kind, requested, world, note):
        return None
    paths = _paths(request) if kind.uses_nccl and request.evidence != "off" else None
    backend: Backend = (_slowed(kind, request) if request.slowed else kind)()
    settings = Settings(request.ranks, request.timeout_s, request.seed, request.gpus_per_process)
    wrong = open_everywhere(backend, world, settings)
    if wrong is None:
        return OpenBackend(name, backend, paths=paths)
    if paths:
        paths.close()
    reason, of_the_user = wrong
    if requested:
        raise UsageError(reason) if of_the_user else RunFailed(reason)
    return OpenBackend(name, None, reason)


def _is_there(name: str, kind: type[Backend], requested: bool, world: World, note: Callable[[Fact], None]) -> bool:
    """Return whether the backend is installed at all ranks. Raises UsageError for a missing backend that was requested."""
    missing = missing_anywhere(name, kind, world)
    if missing and requested:
        raise UsageError(f"backend {name} is not available: {missing}")
    if missing:
        note(BackendSkipped(name, missing))
    return not missing


def missing_anywhere(name: str, kind: type[Backend], world: World) -> str | None:
    """Return why the backend is not installed at some rank, with the remedy; None if all have it. All ranks must call it."""
    answer = kind.probe()
    return world.first_error(str(answer) if isinstance(answer, Unavailable) else None, f"looking for {name}")


def open_everywhere(backend: Backend, world: World, settings: Settings) -> tuple[str, bool] | None:
    """Return (why it does not open at some rank, whether the user can fix that); None once it is open. All ranks must call it."""
    return world.first_error(_try_open(backend, world, settings), f"opening {backend.name}")


def _try_open(backend: Backend, world: World, settings: Settings) -> tuple[str, bool] | None:
    """Return (why it does not open here, whether the user can fix that), or None."""
    try:
        with world.watchdog.phase(f"opening {backend.name}"):
            backend.open(world, settings)
            if backend.uses_nccl:
                backend.ask_ras = _ras_informant()
                world.add_informant(backend.ask_ras)
    except CollbenchError as error:
        return str(error), isinstance(error, UsageError)
    except MemoryError:  # of this rank only; the other ranks continue to open the backend
        raise
    except Exception as error:
        return f"{backend.name} does not open: {type(error).__name__}: {error}", False
    return None


def _slowed(kind: type[Backend], request: Request) -> type[Backend]:
    from collbench.backends.slowed import slowed

    return slowed(kind, request.slowed)


def _paths(request: Request) -> NcclPaths:
    """Return NCCL's log, requested from NCCL. The reader is imported only where NCCL is used."""
    from collbench.measure.nccl_paths import NcclPaths

    return NcclPaths.begin(request.evidence == "tuning")


def _ras_informant() -> Callable[[], str | None]:
    from collbench.measure.nccl_paths import describe_ras

    return describe_ras


def close_backends(opened: list[OpenBackend], world: World) -> None:
    """Close every backend in order."""
    for one in opened:
        if one.backend:
            with world.watchdog.phase(f"closing {one.name}"):
                one.backend.close()
        if one.paths:
            one.paths.close()


# The launch in run.json: command, ranks, libraries, environment.


def member_places(world: World, opened: list[OpenBackend]) -> list[dict[str, Any]]:
    """Return the rank map: rank, host, local rank, process, CPUs it may use, address; one entry per rank.

    "gpu" is the PCI address of the rank's GPU, where a backend needs one. A process that drives several ranks has an
    entry for each.
    """
    gpus: tuple[str, ...] = max((one.backend.gpus for one in opened if one.backend), key=len, default=())
    each = max(1, len(gpus) // world.size)
    places = [_place(member, each, turn) for member in world.members for turn in range(each)]
    return [place | {"gpu": gpu} for place, gpu in zip(places, gpus, strict=True)] if gpus else places


def _place(member: Member, each: int, turn: int) -> dict[str, Any]:
    numbers = {"rank": member.rank * each + turn, "host": member.host, "local_rank": member.local_rank * each + turn}
    return numbers | {name: getattr(member, name) for name in ("pid", "cpus", "address")}


def software_of_hosts(world: World, opened: list[OpenBackend]) -> list[dict[str, Any]]:
    """Return the software of the hosts at rank 0, one entry for each combination of versions; empty elsewhere. All ranks call."""
    everyone = world.gather(_software(opened), "comparing the software") or []
    return software.grouped(zip((member.host for member in world.members), everyone, strict=False))


def _software(opened: list[OpenBackend]) -> software.Software:
    """Return this rank's software. Libraries that a backend has loaded take precedence over those installed."""
    about = [dict(one.backend.versions()) for one in opened if one.backend]
    loaded = {name: found for name in ("torch", "mpi", "nccl") for one in about if (found := one.get(name) or one.get(f"torch_{name}"))}
    return {"collbench": str(build.own()), "native": build.native(), **software.installed(), **loaded}


def describe_run(request: Request, world: World, opened: list[OpenBackend], of_hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of the launch that are known before its first case, for run.json; of_hosts: the result of `software_of_hosts`."""
    return {
        "collbench": __version__,
        "software": of_hosts,
        "command": ["collbench", *request.argv],
        "seed": request.seed,
        "launcher": world.info.launcher,
        "launcher_facts": world.info.facts,
        "allocation_id": _allocation(request),
        "launch_index": request.launch_index,
        "launches": request.launches,
        "hosts": list(world.hosts),
        "rank_map": member_places(world, opened),
        "backends": {one.name: dict(one.backend.versions()) if one.backend else {"not measured": one.reason} for one in opened},
        "libraries": loaded_libraries(),
        "environment": recorded_environment(_of_user(opened)),
        "host": host_facts(),
        **({"slowed": request.slowed.texts} if request.slowed else {}),
        **({"suite": dict(request.suite)} if request.suite else {}),
        **({"configuration": dict(request.configuration)} if request.configuration else {}),
    }


def _of_user(opened: list[OpenBackend]) -> dict[str, str]:
    """Return the environment without the variables set for NCCL's logs."""
    env = dict(os.environ)
    for one in opened:
        env = one.paths.log.of_user(env) if one.paths else env
    return env


def describe_conditions(world: World) -> dict[str, Any]:
    """Return for every row's evidence: governor, boost and huge pages of all ranks (a list where they differ), and the binding of ranks."""
    everyone = world.allgather(settings(), "reading the CPUs' settings")
    found = {name: sorted({str(one[name]) for one in everyone}) for name in everyone[0]}
    same = {name: everyone[0][name] if len(values) == 1 else values for name, values in found.items()}
    cpus = [[f"{member.host} {cpu}" for cpu in member.cpus] for member in world.members]
    return {**same, "binding": binding(cpus)}


def _allocation(request: Request) -> str | None:
    """Return the scheduler's job, else the given name, else None: then each command is an allocation of its own."""
    if request.allocation:
        return request.allocation
    job = os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}" if job else None


Work = tuple[Operation, Case, OpenBackend]
T = TypeVar("T")
_PATIENCE_S = 1.0


class ProgressListener(Protocol):
    """The progress listener at rank 0. collbench/report implements it."""

    def begin(self, cases: list[Case], ranks: int, nodes: int, rank_map: list[dict[str, Any]], folder: str) -> None:
        """Receive the cases that will be measured, and where."""
        ...

    def status(self, text: str) -> None:
        """Receive what happens before the first case: "measuring memory copy…"."""
        ...

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """Receive the start of a case: its title, the counts of cases, and the estimated remaining seconds."""
        ...

    def row(self, row: Row, place: int) -> None:
        """Receive the row of a completed case. Cases are measured in shuffled order; `place` is the case's index in `begin`, from 0."""
        ...

    def note(self, sentence: str) -> None:
        """Show a note once."""
        ...

    def end(self) -> None:
        """Finish, at the end of the launch."""
        ...


@dataclass
class Launch:
    """The state of one launch, the same on all ranks except the folder and the listener, which only rank 0 has.

    order_seed   seed of the order in which the cases are measured
    conditions   constant conditions of these hosts, for every row's evidence
    """

    request: Request
    world: World
    listener: ProgressListener | None
    order_seed: int = 0
    folder: RunFolder | None = None
    sync: HostSync | None = None
    canary: StateProbe | None = None
    instruments: Instruments | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _lap_began_s: float = field(default_factory=time.monotonic)

    @classmethod
    def begun(cls, request: Request, world: World, listener: ProgressListener | None = None) -> Launch:
        """Return the launch of a request, with a random order where the user gave none. All ranks must call it."""
        drawn = secrets.randbits(32) if request.order_seed is None else request.order_seed
        return cls(request, world, listener, world.broadcast(drawn, "beginning"))

    def leave(self, opened: list[OpenBackend], code: int, ended: Callable[[int], None]) -> None:
        """Pass the exit code to `ended`, then close the libraries. A crash there does not affect the results."""
        ended(code)
        self.world.allgather(None, "ending")
        close_backends(opened, self.world)
        if self.sync:
            self.sync.close()

    def hang(self, reason: Fact) -> None:
        """Store the reason of the end in the folder, and show the rows that wait for earlier ones. The process ends after this call.

        Both run in their own threads, for at most a second. A disk or a terminal that does not answer may have caused the hang.
        """
        ending = time.monotonic() + _PATIENCE_S
        last = [Thread(target=each, daemon=True) for each in (partial(self._end_early, reason, self.world.ending_code), self._show)]
        for thread in last:
            thread.start()
        for thread in last:
            thread.join(max(0.0, ending - time.monotonic()))

    def _show(self) -> None:
        with suppress(OSError, ValueError):  # the output is closed
            if self.listener:
                self.listener.end()

    def break_off(self, error: BaseException) -> None:
        """Store why the run ends early, which connections were refused, and how many cases are measured."""
        with suppress(CollbenchError):
            self.remark()
        self._end_early(Text(str(error) or type(error).__name__), code_of(error))

    def _end_early(self, reason: Fact, code: int) -> None:
        if self.folder:
            facts = self.world.facts
            known = {"diagnosis": as_json(reason)} if isinstance(reason, Hang) else {}
            self.folder.end_early("hang" if facts or known else "abort", reason.render(), code, **(known | facts))

    def remark(self) -> None:
        """Note the connections that the control plane refused."""
        for fact in self.world.remarks():
            self.note(fact)

    def keeps(self, folder: RunFolder, planned: int) -> None:
        """Store results in this folder from now on. planned: the number of cases (of pairs: rounds), for the message of an interruption."""
        folder.watch, self.world.kept = self.world.watchdog.phase, partial(folder.so_far, planned)
        record_run(folder.path, os.environ)

    def lap(self) -> tuple[float, float]:
        """Return (time of the previous call, now) in seconds on CLOCK_MONOTONIC. The first call returns the start of the launch."""
        lap = self._lap_began_s, time.monotonic()
        self._lap_began_s = lap[1]
        return lap

    @cached_property
    def run_began_s(self) -> float | None:
        """Return when the run began, in seconds on CLOCK_MONOTONIC; None: not recorded.

        It is derived from the calendar time, since a resumed run began in another process.
        """
        try:
            began = datetime.fromisoformat(str(self.folder.run["started_utc"])) if self.folder else None
            return time.monotonic() - (datetime.now(UTC) - began).total_seconds() if began else None
        except (KeyError, TypeError, ValueError, OverflowError):  # the file of a resumed run is not trusted
            return None

    def note_once(self, about: str, fact: Fact) -> None:
        """Note the first fact of this kind about a subject. The rows have all facts."""
        if about not in self._noted:
            self._noted.add(about)
            self.note(fact)

    def status(self, text: str) -> None:
        """Show what happens before the first case, at rank 0. Call it before a measurement, never during one."""
        if self.listener:
            self.listener.status(text)

    def note(self, fact: Fact | str) -> None:
        """Show a fact, or a sentence of a plug-in or library, and store it in events.jsonl."""
        if self.listener:
            self.listener.note(str(fact))
        if self.folder:
            self.folder.event("note", text=str(fact), **({"reason": as_json(fact)} if isinstance(fact, Fact) else {}))


def code_of(error: BaseException) -> int:
    """Return the exit code that run.json gets for a run that an error ended."""
    code: int = getattr(error, "exit_code", FAILED)
    return code


def at_rank_0(world: World, do: Callable[[], T], what: str) -> T | None:
    """Return the result of `do` at rank 0, None elsewhere. All ranks must call it.

    A UsageError in `do` ends the launch, and rank 0 reports it. `what` names the phase.
    """
    found, wrong = None, None
    if world.rank == 0:
        try:
            with world.watchdog.phase(what):
                found = do()
        except UsageError as error:
            wrong = str(error)
    wrong = world.broadcast(wrong, what)
    if wrong:
        world.refuse(wrong)
    return found


def ranks_of(opened: OpenBackend, world: World) -> int:
    """Return how many ranks a backend's cases have: its own number once it is open, else the world's."""
    return opened.backend.ranks if opened.backend else world.size


def members_of(backend: Backend, world: World) -> list[Member]:
    """Return for each of a backend's ranks the process that drives it. A process may drive several consecutive ranks."""
    each = max(1, backend.ranks // world.size)
    return [world.members[min(rank // each, world.size - 1)] for rank in range(backend.ranks)]


def ranks_by_host(backend: Backend, world: World) -> list[list[int]]:
    """Return the backend's ranks on each host, in the order of the hosts."""
    members = members_of(backend, world)
    return [[rank for rank, member in enumerate(members) if member.host == host] for host in world.hosts]


# The start and end of a launch: the run folder, and errors that end it early.


class EndListener(Protocol):
    """A listener at rank 0 that receives only the end."""

    def end(self) -> None:
        """Finish, at the end of the launch."""
        ...


@dataclass(frozen=True)
class RunContext:
    """The objects that a run must finish and close when it ends.

    launch    with its folder
    opened    the backends, which are closed at the end
    listener  rank 0's
    ended     receives the exit code before the libraries are closed, since one may crash there
    let_go    called first at an early end: a launcher may kill this process as soon as other ranks know of the error
    """

    launch: Launch
    opened: list[OpenBackend]
    listener: EndListener | None
    ended: Callable[[int], None]
    let_go: Callable[[], None] = lambda: None


def run_with_cleanup(playing: RunContext, play: Callable[[], int]) -> int:
    """Run `play` on all ranks, close the backends, and return its exit code.

    An error that ends the run early is stored in the folder and raised again with its reason.
    """
    launch, world = playing.launch, playing.launch.world
    world.watchdog.witness = launch.hang
    try:
        code = play()
    except BaseException as error:
        signals.settle()
        why = world.explained(error)
        playing.let_go()
        launch.break_off(why)
        if why is error:
            raise
        raise why from error
    if playing.listener:
        playing.listener.end()
    launch.leave(playing.opened, code, playing.ended)
    return code


def create_folder(launch: Launch, opened: list[OpenBackend], facts: Mapping[str, Any], planned: int) -> RunFolder | None:
    """Return the run folder at rank 0, None elsewhere. An error ends every rank in the same way.

    facts: for run.json; planned: how many rounds or rows, for messages.
    """
    request, world = launch.request, launch.world
    of_hosts = software_of_hosts(world, opened)

    def create() -> RunFolder:
        described = {**describe_run(request, world, opened, of_hosts), "order_seed": launch.order_seed, **facts}
        return RunFolder.create(request.out, request.command, described)

    folder = at_rank_0(world, create, "creating the run folder")
    if folder:
        launch.keeps(folder, planned)
    for fact in different_software(of_hosts):
        launch.note(fact)
    return folder


def different_software(of_hosts: list[dict[str, Any]]) -> list[Fact]:
    """Return a fact for each piece of software that has several versions on the hosts."""
    return [software.SoftwareDiffers(name, versions) for name, versions in software.differing(of_hosts).items()]


# Launches on one backend.


def first_available(request: Request, world: World, note: Callable[[Fact], None]) -> OpenBackend:
    """Return the first of the request's backends that all ranks can open. Raises UsageError or RunFailed if there is none."""
    why: list[str] = []
    for name in request.backends:
        missing = None if name in request.requested else missing_anywhere(name, backend_class(name), world)
        if missing:
            note(BackendSkipped(name, missing))
            continue
        (one,) = open_backends(replace(request, backends=(name,)), world, note)
        if one.backend:
            return one
        why.append(f"{one.reason}")
        note(BackendNotMeasured(name, str(one.reason)))
    if why:
        raise RunFailed(why[0])
    raise UsageError(NO_BACKEND)
