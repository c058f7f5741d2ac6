"""The backends of a launch: opened on all ranks or left out with a reason, the ranks that each has, and their end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import Backend, Settings, Unavailable
from collbench.backends.registry import backend_class
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import CollbenchError, PeerFailed, RunFailed, UsageError, WaitExpired
from collbench.launch.mpi import CRASHED_BACKEND, BackendStartFailed, LibraryFailed, earlier_crash
from collbench.launch.shared_memory import remove_names
from collbench.launch.spawn import process_began_s, recorded_opening
from collbench.measuring.request import Request
from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep, Sweeps
from collbench.plugin import failed_plugin
from collbench.reason import Fact, Text, as_json, decode_or_text

if TYPE_CHECKING:
    from collbench.measuring.nccl_paths import NcclPaths

NO_BACKEND = (
    "no backend is installed: run pip install 'collbench[mpich]' or 'collbench[torch]' (`collbench backends` lists what is missing)"
)


class BackendOpensTooLate(Fact, frozen=True):
    """A backend that the user did not name is left out, because importing its library would take all the time of the command.

    needed_s  seconds that this takes with the share of a core that this process has had so far; left_s: of the command
    """

    text = (
        "{backend} is not measured: on this busy machine its library takes about {needed_s:.0f} s to start, and {left_s:.0f} s of the "
        "command were left: name it (--backend {backend}), or use a longer --total-time"
    )
    backend: str
    needed_s: float
    left_s: float


class OpenBackend(msgspec.Struct, frozen=True):
    """A backend that is open on every rank, or the reason why not, the same on every rank; with NCCL's log where there is one."""

    name: str
    backend: Backend | None
    reason: Fact | None = None
    paths: NcclPaths | None = None

    @property
    def running(self) -> Backend:
        """The open backend."""
        assert self.backend is not None
        return self.backend

    def ranks(self, world: World) -> int:
        """Return how many ranks the backend's cases have: its own number once it is open, else the world's."""
        return self.backend.ranks if self.backend else world.size


PlannedCase = tuple[Operation, Case, OpenBackend]


def agreed_backends(request: Request, world: World) -> tuple[tuple[str, ...], Sweep | Sweeps]:
    """Return the names of the backends, and the sweep, with the default backends of all hosts. All ranks must call it.

    Where only some hosts have GPUs, all ranks report why nccl is missing.
    """
    sweep = request.sweep
    unnamed = () if request.requested else request.backends
    defaults = sweep.default_backends if isinstance(sweep, Sweeps) else unnamed
    if not defaults or world.info.launcher == "local":
        return request.backends, sweep
    views = world.allgather(list(defaults), "choosing the backends")
    defaults = tuple(dict.fromkeys(name for view in sorted(views, key=len, reverse=True) for name in view))
    names = tuple(dict.fromkeys((*defaults, *(name for name in request.backends if name in request.requested))))
    return names, replace(sweep, default_backends=defaults) if isinstance(sweep, Sweeps) else sweep


def open_backends(
    names: Sequence[str], request: Request, world: World, note: Callable[[Fact | str], None], ends_s: float | None = None
) -> list[OpenBackend]:
    """Open these backends on all ranks. Default backends may be missing; a missing requested one ends the run.

    ends_s: when the last case must have ended, on CLOCK_MONOTONIC. A default backend that would open later is left out if another is open.

    Raises UsageError (exit 2) for a backend that is not installed, RunFailed (exit 4) for one that cannot run in this
    launch.
    """
    opened: list[OpenBackend] = []
    for name in names:
        if name not in request.requested and any(earlier.backend for earlier in opened):
            late = _opens_too_late(name, world, ends_s)
            if late:
                note(late)
                continue
        backend = _open(name, request, world, note)
        if backend:
            opened.append(backend)
    if not opened:
        raise UsageError(NO_BACKEND)
    return opened


def _opens_too_late(name: str, world: World, ends_s: float | None) -> BackendOpensTooLate | None:
    """Return the reason to leave out a backend, as rank 0 estimates it: its library would not be imported before `ends_s`; else None."""
    cpu_s = backend_class(name).import_cpu_s
    if ends_s is None or not cpu_s:
        return None
    now_s = time.monotonic()
    share_of_core = min(time.process_time() / max(now_s - process_began_s(), 1e-3), 1.0)
    needed_s = cpu_s / max(share_of_core, 1e-3)
    left_s = max(ends_s - now_s, 0.0)
    needed_s, left_s = world.broadcast([round(needed_s, 1), round(left_s, 1)], f"opening {name}: looking at the time left")
    return BackendOpensTooLate(name, needed_s, left_s) if needed_s > left_s else None


