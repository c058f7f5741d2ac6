"""How fast the CPUs of a host copy memory, one thread bound to each, all at once; every byte is compared afterwards."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from collbench.backends.clock import MonotonicClock
from collbench.backends.host import Block
from collbench.measure.loop import Loop, Timed
from collbench.measure.pattern import first_wrong, write_pattern
from collbench.measure.threads import at_once
from collbench.native.library import SHARED_BYTES, BarrierStruct, address, library
from collbench.operations.program import Call, NativeCall, Program, PythonCall

T = TypeVar("T")
_FEWEST, _MOST = 6, 300


@dataclass(frozen=True)
class Copied:
    """Seconds per copy of all threads together, the slowest thread's each time, and the bytes that one copy moves.

    wrong   how many bytes of the target differ from the source, and the first of them; None when none does
    """

    seconds: NDArray[np.float64]
    n_bytes: int
    wrong: str | None


def copy_memory(cpus: Sequence[int], n_bytes: int, seconds: float, patience_s: float) -> Copied:
    """Each CPU copies its share of `n_bytes`, memory that it touched first and so lies near it, for about so many seconds.

    Raises MemoryError, OSError for a CPU that this process may not use, and WaitExpired.
    """
    share = max(n_bytes // len(cpus), 1)
    pairs = _everywhere(cpus, lambda place: (_filled(share), Block(share, 1)), patience_s)
    meeting = Meeting(len(cpus))
    loops = [Loop(Timed(_copying(*pair), meeting.program(place), MonotonicClock(), ctypes.c_int64())) for place, pair in enumerate(pairs)]
    tried = np.max(_everywhere(cpus, lambda place: loops[place].run(2)[0], patience_s), axis=0)
    n = repetitions(float(tried.min()), seconds)
    taken = _everywhere(cpus, lambda place: loops[place].run(n)[0], patience_s + seconds)
    wrong = _everywhere(cpus, lambda place: first_wrong(pairs[place][1].slot(0)), patience_s)
    return Copied(np.max(taken, axis=0), share * len(cpus), next((each for each in wrong if each), None))


def repetitions(once_s: float, seconds: float) -> int:
    """How often to repeat what takes `once_s`: for so many seconds, but 6 times at least where that is less than twice as long."""
    fits = int(seconds / max(once_s, 1e-9))
    return min(max(fits, _FEWEST if 2 * fits >= _FEWEST else 1), _MOST)


@contextmanager
def bound(cpus: Sequence[int]) -> Iterator[None]:
    """The calling thread runs on these CPUs alone, and what it touches first lies near them. Raises OSError."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


class Meeting:
    """A barrier of threads, before every sample; in C where the native loop was built."""

    def __init__(self, threads: int) -> None:
        self._python = threading.Barrier(threads)
        self._page = ctypes.create_string_buffer(SHARED_BYTES)
        none = (ctypes.c_int32 * 0)()
        self._structs = [
            BarrierStruct(shared=ctypes.addressof(self._page), ranks=threads, leader=place == 0, sleeps=1, rounds=0, to=none, from_=none)
            for place in range(threads)
        ]

    def program(self, place: int) -> Program:
        """The call by which the thread of this place meets the others."""
        if library() is None:
            return Program(((PythonCall("meet", lambda: self._python.wait(60)),),))
        call = NativeCall("collbench_sync", address("collbench_sync"), (ctypes.addressof(self._structs[place]),))
        return Program(((call,),), keep=self, explain=os.strerror)


def _filled(n_bytes: int) -> Block:
    block = Block(n_bytes, 1)
    write_pattern(block.slot(0))
    return block


def _copying(source: Block, target: Block) -> Program:
    from_, to = source.slot(0), target.slot(0)
    call: Call = PythonCall("copy", lambda: np.copyto(to, from_))
    if library() is not None:
        call = NativeCall("copy", address("collbench_copy"), (to.ctypes.data, from_.ctypes.data, from_.nbytes))
    return Program(((call,),), keep=(source, target))


def _everywhere(cpus: Sequence[int], task: Callable[[int], T], patience_s: float) -> list[T]:
    """Runs task(place) on every CPU at once, and returns what each gave. Raises the first error, WaitExpired after `patience_s`."""

    def run(place: int) -> T:
        os.sched_setaffinity(0, {cpus[place]})
        return task(place)

    return at_once([partial(run, place) for place in range(len(cpus))], "copying memory", patience_s)
