"""A computation of a fixed amount on a GPU: collbench's kernel `work` on the rank's own stream, which measures its own time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collbench.device.buffers import kernels_of
from collbench.device.gpu import OpenGpu, Stream
from collbench.operations.program import Call
from collbench.plugins.overlap.computation import KEPT, last_times

_MEMORY = 64 * 2**20  # bytes: larger than what the level-2 cache of most GPUs keeps for one kernel
_HEAD = 4  # words before the times, as in work.cu: began, spent, slice, done
_DONE = 3


class GpuComputation:
    """As `computation.Computation`, on a GPU: a block is 4 KiB of memory, and the blocks are used in turn.

    Raises MemoryError, and RunFailed if the kernels do not load.
    """

    def __init__(self, gpu: OpenGpu, stream: Stream, amount: int) -> None:
        self._gpu = gpu
        self._stream = stream
        self._kernels = kernels_of(gpu)
        self._memory = gpu.allocate(_MEMORY)
        self._state = gpu.allocate(8 * (_HEAD + KEPT))
        gpu.upload(self._memory.address, np.ones(_MEMORY // 8), stream)
        gpu.upload(self._state.address, np.zeros(_HEAD + KEPT, np.uint64), stream)
        self._amount = ctypes.c_uint64(max(1, amount))

    @property
    def amount(self) -> int:
        """The number of blocks of one computation. May be set between computations."""
        return int(self._amount.value)

    @amount.setter
    def amount(self, blocks: int) -> None:
        self._amount.value = max(1, blocks)

    def calls(self, slices: int = 1, between: Sequence[Call] = ()) -> tuple[Call, ...]:
        """Return the calls of one computation in so many equal slices, with other calls between them."""
        state = self._state.address
        launch = self._kernels.call
        compute = (
            launch(self._stream, "work_begins", 1, state),
            launch(self._stream, "work", self._kernels.at_once, self._memory.address, _MEMORY, self._amount, slices, state),
            launch(self._stream, "work_ends", 1, state, slices, KEPT),
        )
        return (*compute, *(call for _ in range(slices - 1) for call in (*between, *compute)))

    def seconds(self, last: int) -> NDArray[np.float64]:
        """Return the time of each of the last computations, in their order [last], once the stream is empty.

        Raises ValueError for more than are kept.
        """
        state = self._gpu.download(self._state.address, 8 * (_HEAD + KEPT)).view(np.uint64)
        return last_times(state[_HEAD:], int(state[_DONE]), last)
