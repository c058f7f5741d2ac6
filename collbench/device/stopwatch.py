"""Times short work on a GPU by events, in batches that a latch holds back until all of a batch is queued.

nvbandwidth's method: close the latch, hold the stream, queue 4 runs to warm up, an event, 16 runs, an event; open the latch. So what
is between the events runs back to back, however long the host takes to launch it. More batches than its 3 make an interval possible.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collbench.device.gpu import Gpu
from collbench.device.kernels import Kernels
from collbench.errors import RunFailed

_BATCHES, _FEWEST_BATCHES = 15, 6  # six samples are the fewest that have an interval of 95 %
_RUNS, _RUNS_PER_WARM_UP = 16, 4
_BUDGET_S = 2.0  # of all batches together, where they can be fewer or shorter
_HELD_NS = 10 * 10**9
_RELEASED = 1


class Stopwatch:
    """A stream of one GPU and what times it."""

    def __init__(self, gpu: Gpu, kernels: Kernels) -> None:
        from cupy.cuda import get_elapsed_time

        self.gpu, self.stream = gpu, gpu.stream()
        self._kernels = kernels
        self._begin, self._end = gpu.event(), gpu.event()
        self._words = gpu.pinned(16).view(np.uint64)  # the latch, and how the hold ended
        self._elapsed_ms: Callable[..., float] = get_elapsed_time

    def samples(self, run: Callable[[], None]) -> tuple[float, ...]:
        """Seconds of one run of work that `run` queues on `self.stream`: one sample per batch, the mean of its runs.

        Raises RunFailed where the host could not queue a batch while it was held.
        """
        self._batch(run, 1, held=False)  # CUDA loads kernels at their first launch: none may be the first while a stream is held
        self._open()
        once = self._batch(run, 1, held=True)
        share = once * (1 + 1 / _RUNS_PER_WARM_UP)
        runs = int(min(max(_BUDGET_S / _BATCHES / share, 1), _RUNS)) if share > 0 else _RUNS
        batches = int(min(max(_BUDGET_S / (runs * share), _FEWEST_BATCHES), _BATCHES)) if share > 0 else _BATCHES
        return tuple(self._batch(run, runs, held=True) for _ in range(batches))

    def _open(self) -> None:
        """The latch's kernel, too, runs once where it need not wait."""
        self._words[:] = (1, 0)
        self._hold()
        self._wait()

    def _hold(self) -> None:
        latch = self._words.ctypes.data
        self._kernels.hold(self.stream, latch, _HELD_NS, latch + 8)

    def _batch(self, run: Callable[[], None], runs: int, *, held: bool) -> float:
        """Seconds of one of so many runs, after a quarter as many that are not timed."""
        self._words[:] = 0
        if held:
            self._hold()
        try:
            self._queue(run, runs)
        finally:
            self._words[0] = 1
        self._wait()
        if held and self._words[1] != _RELEASED:
            raise RunFailed(f"GPU {self.gpu.index} ({self.gpu.name}): {runs} launches were not queued within {_HELD_NS / 1e9:g} s")
        return self._elapsed_ms(self._begin.cupy, self._end.cupy) / 1e3 / runs

    def _queue(self, run: Callable[[], None], runs: int) -> None:
        for _ in range(-(-runs // _RUNS_PER_WARM_UP)):
            run()
        with self.gpu.use():
            self._begin.cupy.record(self.stream.cupy)
        for _ in range(runs):
            run()
        with self.gpu.use():
            self._end.cupy.record(self.stream.cupy)

    def _wait(self) -> None:
        with self.gpu.use():
            self.stream.synchronize()
