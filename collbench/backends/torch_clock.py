"""torch's events as a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.errors import RunFailed

_LOOK_S = 20e-6


class EventClock:
    """torch's events on the current stream, on which its NCCL calls wait for one another; one rank a process."""

    native, queued = False, True

    def __init__(self, torch: Any, deadline_s: float, ask: Callable[[], str | None]) -> None:
        """`ask` says which ranks lag, once work has not ended within the deadline."""
        self._torch, self._deadline_s, self._ask = torch, deadline_s, ask

    def stamp(self) -> Any:
        """An event that the stream reaches after everything enqueued so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Seconds, [1 × samples], once the last event has been reached. Raises RunFailed when that takes too long."""
        if ends:
            self.wait(ends[-1])
        return np.array([[1e-3 * start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]])

    def wait(self, event: Any) -> None:
        """Returns when the stream has reached an event. Raises RunFailed when that takes too long."""
        end = time.monotonic() + self._deadline_s
        while not event.query():
            if time.monotonic() > end:
                told = self._ask()
                raise RunFailed(f"what torch gave to NCCL has not completed within {self._deadline_s:g} s" + (f"; {told}" if told else ""))
            time.sleep(_LOOK_S)
