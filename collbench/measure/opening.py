"""Opens the backends on all ranks, before the first cell, and says what is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.backends.backend import Backend, Settings, Unavailable
from collbench.backends.registry import backend_class
from collbench.control.world import World
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.measure.request import Request

if TYPE_CHECKING:
    from collbench.measure.nccl_paths import NcclPaths


@dataclass(frozen=True)
class Opened:
    """A backend that is open on every rank, or the reason why not (the same on every rank); NCCL's log where it writes one."""

    name: str
    backend: Backend | None
    reason: str | None = None
    paths: NcclPaths | None = None


def open_backends(request: Request, world: World, note: Callable[[str], None]) -> list[Opened]:
    """Every backend of the request. One that was only defaulted to may be missing; a missing one that was asked for ends the run.

    Raises UsageError (exit 2) for a backend that is not installed, RunFailed (exit 4) for one that cannot run in this launch.
    """
    found = [_open_one(name, request, world, note) for name in request.backends]
    opened = [one for one in found if one]
    if not opened:
        raise UsageError("no backend is at hand: pip install 'collbench[mpich]' or 'collbench[torch]' ('collbench backends' tells more)")
    return opened


def _open_one(name: str, request: Request, world: World, note: Callable[[str], None]) -> Opened | None:
    kind, asked = backend_class(name), name in request.asked
    if not _is_there(name, kind, asked, world, note):
        return None
    paths = _paths(request) if kind.uses_nccl and request.evidence != "off" else None
    backend: Backend = (_slowed(kind, request) if request.slowed else kind)()
    settings = Settings(request.ranks, request.timeout_s, request.seed, request.gpus_per_process)
    wrong = open_everywhere(backend, world, settings)
    if wrong is None:
        return Opened(name, backend, paths=paths)
    if paths:
        paths.close()
    reason, of_the_user = wrong
    if asked:
        raise UsageError(reason) if of_the_user else RunFailed(reason)
    return Opened(name, None, reason)


def _is_there(name: str, kind: type[Backend], asked: bool, world: World, note: Callable[[str], None]) -> bool:
    """Whether the backend is installed at all ranks. Raises UsageError where it is not, but was asked for."""
    missing = missing_anywhere(name, kind, world)
    if missing and asked:
        raise UsageError(f"backend {name} is not available: {missing}")
    if missing:
        note(f"without {name}: {missing}")
    return not missing


def missing_anywhere(name: str, kind: type[Backend], world: World) -> str | None:
    """Why the backend is not installed at some rank, with the remedy; None where all have it. All ranks call."""
    answer = kind.probe()
    return world.first(str(answer) if isinstance(answer, Unavailable) else None, f"looking for {name}")


def open_everywhere(backend: Backend, world: World, settings: Settings) -> tuple[str, bool] | None:
    """Why it does not open at some rank, and whether that is for the user to mend; None once it is open. All ranks call."""
    return world.first(_try_open(backend, world, settings), f"opening {backend.name}")


def _try_open(backend: Backend, world: World, settings: Settings) -> tuple[str, bool] | None:
    """Why it does not open here, and whether that is for the user to mend."""
    try:
        with world.watchdog.phase(f"opening {backend.name}"):
            backend.open(world, settings)
            if backend.uses_nccl:
                backend.ask_ras = _ask_ras()
                world.ask_too(backend.ask_ras)
    except CollbenchError as error:
        return str(error), isinstance(error, UsageError)
    except MemoryError:  # of this rank alone: the others are in the middle of it
        raise
    except Exception as error:
        return f"{backend.name} does not open: {type(error).__name__}: {error}", False
    return None


def _slowed(kind: type[Backend], request: Request) -> type[Backend]:
    from collbench.backends.slowed import slowed

    return slowed(kind, request.slowed)


def _paths(request: Request) -> NcclPaths:
    """NCCL's log, asked for; what reads it is imported only where NCCL is."""
    from collbench.measure.nccl_paths import NcclPaths

    return NcclPaths.begin(request.evidence == "tuning")


def _ask_ras() -> Callable[[], str | None]:
    from collbench.measure.nccl_paths import ask_ras

    return ask_ras


def close_backends(opened: list[Opened], world: World) -> None:
    """Leaves every backend in order."""
    for one in opened:
        if one.backend:
            with world.watchdog.phase(f"closing {one.name}"):
                one.backend.close()
        if one.paths:
            one.paths.close()
