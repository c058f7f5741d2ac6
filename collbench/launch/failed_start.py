"""A backend with a library that fails to start: its fact, and the launch without a backend that ended its ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from collbench.errors import RunFailed
from collbench.launch.mpi import start_remedy
from collbench.reason import Fact


class BackendStartFailed(Fact, frozen=True):
    """The library of a backend is installed and fits the launch, but fails to start here."""

    text = "{backend} does not start: {detail}"
    backend: str
    detail: str


class StartCrashed(RunFailed):
    """The ranks of a start on this host ended while they opened a backend: its library crashed, or ended its process."""

    def __init__(self, fact: BackendStartFailed) -> None:
        super().__init__(fact.render())
        self.fact = fact


def crash_in_opening(backend: str, how: str, hint: str) -> StartCrashed:
    """Return the error. how: what the exit code of the launcher shows; hint: what may have caused it, or ""."""
    remedy = start_remedy(os.environ) if backend == "mpi" else hint or "see the lines of the library above"
    return StartCrashed(BackendStartFailed(backend, f"{how}; {remedy}"))


# The next launch, without the backend.

CRASHED_BACKEND = "COLLBENCHCRASHED_BACKEND_BACKEND"


def without_crashed(env: Mapping[str, str], crash: StartCrashed) -> dict[str, str]:
    """Return the environment in which ranks do not open the backend of this crash."""
    return {**env, CRASHED_BACKEND: json.dumps([crash.fact.backend, crash.fact.detail])}


def earlier_crash(env: Mapping[str, str]) -> BackendStartFailed | None:
    """Return the crash of an earlier launch of this command, or None."""
    text = env.get(CRASHED_BACKEND)
    return BackendStartFailed(*json.loads(text)) if text else None
