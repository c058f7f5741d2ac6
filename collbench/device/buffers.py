"""Buffers in GPU memory, with the layout of host buffers: kernels fill and compare them, and errors are reported in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.device.gpu import GpuMemory, OpenGpu, Stream
from collbench.device.kernels import NONE, Kernels
from collbench.errors import RunFailed
from collbench.operations.case import Case
from collbench.operations.data import (
    PERIOD,
    POISON,
    WINDOW,
    Mismatch,
    SlottedBuffers,
    differences,
    expected_blocks_of,
    explained,
    grows,
    largest_stride,
    seeded,
    tolerance_of,
    write_digits,
)
from collbench.operations.operation import Operation, Place

# Kernels that fill and compare the memory of one GPU, from one period of the expected data, and the test that they detect errors.

_WIDEST = 8  # bytes of an element
_PROOF = (2 * PERIOD + 77) * _WIDEST  # bytes: more than two periods, of every width
_TOP_BIT, _LAST_BIT = 0x80, 0x01
Bytes = NDArray[Any]


@cache
def kernels_of(gpu: OpenGpu) -> Kernels:
    """Return the kernels for a GPU, compiled and loaded once."""
    return Kernels(gpu)


class Checker:
    """Fills and compares memory in the order of one stream. It holds one period of the widest elements, half a MiB.

    `table` in the methods is that period, starting with the value of the first element.
    """

    def __init__(self, gpu: OpenGpu, stream: Stream) -> None:
        self.gpu = gpu
        self.stream = stream
        self._kernels = kernels_of(gpu)
        self._table = gpu.allocate(PERIOD * _WIDEST)
        self._result = gpu.allocate(16)
        self._loaded: Bytes | None = None

    def fill(self, address: int, n_bytes: int, table: Bytes) -> None:
        """Repeat a table over memory. Returns before completion; later work on the stream runs after it."""
        if n_bytes:
            self._load(table)
            self._kernels.fill(self.stream, address, n_bytes, self._table.address, table.nbytes)

    def poison(self, address: int, n_bytes: int) -> None:
        """Fill memory with bytes that the data never has."""
        self.fill(address, n_bytes, _POISON)

    def verify(self, address: int, n_bytes: int, table: Bytes, tolerance: int) -> tuple[int, int]:
        """Return (number of elements that differ from the table by more than `tolerance` units in the last place, index of the first)."""
        self._load(table)
        self._kernels.verify(
            self.stream, address, n_bytes, self._table.address, table.nbytes,
            width=table.itemsize, tolerance=tolerance, result_address=self._result.address,
        )  # fmt: skip
        wrong, first = map(int, self.read(self._result.address, 16).view(np.uint64))
        return wrong, first

    def corrupt(self, address: int, offset: int, mask: int) -> None:
        """Flip bits of one byte."""
        self._kernels.corrupt(self.stream, address, offset, mask)

    def read(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return the contents of the memory after all work of the stream is done."""
        self.settle()
        return self.gpu.download(address, n_bytes)

    def settle(self) -> None:
        """Wait until the stream is idle."""
        with self.gpu.use():
            self.stream.synchronize()

    def _load(self, table: Bytes) -> None:
        """Copy a table to the GPU, unless it is already loaded."""
        if table is not self._loaded:
            self.gpu.upload(self._table.address, table, self.stream)
            self._loaded = table


_CHUNK = 8 << 20  # bytes that the host copies at once


