"""Listeners: evidence about a measurement that is taken around its events. The contract, and those of all measurements.

By how much open files and memory grow where a case makes groups, the memory of communicators, and what the library chose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from collbench.backends.backend import Backend, CountingBackend, WitnessedBackend
from collbench.plugin import loaded_parts
from collbench.results.row import CommunicatorBytes, HeldResources

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.machine.model import Machine
    from collbench.measuring.crossing import MovedBytes
    from collbench.measuring.nccl_paths import NcclPaths
    from collbench.measuring.prepared_case import PreparedCase


Reports = Sequence[Mapping[str, Any]]


class Observed(msgspec.Struct, frozen=True):
    """A measurement to observe.

    is_case   whether it is an operation of the library by itself
    paths     NCCL's log on this rank, where there is one
    machines  returns the hosts' machines at rank 0
    """

    ready: PreparedCase
    backend: Backend
    is_case: bool
    paths: NcclPaths | None
    machines: Callable[[], Sequence[Machine]]


class Listener:
    """Evidence about one measurement, taken around its events. All ranks make the same listeners and call their methods."""

    @classmethod
    def of(cls, observed: Observed) -> Self | None:
        """Return the listener for a measurement, None if it has nothing to observe there, the same at all ranks."""
        return cls()

    def begin(self, ready: PreparedCase, world: World) -> None:
        """Receive that the ranks will take samples; again if they are taken again."""

    def end(self, ready: PreparedCase) -> Mapping[str, Any]:
        """Receive that this rank has taken its samples. Return what it reports to rank 0, JSON-ready, under keys of its own."""
        return {}

    def verifying(self, ready: PreparedCase) -> AbstractContextManager[Any]:
        """Return a context for the calls of verification, which are not timed."""
        return nullcontext()

    def evidence(self, world: World, reports: Reports, moved: MovedBytes | None) -> Mapping[str, Any]:
        """Return the entries of the row's evidence at rank 0, when all is verified.

        reports: what `end` returned, by rank; empty at other ranks. moved: what the hosts' counters show, at rank 0.
        """
        return {}


def held_resources() -> HeldResources:
    """Return what this process holds (Linux: /proc/self/fd and statm, proc(5)); zeros where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return HeldResources(sum(1 for _ in Path("/proc/self/fd").iterdir()), pages * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, IndexError, ValueError):
        return HeldResources(0, 0)


class LeakCheck(Listener, msgspec.Struct):
    """By how much the open files and the memory of the worst rank grow while a case makes groups again and again."""

    before: HeldResources | None = None

    @classmethod
    def of(cls, observed: Observed) -> Self | None:
        """Return a listener for an operation that makes groups."""
        return cls() if observed.ready.operation.creates else None

    def begin(self, ready: PreparedCase, world: World) -> None:
        """Count before the first samples."""
        self.before = self.before or held_resources()

    def end(self, ready: PreparedCase) -> Mapping[str, Any]:
        """Return what this rank holds more than before."""
        after = held_resources()
        before = self.before or after
        return {"held": [after.open_files - before.open_files, after.resident_bytes - before.resident_bytes]}

    def evidence(self, world: World, reports: Reports, moved: MovedBytes | None) -> Mapping[str, Any]:
        """Return the growth of the worst rank."""
        if not reports:
            return {}
        return HeldResources(*map(max, zip(*(report["held"] for report in reports), strict=True))).entry()


class CommunicatorSizes(Listener, msgspec.Struct):
    """The GPU memory that a communicator of the case takes, at the worst rank."""

    backend: CountingBackend

    @classmethod
    def of(cls, observed: Observed) -> Self | None:
        """Return a listener for a backend that can count."""
        return cls(observed.backend) if isinstance(observed.backend, CountingBackend) else None

    def end(self, ready: PreparedCase) -> Mapping[str, Any]:
        """Return the memory of each of this rank's communicators, and how it is known."""
        counts = [self.backend.communicator_bytes(group) for group in ready.own_groups]
        return {"communicators": [count for count in counts if count]}

    def evidence(self, world: World, reports: Reports, moved: MovedBytes | None) -> Mapping[str, Any]:
        """Return the largest one; nothing if none is known."""
        taken = [CommunicatorBytes(*count) for report in reports for count in report["communicators"]]
        return max(taken, key=lambda in_use: (in_use.bytes, in_use.source)).entry() if taken else {}


class LibraryChoices(Listener, msgspec.Struct):
    """The choices of the library during the verified calls, and its paths.

    paths     NCCL's log on this rank; None: the backend itself reports what it chose
    """

    backend: Backend
    paths: NcclPaths | None
    machines: Callable[[], Sequence[Machine]]
    choices: list[dict[str, Any]] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, observed: Observed) -> Self | None:
        """Return a listener for a backend with NCCL's log, or one that reports choices, if the work is an operation by itself."""
        if not observed.is_case or not (observed.paths or isinstance(observed.backend, WitnessedBackend)):
            return None
        return cls(observed.backend, observed.paths, observed.machines)

    @contextmanager
    def verifying(self, ready: PreparedCase) -> Iterator[None]:
        """Take the choices for the calls of verification. A barrier, and the making of groups, have none."""
        if ready.operation.creates or ready.operation.is_barrier:
            yield
            return
        with self._witness(ready) as choices:
            yield
        self.choices = choices

    def _witness(self, ready: PreparedCase) -> AbstractContextManager[list[dict[str, Any]]]:
        if self.paths:
            return self.paths.witness(self.backend, ready.case)
        assert isinstance(self.backend, WitnessedBackend)
        return self.backend.witness(ready.case)

    def evidence(self, world: World, reports: Reports, moved: MovedBytes | None) -> Mapping[str, Any]:
        """Return the paths of all ranks so far with the choices, or the choices under the name of the backend."""
        if self.paths:
            return self.paths.evidence(world, self.choices, self.machines(), moved)
        return {self.backend.name: {"choices": self.choices}} if self.choices else {}


# Each observes the measurements of its kind, as "module:class".
LISTENERS = (
    "collbench.measuring.listeners:LeakCheck",
    "collbench.measuring.listeners:CommunicatorSizes",
    "collbench.measuring.listeners:LibraryChoices",
)


def listeners_of(observed: Observed) -> list[Listener]:
    """Return the listeners of a measurement."""
    return [listener for listener in (kind.of(observed) for kind in loaded_parts(LISTENERS)) if listener is not None]
