"""A computation of a fixed amount: real arithmetic on memory, in C without Python's lock, which measures its own time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.native.library import address, library
from collbench.operations.program import Call, NativeCall, PythonCall

_BLOCKS = 512  # of 8 KiB, about 2 µs each: 4 MiB are larger than a core's own cache
_LENGTH = 1024  # of float64
KEPT = 65_536  # times of the last computations
_STEPS = 8  # as in native/work.c


class FixedComputation(Protocol):
    """A computation of a fixed amount, which measures its own time: `Computation`, or that of a GPU.

    amount   the number of blocks of one computation; may be set between computations
    """

    amount: int

    def calls(self, slices: int = 1, between: Sequence[Call] = ()) -> tuple[Call, ...]:
        """Return the calls of one computation in so many equal slices, with other calls between them."""
        ...

    def seconds(self, last: int) -> NDArray[np.float64]:
        """Return the time of each of the last computations, in their order [last]. Raises ValueError for more than are kept."""
        ...


class WorkStruct(ctypes.Structure):
    """The state of collbench_computation; see work.c."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("amount", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("elapsed_ns", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("done", ctypes.c_int64),
        ("slice", ctypes.c_int64),
        ("spent_ns", ctypes.c_int64),
    ]


class Computation:
    """A rank's computation of `amount` blocks. It calls no other library, so that no thread of one computes, too."""

    def __init__(self, amount: int = 1) -> None:
        self._memory = np.ones((_BLOCKS, _LENGTH))
        self._elapsed = np.zeros(KEPT, np.int64)
        self._state = WorkStruct(
            memory=self._memory.ctypes.data, blocks=_BLOCKS, length=_LENGTH, amount=amount, elapsed_ns=self._elapsed.ctypes.data,
            capacity=KEPT,
        )  # fmt: skip

    @property
    def amount(self) -> int:
        """The number of blocks of one computation. May be set between computations."""
        return int(self._state.amount)

    @amount.setter
    def amount(self, blocks: int) -> None:
        self._state.amount = max(1, blocks)

    def calls(self, slices: int = 1, between: Sequence[Call] = ()) -> tuple[Call, ...]:
        """Return the calls of one computation in so many equal slices, with other calls between them."""
        native = library()
        if native is not None and hasattr(native, "collbench_computation"):
            compute: Call = NativeCall("computation", address("collbench_computation"), (ctypes.addressof(self._state), slices))
        else:
            compute = PythonCall("computation", lambda: self._in_python(slices))
        calls: list[Call] = [compute]
        for _ in range(slices - 1):
            calls += [*between, compute]
        return tuple(calls)

    def seconds(self, last: int) -> NDArray[np.float64]:
        """Return the time of each of the last computations, in their order [last]. Raises ValueError for more than are kept."""
        return last_times(self._elapsed, int(self._state.done), last)

    def _in_python(self, slices: int) -> None:
        """Do the same with numpy: its element-wise functions use one thread and release Python's lock."""
        state = self._state
        began = time.monotonic_ns()
        for _ in range(state.amount * state.slice // slices, state.amount * (state.slice + 1) // slices):
            block = self._memory[state.next]
            for _ in range(_STEPS):
                np.multiply(block, 0.999, out=block)
                np.add(block, 0.001, out=block)
            state.next = (state.next + 1) % _BLOCKS
        state.spent_ns += time.monotonic_ns() - began
        state.slice += 1
        if state.slice >= slices:
            self._elapsed[state.done % KEPT] = state.spent_ns
            state.done += 1
            state.slice = state.spent_ns = 0


def last_times(elapsed_ns: NDArray[np.int64] | NDArray[np.uint64], done: int, last: int) -> NDArray[np.float64]:
    """Return the seconds of the last of `done` computations [last], from the times that are kept in turn. Raises ValueError for more."""
    kept = min(done, KEPT)
    if last > kept:
        raise ValueError(f"{last} computations, but {kept} are known")
    return np.multiply(elapsed_ns[np.arange(done - last, done) % KEPT], 1e-9, dtype=np.float64)
