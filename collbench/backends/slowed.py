"""Any real backend made slower on purpose: proves end to end what the gate finds. Its rows keep that backend's name, and say so.

A call at an iteration's begin and one at its end hold the rank until the iteration has taken so many percent longer than it did. The
library, the data and their verification are the backend's own.

The time is held where a rank itself can hold it: behind calls that return when they are done. Where they only enqueue work (NCCL) the host
could be held, but not what is timed, so such a cell is n/a. Iterations of less than about a microsecond cannot be slowed by less than what
the two calls take, some 0.1 µs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Available, Backend, Settings, Unavailable, Usual
from collbench.backends.clock import DeviceClock
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.slowed_holds import NativeHold, PythonHold
from collbench.backends.slowing import Slowdown, Slowing
from collbench.backends.socket_messages import native
from collbench.backends.virtual_clock import VirtualClock
from collbench.errors import UsageError
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Call, Program, PythonCall

if TYPE_CHECKING:
    from collbench.control.world import World


class SlowedBackend(Usual):
    """What `collbench backends` lists: it has no calls of its own, `slowed` puts them around another backend's."""

    name = api = "slowed"
    devices = frozenset({"cpu"})

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Always there."""
        return Available("proves the gate's power: makes other backends slower on purpose, see --slowed")

    def open(self, world: World, settings: Settings) -> None:
        """Raises UsageError: there is nothing to measure."""
        raise UsageError("slowed makes another backend slower: name that one, like --backend mpi --slowed by=10%")


def slowed(kind: type[Backend], slowing: Slowing) -> type[Backend]:
    """The backend with its iterations made slower as `slowing` says; all else is its own."""

    class Slowed(kind):  # type: ignore[misc, valid-type]
        """`kind`, slowed."""

        def open(self, world: World, settings: Settings) -> None:
            """Its own, and which rank is driven here."""
            super().open(world, settings)
            self._seed, self._at = settings.seed, world.rank

        def supports(self, operation: Operation, cell: Cell) -> Reason | None:
            """Its own, and that the cell's iterations can be held."""
            reason: Reason | None = super().supports(operation, cell)
            return reason or (_not_held(self.clock(), kind.name) if slowing.of(cell) else None)

        def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
            """Its own program between two calls, in a cell and at a rank that are to be slowed."""
            program: Program = super().bind(operation, cell, group, buffers)
            slowdown = slowing.of(cell)
            if slowdown is None:
                return program
            clock = self.clock()
            if isinstance(clock, VirtualClock):
                return _between(program, _virtual(slowdown, self._seed, clock, group))
            return _between(program, _real(slowdown, self._seed, program.native)) if slowdown.of(self._at) else program

    Slowed.__name__ = f"Slowed{kind.__name__}"
    return Slowed


class _Hold(Protocol):
    """What goes around an iteration."""

    @property
    def begin(self) -> Call: ...

    @property
    def end(self) -> Call: ...


def _not_held(clock: Any, name: str) -> Reason | None:
    """Why iterations timed by this clock cannot be held, or None."""
    enqueued = isinstance(clock, DeviceClock) or clock.queued
    if enqueued:
        return f"--slowed holds back calls that return when they are done; {name} only enqueues its work"
    own = not clock.native and not isinstance(clock, VirtualClock)
    return f"--slowed holds ranks by CLOCK_MONOTONIC, and {name} has a clock of its own" if own else None


def _between(program: Program, hold: _Hold) -> Program:
    slots = tuple((hold.begin, *slot, hold.end) for slot in program.slots)
    once = program.once and _between(program.once, hold)
    return replace(program, slots=slots, keep=(program.keep, hold), once=once)


def _real(slowdown: Slowdown, seed: int, in_c: bool) -> _Hold:
    """Calls in C where all others are, and it was built."""
    library, parts = native() if in_c else None, slowdown.by.parts(_seeds(slowdown, seed))
    return NativeHold(library, parts) if library else PythonHold(parts)


def _seeds(slowdown: Slowdown, seed: int) -> list[int]:
    """The same at all ranks, so that an iteration is slower at all of them by as much."""
    return [seed, *slowdown.text.encode()]


class _VirtualHold:
    """Moves the virtual ranks' own clock on."""

    def __init__(self, clock: VirtualClock, chosen: NDArray[np.bool_], parts: NDArray[np.float64]) -> None:
        self._clock, self._chosen, self._parts, self._turn = clock, chosen, parts, 0
        self._began = clock.stamp()
        self.begin, self.end = PythonCall("slowed begin", self._begin), PythonCall("slowed end", self._end)

    def _begin(self) -> None:
        self._began = self._clock.stamp()

    def _end(self) -> None:
        part = self._parts[self._turn % len(self._parts)]
        self._turn += 1
        self._clock.hold(np.where(self._chosen, (self._clock.stamp() - self._began) * part, 0.0))


def _virtual(slowdown: Slowdown, seed: int, clock: VirtualClock, group: Group) -> _Hold:
    chosen = np.zeros(len(clock.stamp()), bool)
    chosen[[rank for rank in group.ranks if slowdown.of(rank)]] = True
    return _VirtualHold(clock, chosen, slowdown.by.parts(_seeds(slowdown, seed)))
