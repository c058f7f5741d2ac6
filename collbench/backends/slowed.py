"""Deliberate slowdown of a real backend, to test what the gate detects. Its rows keep that backend's name, and have a flag.

A call at the start of an iteration and one at its end delay the rank, so that the iteration takes a given percentage longer.
Library, data and verification are the backend's own.

The delay works only for calls that return when they are done. For calls that only enqueue work (NCCL), a delay of the host would not
delay the timed work, so such a case is n/a. The two calls take about 0.1 µs, so iterations below about a microsecond cannot be
slowed by less.

A delay of half an iteration or more is a part of the shortest iteration so far. Ranks of a ping-pong wait for each other's delays, and a
part of that wait would delay them further each time, without end.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Available, Backend, BackendBase, Group, PersistentBackend, Settings, Unavailable
from collbench.backends.clock import DeviceClock, VirtualClock
from collbench.backends.host import AnyBuffers
from collbench.backends.slowing import Slowing
from collbench.backends.socket import native
from collbench.errors import UsageError
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import NativeCall, NonBlocking, Program, PythonCall
from collbench.operations.unsupported import ClockUnsupported, PersistentUnsupported, StartUnsupported
from collbench.reason import Fact

if TYPE_CHECKING:
    from collbench.control.world import World


# Calls at the start and end of an iteration that delay the rank, in C or in Python.

_TRIES = 8
_PAIRS = 64
_LARGE_PART = 0.5
_SPUN_NS = 100_000  # as in slowed.c: longer delays begin with a sleep, which releases the core


class _SlowedStruct(ctypes.Structure):
    _fields_ = [("began_ns", ctypes.c_int64), ("cost_ns", ctypes.c_int64), ("turn", ctypes.c_int64), ("n", ctypes.c_int64),
                ("by", ctypes.POINTER(ctypes.c_double)), ("least_ns", ctypes.c_int64)]  # fmt: skip


class NativeHold:
    """The delay calls in slowed.c."""

    def __init__(self, library: ctypes.CDLL, parts: NDArray[np.float64]) -> None:
        by = (ctypes.c_double * len(parts))(*parts)
        library.collbench_slowed_cost.restype = ctypes.c_int64
        self._struct = _SlowedStruct(0, library.collbench_slowed_cost(), 0, len(parts), by, 0)
        self.begin = self._call(library, "begin")
        self.end = self._call(library, "end")

    def _call(self, library: ctypes.CDLL, name: str) -> NativeCall:
        pointer = ctypes.cast(getattr(library, f"collbench_slowed_{name}"), ctypes.c_void_p).value or 0
        return NativeCall(f"slowed {name}", pointer, (ctypes.addressof(self._struct),))


class PythonHold:
    """The delay calls in Python, for programs with Python calls."""

    def __init__(
        self, parts: NDArray[np.float64], now: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._began_ns = self._cost_ns = self._least_ns = 0
        self.begin = PythonCall("slowed begin", self._begin)
        self.end = PythonCall("slowed end", self._end)
        # what the two calls take without a delay: the minimum of several attempts
        self._parts = cycle([0.0])
        self._cost_ns = min(self._pairs_ns() for _ in range(_TRIES)) // _PAIRS
        self._parts = cycle([float(part) for part in parts])
        self._least_ns = 0

    def _pairs_ns(self) -> int:
        began = self._now()
        for _ in range(_PAIRS):
            self._begin()
            self._end()
        return self._now() - began

    def _begin(self) -> None:
        self._began_ns = self._now()

    def _end(self) -> None:
        ended = self._now()
        part = next(self._parts)
        took = ended - self._began_ns
        self._least_ns = min(took, self._least_ns or took)
        if part >= _LARGE_PART:
            took = self._least_ns
        until = ended + int(took * part) - self._cost_ns
        if until - ended >= 2 * _SPUN_NS:
            self._sleep((until - ended - _SPUN_NS) * 1e-9)
        while self._now() < until:
            pass


class SlowedBackend(BackendBase):
    """The entry `slowed` in `collbench backends`. It cannot be opened; the function `slowed` wraps another backend."""

    name = api = "slowed"
    devices = frozenset({"cpu"})

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return Available, always."""
        return Available("makes other backends slower on purpose, to test the gate (see --slowed)")

    def open(self, world: World, settings: Settings) -> None:
        """Raise UsageError: this backend measures nothing itself."""
        raise UsageError("slowed makes another backend slower: name that one, like --backend mpi --slowed by=10%")


