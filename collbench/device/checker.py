"""Fills and compares memory of one GPU by kernels, from one period of what must stand there; and proves that it sees errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.device.gpu import Gpu, Memory, Stream
from collbench.device.kernels import NONE, Kernels
from collbench.errors import RunFailed
from collbench.operations.data import PERIOD, POISON

_WIDEST = 8  # bytes of an element
_PROOF = (2 * PERIOD + 77) * _WIDEST  # bytes: more than two periods, of every width
_TOP_BIT, _LAST_BIT = 0x80, 0x01
Bytes = NDArray[Any]


@cache
def kernels_of(gpu: Gpu) -> Kernels:
    """The kernels for a GPU, compiled and loaded once."""
    return Kernels(gpu)


class Checker:
    """Fills and compares memory in the order of one stream. It keeps room for one period of the widest elements, half a MiB.

    `table` is that period, from the value that belongs to the first element on.
    """

    def __init__(self, gpu: Gpu, stream: Stream) -> None:
        self.gpu, self.stream = gpu, stream
        self._kernels = kernels_of(gpu)
        self._table, self._result = gpu.allocate(PERIOD * _WIDEST), gpu.allocate(16)
        self._loaded: Bytes | None = None

    def fill(self, address: int, n_bytes: int, table: Bytes) -> None:
        """Repeats a table over memory. Returns before it is done: what follows on the stream finds it."""
        if n_bytes:
            self._load(table)
            self._kernels.fill(self.stream, address, n_bytes, self._table.address, table.nbytes)

    def poison(self, address: int, n_bytes: int) -> None:
        """Fills memory with bytes that no moved digit has."""
        self.fill(address, n_bytes, _POISON)

    def verify(self, address: int, n_bytes: int, table: Bytes, tolerance: int) -> tuple[int, int]:
        """(how many elements differ from the table by more than `tolerance` units in the last place, the first of them)."""
        self._load(table)
        self._kernels.verify(
            self.stream, address, n_bytes, self._table.address, table.nbytes,
            width=table.itemsize, tolerance=tolerance, result_address=self._result.address,
        )  # fmt: skip
        wrong, first = self.read(self._result.address, 16).view(np.uint64).tolist()
        return int(wrong), int(first)

    def corrupt(self, address: int, offset: int, mask: int) -> None:
        """Flips bits of one byte."""
        self._kernels.corrupt(self.stream, address, offset, mask)

    def read(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """What stands in memory once the stream has come to rest."""
        self.settle()
        return self.gpu.download(address, n_bytes)

    def settle(self) -> None:
        """Waits until the stream has come to rest."""
        with self.gpu.use():
            self.stream.synchronize()

    def _load(self, table: Bytes) -> None:
        """Brings a table to the GPU, unless it is the one that is there."""
        if table is not self._loaded:
            self.gpu.upload(self._table.address, table, self.stream)
            self._loaded = table


_POISON = np.full(16, POISON, np.uint8)


@cache
def checker_of(gpu: Gpu, stream: Stream) -> Checker:
    """The checker of a stream, made once."""
    return Checker(gpu, stream)


def prove(gpu: Gpu, stream: Stream) -> None:
    """Shows on this GPU that a right buffer is found right and one flipped bit is found at its element, for every width.

    Raises RunFailed where not: nothing that this process then said of right or wrong could be believed.
    """
    checker, memory = checker_of(gpu, stream), gpu.allocate(_PROOF)
    for width in (1, 2, 4, 8):
        table = np.random.default_rng(width).integers(0, 256, PERIOD * width, np.uint8).view(f"u{width}")
        for offset in (0, _PROOF // 2 + 1, _PROOF - 1):
            _prove(checker, memory, table, offset)


def _prove(checker: Checker, memory: Memory, table: Bytes, offset: int) -> None:
    """One flip at a byte: unseen before, seen at its element after, and within a tolerance only where it is small."""
    last = offset // table.itemsize * table.itemsize  # the lowest byte of the element
    expected = [(0, NONE), (1, offset // table.itemsize), (0, NONE), (1, offset // table.itemsize)]
    found = []
    for flipped, mask, tolerance in ((offset, 0, 0), (offset, _TOP_BIT, 0), (last, _LAST_BIT, 1), (offset, _TOP_BIT, 1)):
        checker.fill(memory.address, memory.n_bytes, table)
        if mask:
            checker.corrupt(memory.address, flipped, mask)
        found.append(checker.verify(memory.address, memory.n_bytes, table, tolerance))
    if found != expected:
        raise RunFailed(
            f"the checker of GPU {checker.gpu.index} ({checker.gpu.name}) does not see a flipped bit at byte {offset} of elements of "
            f"{table.itemsize} bytes (it says {found}, not {expected}): report this, and use --check 0 only if you must"
        )
