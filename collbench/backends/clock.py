"""Clocks for samples: the monotonic clock, CUDA events, and virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import RunFailed

# torch's CUDA events as a clock.

_LOOK_S = 20e-6


class EventClock:
    """CUDA events of torch on its current stream, which its NCCL calls synchronize with; one rank per process."""

    native = False
    queued = True

    def __init__(self, torch: Any, deadline_s: float, ranks_behind: Callable[[], str | None]) -> None:
        """Create the clock. `ranks_behind` returns which ranks are late; it is called if work exceeds the deadline."""
        self._torch = torch
        self._deadline_s = deadline_s
        self._ranks_behind = ranks_behind

    def stamp(self) -> Any:
        """Return an event that the stream reaches after everything enqueued so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Return seconds, [1 × samples], once the last event is reached. Raises RunFailed at the deadline."""
        if ends:
            self.wait(ends[-1])
        return np.array([[1e-3 * start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]])

    def wait(self, event: Any) -> None:
        """Wait until the stream has reached an event. Raises RunFailed at the deadline."""
        end = time.monotonic() + self._deadline_s
        while not event.query():
            if time.monotonic() > end:
                late_ranks = self._ranks_behind()
                problem = f"what torch gave to NCCL has not completed within {self._deadline_s:g} s"
                raise RunFailed(f"{problem}; {late_ranks}" if late_ranks else problem)
            time.sleep(_LOOK_S)


# The time of simulated ranks. Their operations advance it.

_SPREAD = 0.02  # invented: relative noise of a rank's time


class VirtualClock:
    """A simulated time per virtual rank, which the programs themselves advance."""

    native = queued = False

    def __init__(self, ranks: int, seed: int) -> None:
        self._now = np.zeros(ranks)
        self._random = np.random.default_rng(seed)

    def advance(self, ranks: Sequence[int], seconds: float) -> None:
        """Simulate an operation of `seconds` at these ranks.

        It starts when the last rank arrives, and ends with small random differences between the ranks.
        """
        noise = self._random.lognormal(0, _SPREAD, len(ranks))
        self._now[list(ranks)] = self._now[list(ranks)].max() + seconds * noise

    def hold(self, seconds: NDArray[np.float64]) -> None:
        """Delay each rank by its own number of seconds, [ranks]."""
        self._now += seconds

    def align(self) -> None:
        """Set all ranks to the latest time, as a barrier does."""
        self._now[:] = self._now.max(initial=0.0)

    def stamp(self) -> NDArray[np.float64]:
        """Return every rank's time in seconds, [ranks]."""
        return self._now.copy()

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Return seconds, [virtual ranks × samples]."""
        difference: NDArray[np.float64] = (np.asarray(ends) - np.asarray(starts)).T
        return difference


class Clock(Protocol):
    """A clock that the timed loop reads before and after each sample, for calls that return when they are done.

    native   whether it is CLOCK_MONOTONIC, so that the C loop may read it itself
    queued   whether calls only enqueue work, so that the host's time for them differs from the clock's
    """

    native: bool
    queued: bool

    def stamp(self) -> Any:
        """Return a time stamp at minimal cost: a number, or an event recorded on a stream."""

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Return the seconds between stamps, [ranks that this process drives × samples]."""


class MonotonicClock:
    """CLOCK_MONOTONIC, for one rank per process."""

    native = True
    queued = False

    def stamp(self) -> int:
        """Return nanoseconds."""
        return time.monotonic_ns()

    def elapsed(self, starts: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
        """Return seconds, [1 × samples]."""
        difference: NDArray[np.float64] = (np.asarray(ends) - np.asarray(starts)) * 1e-9
        return difference[np.newaxis, :]


class ProcessClock(MonotonicClock):
    """CLOCK_MONOTONIC, for calls of the host that make something for all ranks of a process together."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def elapsed(self, starts: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
        """Return seconds, [ranks × samples]."""
        return np.repeat(super().elapsed(starts, ends), self._ranks, axis=0)


class DeviceClock(msgspec.Struct, frozen=True):
    """CUDA events on the streams on which calls are enqueued. A sample is the time between two events of a stream.

    The timed loop records them, waits for the streams and reads them in C; it gets the addresses of these functions.

    streams, starts, ends   one each per rank that this process drives; the events before and after a sample
    record                  cuEventRecord(event, stream)
    query                   cuStreamQuery(stream): 0 done, 600 not yet
    elapsed                 cuEventElapsedTime(float *ms, a, b)
    comms, async_error      ncclCommGetAsyncError(comm, int *error) of each communicator; 0: none to check. Error codes 0 and 7
                            mean no error so far
    deadline_s              time limit for enqueued work, in seconds
    device_error, library_error   return the text for an error code of these functions
    stuck                   called with the error if work failed or did not end: aborts the library, and returns the final message
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
