"""The state of one launch, and who is told what happens in it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from threading import Thread
from typing import Any, Protocol, TypeVar

from collbench.backends.backend import Backend
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import FAILED, CollbenchError, UsageError
from collbench.launch.spawn import record_run
from collbench.measure.canary import Canary
from collbench.measure.instruments import Instruments
from collbench.measure.opening import Opened, close_backends
from collbench.measure.request import Request
from collbench.measure.sync import HostSync
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.results.folder import RunFolder
from collbench.results.row import Row

Work = tuple[Operation, Cell, Opened]
T = TypeVar("T")
_PATIENCE_S = 1.0


class Listener(Protocol):
    """Who is told what happens, at rank 0; the room report has them."""

    def begin(self, cells: list[Cell], ranks: int, nodes: int, rank_map: list[dict[str, Any]], folder: str) -> None:
        """Everything that will be measured."""
        ...

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """A cell begins."""
        ...

    def row(self, row: Row, place: int) -> None:
        """A cell has ended, the `place`th of those that `begin` named (from 0); cells are measured in shuffled order."""
        ...

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass
class Launch:
    """The state of one launch, the same on all ranks but for the folder and the listener, which rank 0 alone has.

    order_seed: of the order in which the cells are measured.
    conditions: what does not change from cell to cell on these hosts, for every row's evidence.
    """

    request: Request
    world: World
    listener: Listener | None
    order_seed: int = 0
    folder: RunFolder | None = None
    sync: HostSync | None = None
    canary: Canary | None = None
    instruments: Instruments | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)
    _lap_began_s: float = field(default_factory=time.monotonic)

    @classmethod
    def begun(cls, request: Request, world: World, listener: Listener | None = None) -> Launch:
        """The launch of a request, its order drawn where the user gave none. All ranks call."""
        drawn = secrets.randbits(32) if request.order_seed is None else request.order_seed
        return cls(request, world, listener, world.decide(drawn, "beginning"))

    def leave(self, opened: list[Opened], code: int, ended: Callable[[int], None]) -> None:
        """Tells `ended` the exit code, then leaves the libraries: one that crashes there changes nothing of what was measured."""
        ended(code)
        self.world.agree(None, "ending")
        close_backends(opened, self.world)
        if self.sync:
            self.sync.close()

    def hang(self, sentence: str) -> None:
        """Keeps a hang in the folder, and shows the rows that still wait for those before them; the last thing that this process does.

        Both in threads of their own, for a second at most: a disk or a terminal that does not answer may be what hangs.
        """
        ending = time.monotonic() + _PATIENCE_S
        last = [Thread(target=each, daemon=True) for each in (partial(self._end_early, sentence, self.world.ending_code), self._show)]
        for thread in last:
            thread.start()
        for thread in last:
            thread.join(max(0.0, ending - time.monotonic()))

    def _show(self) -> None:
        with suppress(OSError, ValueError):  # our output is gone: somebody closed it
            if self.listener:
                self.listener.end()

    def break_off(self, error: BaseException) -> None:
        """Keeps why the run ends before its time, who knocked at the control plane meanwhile, and how far it came."""
        with suppress(CollbenchError):
            self.remark()
        self._end_early(str(error) or type(error).__name__, code_of(error))

    def _end_early(self, why: str, code: int) -> None:
        if self.folder:
            facts = self.world.facts
            self.folder.end_early("hang" if facts or why.startswith("hang:") else "abort", why, code, **facts)

    def remark(self) -> None:
        """Tells who knocked at the control plane without being of this launch."""
        for sentence in self.world.remarks():
            self.note(sentence)

    def keeps(self, folder: RunFolder, planned: int) -> None:
        """From now on results go there, watched; of so many cells (of pairs: rounds), for the sentence of a run that is interrupted."""
        folder.watch, self.world.kept = self.world.watchdog.phase, partial(folder.so_far, planned)
        record_run(folder.path, os.environ)

    def lap(self) -> tuple[float, float]:
        """When it was called before (at first: when the launch began), and now: seconds on CLOCK_MONOTONIC."""
        lap = self._lap_began_s, time.monotonic()
        self._lap_began_s = lap[1]
        return lap

    @cached_property
    def run_began_s(self) -> float | None:
        """When the run began, on CLOCK_MONOTONIC; by the calendar, since a resumed one began in another process. None: it does not say."""
        try:
            began = datetime.fromisoformat(str(self.folder.run["started_utc"])) if self.folder else None
            return time.monotonic() - (datetime.now(UTC) - began).total_seconds() if began else None
        except (KeyError, TypeError, ValueError, OverflowError):  # a resumed run's file, which anybody may have altered
            return None

    def note_once(self, about: str, sentence: str) -> None:
        """Says something of this kind about a subject only the first time; the rows tell the others."""
        if about not in self._noted:
            self._noted.add(about)
            self.note(sentence)

    def note(self, sentence: str) -> None:
        """Says something once, and keeps it in events.jsonl."""
        if self.listener:
            self.listener.note(sentence)
        if self.folder:
            self.folder.event("note", text=sentence)


def code_of(error: BaseException) -> int:
    """The exit code that run.json gets for a run that broke off."""
    code: int = getattr(error, "exit_code", FAILED)
    return code


def at_rank_0(world: World, do: Callable[[], T], what: str) -> T | None:
    """Return what `do` gives at rank 0, None elsewhere. A UsageError there ends the launch, and rank 0 reports it. All ranks call."""
    found, wrong = None, None
    if world.rank == 0:
        try:
            with world.watchdog.phase(what):
                found = do()
        except UsageError as error:
            wrong = str(error)
    wrong = world.decide(wrong, what)
    if wrong:
        world.refuse(wrong)
    return found


def ranks_of(opened: Opened, world: World) -> int:
    """How many ranks a backend's cells have: its own number, once open, else the world's."""
    return opened.backend.ranks if opened.backend else world.size


def members_of(backend: Backend, world: World) -> list[Member]:
    """The process that drives each of a backend's ranks: its own, or where a process drives several the one of its share."""
    each = max(1, backend.ranks // world.size)
    return [world.members[min(rank // each, world.size - 1)] for rank in range(backend.ranks)]


def ranks_by_host(backend: Backend, world: World) -> list[list[int]]:
    """The backend's ranks on each host, in the order of the hosts."""
    members = members_of(backend, world)
    return [[rank for rank, member in enumerate(members) if member.host == host] for host in world.hosts]
