"""A timer of the kernel's that kills this process unless it is wound up again: the only thing that ends a process that is stopped.

A thread cannot do it: it is stopped with the others, or waits for Python's lock that a library holds. Source: timer_create(2).
"""

from __future__ import annotations

import ctypes
import signal
import time

_SIGEV_SIGNAL = 0  # asm-generic/siginfo.h


class _Event(ctypes.Structure):
    """struct sigevent, 64 bytes."""

    _fields_ = (("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48))


class _Times(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


AFTER_S = 9.0  # how long after its deadline a process that cannot even watch itself is ended by the kernel


class DeadMan:
    """Kills this process `seconds` after `wind` was called the last time; `works` is False where the kernel has no such timer."""

    def __init__(self) -> None:
        self._libc, self._timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        event = _Event(None, int(signal.SIGKILL), _SIGEV_SIGNAL)
        self.works = self._call("timer_create", time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def wind(self, seconds: float) -> None:
        """From now on it has so many seconds; 0 stops the timer."""
        if self.works:
            times = _Times(0, 0, int(seconds), int(seconds % 1 * 1e9))
            self._call("timer_settime", self._timer, 0, ctypes.byref(times), None)

    def _call(self, name: str, *arguments: object) -> bool:
        function = getattr(self._libc, name, None)
        return function is not None and function(*arguments) == 0

    def close(self) -> None:
        """Takes the timer away."""
        if self.works:
            self._call("timer_delete", self._timer)
            self.works = False