class HostChecker(Checker):
    """Fills and compares memory of a GPU without kernels: the host copies it, in the order of one stream."""

    def __init__(self, gpu: OpenGpu, stream: Stream) -> None:
        self.gpu = gpu
        self.stream = stream

    def fill(self, address: int, n_bytes: int, table: Bytes) -> None:
        """Repeat a table over memory."""
        period = table.view(np.uint8)
        chunk = np.tile(period, -(-min(n_bytes, _CHUNK) // max(1, period.size)))
        for offset in range(0, n_bytes, chunk.size or 1):
            self.gpu.upload(address + offset, chunk[: n_bytes - offset], self.stream)

    def verify(self, address: int, n_bytes: int, table: Bytes, tolerance: int) -> tuple[int, int]:
        """Return (number of elements that differ from the table by more than `tolerance` units in the last place, index of the first)."""
        expected = np.tile(table, max(1, _CHUNK // table.nbytes))

        def chunks() -> Iterator[tuple[Bytes, Bytes]]:
            for offset in range(0, n_bytes, expected.nbytes):
                got = self.read(address + offset, min(expected.nbytes, n_bytes - offset)).view(table.dtype)
                yield expected[: len(got)], got

        wrong, first = differences(chunks(), tolerance)
        return wrong, first if wrong else NONE

    def corrupt(self, address: int, offset: int, mask: int) -> None:
        """Flip bits of one byte."""
        self.gpu.upload(address + offset, self.read(address + offset, 1) ^ np.uint8(mask), self.stream)


_POISON = np.full(16, POISON, np.uint8)


@cache
def checker_of(gpu: OpenGpu, stream: Stream) -> Checker:
    """Return the checker of a stream, created once."""
    return Checker(gpu, stream) if gpu.has_kernels else HostChecker(gpu, stream)


def prove(gpu: OpenGpu, stream: Stream) -> None:
    """Test on this GPU that a correct buffer passes and that one flipped bit is found at its element, for every width.

    Raises RunFailed otherwise, since the results of its checks would not be valid.
    """
    checker = checker_of(gpu, stream)
    memory = gpu.allocate(_PROOF)
    for width in (1, 2, 4, 8):
        table = np.random.default_rng(width).integers(0, 256, PERIOD * width, np.uint8).view(f"u{width}")
        for offset in (0, _PROOF // 2 + 1, _PROOF - 1):
            _prove(checker, memory, table, offset)


def _prove(checker: Checker, memory: GpuMemory, table: Bytes, offset: int) -> None:
    """Flip one byte: the checker must find nothing before, the element after, and nothing within a tolerance if the flip is small."""
    last = offset // table.itemsize * table.itemsize  # the lowest byte of the element
    expected = [(0, NONE), (1, offset // table.itemsize), (0, NONE), (1, offset // table.itemsize)]
    results = []
    for flipped, mask, tolerance in ((offset, 0, 0), (offset, _TOP_BIT, 0), (last, _LAST_BIT, 1), (offset, _TOP_BIT, 1)):
        checker.fill(memory.address, memory.n_bytes, table)
        if mask:
            checker.corrupt(memory.address, flipped, mask)
        results.append(checker.verify(memory.address, memory.n_bytes, table, tolerance))
    if results != expected:
        raise RunFailed(
            f"the checker of GPU {checker.gpu.index} ({checker.gpu.name}) does not detect a flipped bit at byte {offset} of elements of "
            f"{table.itemsize} bytes (result {results}, expected {expected}): report this bug; --check 0 skips the check of the data"
        )


class DeviceAllocation(Protocol):
    """GPU memory that is allocated as long as this object lives."""

    address: int
    n_bytes: int


class _Members(Protocol):
    """The attributes of a group in use here: its number of ranks, and the ranks that this process drives."""

    @property
    def n(self) -> int: ...
    @property
    def driven(self) -> tuple[int, ...]: ...


class DeviceBuffers(SlottedBuffers):
    """GPU buffers of the ranks that this process drives. Attributes and methods: see `AnyBuffers`.

    All ranks of the group allocate the same size, so that the buffers can be a symmetric window.
    `memory` is the result of `allocate` per driven rank (plain memory, or that of a library's allocator).
    """

    page_bytes: int | None = None

    def __init__(  # noqa: PLR0917
        self, operation: Operation, case: Case, group: _Members, slots: int, gpus: Sequence[OpenGpu], streams: Sequence[Stream],
        allocate: Callable[[OpenGpu, int], DeviceAllocation] = OpenGpu.allocate,
    ) -> None:  # fmt: skip
        """Allocate the buffers. `gpus` and `streams`: one per driven rank. Raises MemoryError."""
        super().__init__(operation, case, group.n, group.driven, slots)
        self._stride = largest_stride(operation, case, group.n, slots)
        self.memory = [allocate(gpu, self._stride * slots) for gpu in gpus]
        self._checkers = [checker_of(gpu, stream) for gpu, stream in zip(gpus, streams, strict=True)]
        self._timed: list[NDArray[Any] | None] = [None] * len(self.places)

    def over(self, operation: Operation, case: Case, slot: int) -> Self:
        """Return buffers with one slot, slot `slot` of these, for another case of the same data type that needs no more memory."""
        view = super().over(operation, case, slot)
        view._timed = [None] * len(self.places)
        return view

    def send_at(self, driven: int, slot: int) -> int:
        """Return the address of a driven rank's send elements in a slot."""
        return self._at(driven, slot, self._extents[driven].send_at)

    def recv_at(self, driven: int, slot: int) -> int:
        """Return the address of a driven rank's receive elements in a slot."""
        return self._at(driven, slot, self._extents[driven].recv_at)

    def elements(self, driven: int) -> tuple[int, int]:
        """Return how many elements a driven rank sends and receives."""
        return self._extents[driven].send, self._extents[driven].recv

    def _at(self, driven: int, slot: int, element: int) -> int:
        return self.memory[driven].address + (self._first + slot % self.slots) * self._stride + element * self.case.dtype.size

    def fill(self, slot: int, for_check: bool) -> None:
        """Write the inputs of every driven rank into a slot. For a check, first poison it, so that missing data is detected.

        It is complete on return, since not every library waits for collbench's streams. Slots that are only timed share their
        data, since each table needs a copy to the GPU. As on the host, timed in-place sums use zeros and products ones.
        """
        for driven, (checker, place) in enumerate(zip(self._checkers, self.places, strict=True)):
            extent = self._extents[driven]
            width = self.case.dtype.size
            if for_check:
                checker.poison(self._at(driven, slot, 0), extent.total * width)
            table = self._timed[driven]
            if for_check:
                table = _digits(seeded(place, slot), extent.send)
            elif table is None:
                grown = np.full(1, 1 if self.case.redop == "prod" else 0).astype(self.case.dtype.numpy)
                table = self._timed[driven] = grown if grows(self.case) else _digits(place, extent.send)
            checker.fill(self.send_at(driven, slot), extent.send * width, table)
        for checker in self._checkers:
            checker.settle()

    def check(self, slot: int) -> list[Mismatch | None]:
        """Return for each driven rank the errors in its received elements in a slot, or None. Waits for the streams."""
        return [self._check(driven, checker, slot) for driven, checker in enumerate(self._checkers)]

    def _check(self, driven: int, checker: Checker, slot: int) -> Mismatch | None:
        place = seeded(self.places[driven], slot)
        width = self.case.dtype.size
        wrong = 0
        mismatch: Mismatch | None = None
        for expected in expected_blocks_of(self.operation, place):
            address = self.recv_at(driven, slot) + expected.offset * width
            table = expected.elements(0, min(len(expected.period), expected.block.count))
            count, first = checker.verify(address, expected.block.count * width, table, tolerance_of(place))
            if count and mismatch is None:
                examined = min(WINDOW, expected.block.count - first)
                got = checker.read(address + first * width, examined * width).view(self.case.dtype.numpy)
                mismatch = explained(place, expected, first, got)
            wrong += count
        return replace(mismatch, wrong=wrong) if mismatch else None


def _digits(place: Place, count: int) -> NDArray[Any]:
    """Return one period of the data that a rank sends, at most `count` elements."""
    table = np.empty(min(count, PERIOD), place.case.dtype.numpy)
    write_digits(table, place)
    return table
