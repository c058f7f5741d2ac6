"""What the kernels' speed is measured on: three arrays in a GPU's memory, a stopwatch, a checker."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.device.checker import checker_of, kernels_of
from collbench.device.gpu import Gpu
from collbench.device.stopwatch import Stopwatch
from collbench.errors import UsageError
from collbench.units import format_bytes, format_size

GRAIN = 16  # sizes are multiples of this
_LEAST = 1024
_USUAL_SIZE = 512 << 20  # nvbandwidth's
_SMALLEST = 1 << 20
_ARRAYS = 3  # of a triad
_SPARE = 64 << 20  # left free: tables, sums, and what the driver takes for itself


class Arrays:
    """`a`, `b` and `c`: the addresses of `size` bytes each on one GPU. Raises MemoryError, one sentence."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.gpu, self.size = gpu, size
        self.kernels = kernels_of(gpu)
        self.watch = Stopwatch(gpu, self.kernels)
        self.stream = self.watch.stream
        self.checker = checker_of(gpu, self.stream)
        self._held = [gpu.allocate(size) for _ in range(_ARRAYS)]
        self.a, self.b, self.c = (array.address for array in self._held)


def fitting_size(gpus: Sequence[Gpu], asked: int | None) -> int:
    """The bytes of each array: those asked for, or the usual ones, halved until three arrays fit into every GPU.

    Raises UsageError for a size that does not fit, or that no kernel takes.
    """
    if asked is not None and (asked % GRAIN or asked < _LEAST):
        raise UsageError(f"--size {asked}: a size is a multiple of {GRAIN} bytes, which a thread moves at a time, and {_LEAST} or more")
    free, tight = min(((gpu.free_bytes(), gpu) for gpu in gpus), key=lambda each: each[0])
    size, room = asked or _USUAL_SIZE, (free - _SPARE) // _ARRAYS
    while asked is None and room < size > _SMALLEST:
        size //= 2
    if room < size:
        raise UsageError(
            f"{_ARRAYS} arrays of {format_size(size)} do not fit in GPU {tight.index} ({tight.name}), where {format_bytes(free)} is free: "
            "say a smaller --size, or end what fills it"
        )
    return size
