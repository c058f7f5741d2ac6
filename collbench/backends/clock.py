"""Clocks: what is read before and after a sample."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Clock(Protocol):
    """A clock that a loop stamps before and after each sample.

    native   whether it is CLOCK_MONOTONIC, so that the C loop may read it by itself
    """

    native: bool

    def stamp(self) -> Any:
        """A moment, as cheap to take as the clock allows (a number, or an event recorded on a stream)."""
        ...

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Seconds between stamps: an array [ranks this process drives × samples]."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, one rank a process."""

    native = True

    def stamp(self) -> int:
        """Nanoseconds."""
        return time.monotonic_ns()

    def elapsed(self, starts: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
        """Seconds, [1 × samples]."""
        difference: NDArray[np.float64] = (np.asarray(ends) - np.asarray(starts)) * 1e-9
        return difference[np.newaxis, :]