def slowed(kind: type[Backend], slowing: Slowing) -> type[Backend]:
    """Return the backend with its iterations slowed by `slowing`; everything else is unchanged."""

    class Slowed(kind):  # type: ignore[misc, valid-type]
        """`kind`, slowed."""

        def open(self, world: World, settings: Settings) -> None:
            """Open the backend, and store the rank that this process drives."""
            super().open(world, settings)
            self._seed = settings.seed
            self._own_rank = world.rank

        def supports(self, operation: Operation, case: Case) -> Reason | None:
            """Return the backend's own reason, or why the case's iterations cannot be delayed, or None."""
            reason: Reason | None = super().supports(operation, case)
            if reason or not slowing.of(case):
                return reason
            clock: Any = self.clock()
            enqueues = bool(isinstance(clock, DeviceClock) or clock.queued)
            can_be_delayed = not enqueues and (clock.native or isinstance(clock, VirtualClock))
            return None if can_be_delayed else ClockUnsupported(kind.name, enqueues)

        def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
            """Return the backend's program between two delay calls, for the cases and ranks that `slowing` selects."""
            program: Program = super().bind(operation, case, group, buffers)
            slowdown = slowing.of(case)
            if slowdown is None:
                return program
            # The seeds are the same on all ranks, so that an iteration is slowed equally on all of them.
            parts = slowdown.by.parts([self._seed, *slowdown.text.encode()])
            clock = self.clock()
            if isinstance(clock, VirtualClock):
                chosen = np.zeros(len(clock.stamp()), bool)
                chosen[[rank for rank in group.ranks if slowdown.of(rank)]] = True
                return _between(program, _VirtualHold(clock, group, chosen, parts))
            if not slowdown.of(self._own_rank):
                return program
            library = native() if program.native else None  # in C if all other calls are in C and it was built
            return _between(program, NativeHold(library, parts) if library else PythonHold(parts))

        def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
            """Return the backend's programs, or why an operation cannot be started: its delay would depend on what overlaps it."""
            if slowing.of(case):
                return StartUnsupported(f"{kind.name} with --slowed", operation.name)
            programs: NonBlocking | Fact = super().bind_nonblocking(operation, case, group, buffers)
            return programs

        def bind_persistent(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
            """Return the backend's program, or why a case cannot be delayed or is not supported."""
            if slowing.of(case) or not issubclass(kind, PersistentBackend):
                return PersistentUnsupported(f"{kind.name} with --slowed" if slowing.of(case) else kind.name, operation.name)
            program: Program | Fact = super().bind_persistent(operation, case, group, buffers)
            return program

    Slowed.__name__ = f"Slowed{kind.__name__}"
    return Slowed


def _between(program: Program, hold: NativeHold | PythonHold | _VirtualHold) -> Program:
    slots = tuple((hold.begin, *slot, hold.end) for slot in program.slots)
    once = program.once and _between(program.once, hold)
    return replace(program, slots=slots, keep=(program.keep, hold), once=once)


class _VirtualHold:
    """The delay for virtual ranks: advances their clock.

    It is a part of the time since the last rank of the group arrived. A part of a rank's wait for the others would delay that rank further
    behind the next time, and large delays would grow without end.
    """

    def __init__(self, clock: VirtualClock, group: Group, chosen: NDArray[np.bool_], parts: NDArray[np.float64]) -> None:
        self._clock = clock
        self._ranks = list(group.ranks)
        self._chosen = chosen
        self._parts = cycle(parts)
        self._began_s = 0.0
        self.begin = PythonCall("slowed begin", self._begin)
        self.end = PythonCall("slowed end", self._end)

    def _begin(self) -> None:
        self._began_s = self._clock.stamp()[self._ranks].max()

    def _end(self) -> None:
        self._clock.hold(np.where(self._chosen, (self._clock.stamp() - self._began_s) * next(self._parts), 0.0))
