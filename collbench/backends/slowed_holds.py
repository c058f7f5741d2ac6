"""Calls at an iteration's begin and end that hold the rank until it has taken so much longer: in C, or the same in Python."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collbench.operations.program import NativeCall, PythonCall

_TRIES, _PAIRS = 8, 64
_SPUN_NS = 100_000  # as in slowed.c: longer holds begin with sleep, so that others have the core


class _SlowedStruct(ctypes.Structure):
    _fields_ = [("began_ns", ctypes.c_int64), ("cost_ns", ctypes.c_int64), ("turn", ctypes.c_int64), ("n", ctypes.c_int64),
                ("by", ctypes.POINTER(ctypes.c_double))]  # fmt: skip


class NativeHold:
    """The calls of slowed.c."""

    def __init__(self, library: ctypes.CDLL, parts: NDArray[np.float64]) -> None:
        by = (ctypes.c_double * len(parts))(*parts)
        library.collbench_slowed_cost.restype = ctypes.c_int64
        self._struct = _SlowedStruct(0, library.collbench_slowed_cost(), 0, len(parts), by)
        self.begin, self.end = (self._call(library, name) for name in ("begin", "end"))

    def _call(self, library: ctypes.CDLL, name: str) -> NativeCall:
        pointer = ctypes.cast(getattr(library, f"collbench_slowed_{name}"), ctypes.c_void_p).value or 0
        return NativeCall(f"slowed {name}", pointer, (ctypes.addressof(self._struct),))


class PythonHold:
    """The same in Python, between calls that are Python's."""

    def __init__(
        self, parts: NDArray[np.float64], now: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._parts, self._now, self._sleep = [float(part) for part in parts], now, sleep
        self._began_ns = self._turn = self._cost_ns = 0
        self.begin, self.end = PythonCall("slowed begin", self._begin), PythonCall("slowed end", self._end)
        self._cost_ns = self._cost()

    def _begin(self) -> None:
        self._began_ns = self._now()

    def _end(self) -> None:
        ended = self._now()
        part = self._parts[self._turn % len(self._parts)]
        self._turn += 1
        until = ended + int((ended - self._began_ns) * part) - self._cost_ns
        if until - ended >= 2 * _SPUN_NS:
            self._sleep((until - ended - _SPUN_NS) * 1e-9)
        while self._now() < until:
            pass

    def _cost(self) -> int:
        """Nanoseconds that the two calls take when they hold nothing: the quickest of several tries."""
        held, self._parts, quickest = self._parts, [0.0], 2**62
        for _ in range(_TRIES):
            began = self._now()
            for _ in range(_PAIRS):
                self._begin()
                self._end()
            quickest = min(quickest, self._now() - began)
        self._parts, self._turn = held, 0
        return quickest // _PAIRS
