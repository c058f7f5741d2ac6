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

_BLOCKS, _LENGTH = 512, 1024  # 4 MiB of float64 in blocks of 8 KiB, about 2 µs each: larger than a core's own cache
_KEPT = 65_536  # times of the last computations
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
        self._memory, self._elapsed = np.ones((_BLOCKS, _LENGTH)), np.zeros(_KEPT, np.int64)
        self._state = WorkStruct(
            memory=self._memory.ctypes.data, blocks=_BLOCKS, length=_LENGTH, amount=amount, elapsed_ns=self._elapsed.ctypes.data,
            capacity=_KEPT,
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
            one: Call = NativeCall("computation", address("collbench_computation"), (ctypes.addressof(self._state), slices))
        else:
            one = PythonCall("computation", lambda: self._in_python(slices))
        found: list[Call] = [one]
        for _ in range(slices - 1):
            found += [*between, one]
        return tuple(found)

    def seconds(self, last: int) -> NDArray[np.float64]:
        """Return the time of each of the last computations, in their order [last]. Raises ValueError for more than are kept."""
        done = int(self._state.done)
        if last > min(done, _KEPT):
            raise ValueError(f"{last} computations, but {min(done, _KEPT)} are known")
        return np.multiply(self._elapsed[np.arange(done - last, done) % _KEPT], 1e-9, dtype=np.float64)

    def _in_python(self, slices: int) -> None:
        """Do the same with numpy: its element-wise functions use one thread and release Python's lock."""
        state, began = self._state, time.monotonic_ns()
        for _ in range(state.amount * state.slice // slices, state.amount * (state.slice + 1) // slices):
            block = self._memory[state.next]
            for _ in range(_STEPS):
                np.multiply(block, 0.999, out=block)
                np.add(block, 0.001, out=block)
            state.next = (state.next + 1) % _BLOCKS
        state.spent_ns += time.monotonic_ns() - began
        state.slice += 1
        if state.slice >= slices:
            self._elapsed[state.done % _KEPT] = state.spent_ns
            state.done += 1
            state.slice = state.spent_ns = 0
