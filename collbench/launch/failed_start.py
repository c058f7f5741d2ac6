"""A backend whose library fails to start: which backend a rank opens, and the launch without a backend that ended its ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from collbench.errors import RunFailed
from collbench.launch.mpi import start_remedy
from collbench.reason import Fact


class BackendStartFailed(Fact, frozen=True):
    """The library of a backend is installed and fits the launch, but fails to start here."""

    backend: str
    detail: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.backend} does not start: {self.detail}"


class StartCrashed(RunFailed):
    """The ranks of a start on this host ended while they opened a backend: its library crashed, or ended its process."""

    def __init__(self, fact: BackendStartFailed) -> None:
        super().__init__(fact.render())
        self.fact = fact


# The marks of the ranks, in the folder of a start on this host.


@contextmanager
def recorded_opening(backend: str, env: Mapping[str, str]) -> Iterator[None]:
    """Store for the parent of a start on this host that this rank opens the backend, for the block."""
    folder = env.get("COLLBENCH_LOCAL", "")
    if not Path(folder).is_dir() or not folder:
        yield
        return
    mark = Path(folder) / f"opening-{os.getpid()}"
    mark.write_text(backend, encoding="utf-8")
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def backend_in_opening(folder: Path) -> str | None:
    """Return the backend that ranks opened when they ended; None if they did not open one."""
    return next((path.read_text(encoding="utf-8") for path in sorted(folder.glob("opening-*"))), None)


def crash_in_opening(backend: str, how: str, hint: str) -> StartCrashed:
    """Return the error. how: what the exit code of the launcher shows; hint: what may have caused it, or ""."""
    remedy = start_remedy(os.environ) if backend == "mpi" else hint or "see the lines of the library above"
    return StartCrashed(BackendStartFailed(backend, f"{how}; {remedy}"))


# The next launch, without the backend.

_CRASHED = "COLLBENCH_CRASHED_BACKEND"


def without_crashed(env: Mapping[str, str], crash: StartCrashed) -> dict[str, str]:
    """Return the environment in which ranks do not open the backend of this crash."""
    return {**env, _CRASHED: json.dumps([crash.fact.backend, crash.fact.detail])}


def earlier_crash(env: Mapping[str, str]) -> BackendStartFailed | None:
    """Return the crash of an earlier launch of this command, or None."""
    text = env.get(_CRASHED)
    return BackendStartFailed(*json.loads(text)) if text else None