def first_available(names: Sequence[str], request: Request, world: World, note: Callable[[str], None]) -> OpenBackend:
    """Return the first of these backends that all ranks can open. Raises UsageError or RunFailed if there is none."""
    why: list[str] = []
    for name in names:
        opened = _open(name, request, world, note)
        if opened and opened.backend:
            return opened
        if opened:
            why.append(f"{opened.reason}")
            note(f"{name} is not measured: {opened.reason}")
    raise RunFailed(why[0]) if why else UsageError(NO_BACKEND)


def _open(name: str, request: Request, world: World, note: Callable[[str], None]) -> OpenBackend | None:
    """Return the backend, open or with the reason why not; None for a missing one that was not requested by name."""
    kind = backend_class(name)
    is_requested = name in request.requested
    crash = earlier_crash(os.environ) if CRASHED_BACKEND in os.environ else None
    if crash and crash.backend == name:
        return OpenBackend(name, None, crash)
    missing = missing_anywhere(name, kind, world)
    if missing and is_requested:
        raise UsageError(f"backend {name} is not available: {missing}")
    if missing:
        note(f"{name} is skipped: {missing}")
        return None
    host = world.me.host
    fault_here = None
    if kind.local_path == "loopback" and len(world.on_host(host)) > 1:
        from collbench.launch.network import loopback_down

        fault_here = loopback_down(host)
    fault = world.first_error(fault_here, f"opening {name}: looking at lo")
    if fault:
        if is_requested:
            raise UsageError(fault)
        return OpenBackend(name, None, Text(fault))
    paths = None
    if kind.uses_nccl and request.evidence != "off":  # the reader is imported only where NCCL is used
        from collbench.measuring.nccl_paths import NcclPaths

        paths = NcclPaths.begin(request.evidence == "tuning")
    if request.slowed:
        from collbench.backends.slowed import slowed

        kind = slowed(kind, request.slowed)
    backend: Backend = kind()
    failure = open_everywhere(backend, world, Settings(request.ranks, request.timeout_s, request.seed, request.gpus_per_process))
    if failure is None:
        return OpenBackend(name, backend, paths=paths)
    if paths:
        paths.close()
    reason, is_fixable = failure
    if is_requested:
        raise UsageError(reason.render()) if is_fixable else RunFailed(reason.render())
    return OpenBackend(name, None, reason)


def missing_anywhere(name: str, kind: type[Backend], world: World) -> str | None:
    """Return why the backend is not installed at some rank, with the remedy; None if all have it. All ranks must call it."""
    answer = kind.probe()
    return world.first_error(str(answer) if isinstance(answer, Unavailable) else None, f"looking for {name}")


def open_everywhere(backend: Backend, world: World, settings: Settings) -> tuple[Fact, bool] | None:
    """Return (why it does not open at some rank, whether the user can fix that); None once it is open. All ranks must call it."""
    failure_here = _try_open(backend, world, settings)
    failure = world.first_error(failure_here and (as_json(failure_here[0]), failure_here[1]), f"opening {backend.name}")
    remove_names()
    return (decode_or_text(failure[0], BackendStartFailed | Text), bool(failure[1])) if failure else None


def _try_open(backend: Backend, world: World, settings: Settings) -> tuple[Fact, bool] | None:
    """Return (why it does not open here, whether the user can fix that), or None. Raises PeerFailed, WaitExpired of an exchange."""
    try:
        with world.watchdog.phase(f"opening {backend.name}"), recorded_opening(backend.name, os.environ):
            backend.open(world, settings)
            if backend.uses_nccl:
                from collbench.measuring.nccl_paths import describe_ras

                backend.ask_ras = describe_ras
                world.add_informant(describe_ras)
    except (PeerFailed, WaitExpired):  # the launch ends: another exchange would hide the reason
        raise
    except LibraryFailed as error:
        return BackendStartFailed(backend.name, str(error)), False
    except CollbenchError as error:
        return Text(str(error)), isinstance(error, UsageError)
    except MemoryError:  # of this rank only; the other ranks continue to open the backend
        raise
    except Exception as error:
        return BackendStartFailed(backend.name, failed_plugin(error) or f"{type(error).__name__}: {error}"), False
    return None


def close_backends(opened: list[OpenBackend], world: World) -> None:
    """Close every backend in order."""
    for open_backend in opened:
        if open_backend.backend:
            with world.watchdog.phase(f"closing {open_backend.name}"):
                open_backend.backend.close()
        if open_backend.paths:
            open_backend.paths.close()


def members_of(backend: Backend, world: World) -> list[Member]:
    """Return for each of a backend's ranks the process that drives it. A process may drive several consecutive ranks."""
    ranks_per_process = max(1, backend.ranks // world.size)
    return [world.members[min(rank // ranks_per_process, world.size - 1)] for rank in range(backend.ranks)]


def ranks_by_host(backend: Backend, world: World) -> list[list[int]]:
    """Return the backend's ranks on each host, in the order of the hosts."""
    members = members_of(backend, world)
    return [[rank for rank, member in enumerate(members) if member.host == host] for host in world.hosts]
