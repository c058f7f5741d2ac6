"""Clocks: what is read before and after a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Clock(Protocol):
    """A clock that a loop stamps before and after each sample, for calls that return when they are done.

    native   whether it is CLOCK_MONOTONIC, so that the C loop may read it by itself
    queued   whether calls only enqueue work, so that the host's time for them is another one than the clock's
    """

    native: bool
    queued: bool

    def stamp(self) -> Any:
        """A moment, as cheap to take as the clock allows (a number, or an event recorded on a stream)."""
        ...

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Seconds between stamps: an array [ranks this process drives × samples]."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, one rank a process."""

    native, queued = True, False

    def stamp(self) -> int:
        """Nanoseconds."""
        return time.monotonic_ns()

    def elapsed(self, starts: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
        """Seconds, [1 × samples]."""
        difference: NDArray[np.float64] = (np.asarray(ends) - np.asarray(starts)) * 1e-9
        return difference[np.newaxis, :]


@dataclass(frozen=True)
class DeviceClock:
    """Events on the streams that calls are only enqueued on: a sample is the time between two events of a stream.

    The timed loop records them, waits for the streams and reads them in C; this says with what. Functions are addresses.

    streams, starts, ends   one each per rank that this process drives; the events before and after a sample
    record, query, elapsed  cuEventRecord(event, stream); cuStreamQuery(stream): 0 done, 600 not yet; cuEventElapsedTime(float *ms, a, b)
    comms, async_error      ncclCommGetAsyncError(comm, int *error) of each communicator, 0: there is none; errors 0 and 7 are none yet
    deadline_s              how long work may take that was enqueued
    device_error, library_error   words for the codes of these functions
    stuck                   told what is wrong when work failed or did not end: gives the library up, and returns the sentence to end with
    """

    streams: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    record: int
    query: int
    elapsed: int
    comms: tuple[int, ...] = ()
    async_error: int = 0
    deadline_s: float = 60.0
    device_error: Callable[[int], str] = "CUDA error {}".format
    library_error: Callable[[int], str] = "error code {}".format
    stuck: Callable[[str], str] = str
