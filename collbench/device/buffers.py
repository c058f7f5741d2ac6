"""Buffers in GPU memory, with the layout of host buffers: kernels fill and compare them, and errors are reported in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
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
    BufferExtent,
    ExpectedBlock,
    Mismatch,
    differing_elements,
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
        self.gpu, self.stream = gpu, stream
        self._kernels = kernels_of(gpu)
        self._table, self._result = gpu.allocate(PERIOD * _WIDEST), gpu.allocate(16)
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
        wrong, first = self.read(self._result.address, 16).view(np.uint64).tolist()
        return int(wrong), int(first)

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
        self.gpu, self.stream = gpu, stream

    def fill(self, address: int, n_bytes: int, table: Bytes) -> None:
        """Repeat a table over memory."""
        period = table.view(np.uint8)
        chunk = np.tile(period, -(-min(n_bytes, _CHUNK) // max(1, period.size)))
        for at in range(0, n_bytes, chunk.size or 1):
            self.gpu.upload(address + at, chunk[: n_bytes - at], self.stream)

    def verify(self, address: int, n_bytes: int, table: Bytes, tolerance: int) -> tuple[int, int]:
        """Return (number of elements that differ from the table by more than `tolerance` units in the last place, index of the first)."""
        each = max(1, _CHUNK // table.nbytes) * table.nbytes
        expected, wrong, first = np.tile(table, each // table.nbytes), 0, NONE
        for at in range(0, n_bytes, each):
            got = self.read(address + at, min(each, n_bytes - at)).view(table.dtype)
            bad = differing_elements(expected[: len(got)], got, tolerance)
            if bad.size and not wrong:
                first = at // table.itemsize + int(bad[0])
            wrong += bad.size
        return wrong, first

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
    checker, memory = checker_of(gpu, stream), gpu.allocate(_PROOF)
    for width in (1, 2, 4, 8):
        table = np.random.default_rng(width).integers(0, 256, PERIOD * width, np.uint8).view(f"u{width}")
        for offset in (0, _PROOF // 2 + 1, _PROOF - 1):
            _prove(checker, memory, table, offset)


def _prove(checker: Checker, memory: GpuMemory, table: Bytes, offset: int) -> None:
    """Flip one byte: the checker must find nothing before, the element after, and nothing within a tolerance if the flip is small."""
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
            f"the checker of GPU {checker.gpu.index} ({checker.gpu.name}) does not detect a flipped bit at byte {offset} of elements of "
            f"{table.itemsize} bytes (result {found}, expected {expected}): report this bug; --check 0 skips the check of the data"
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


class DeviceBuffers:
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
        count = operation.count(case, group.n)
        self.operation, self.case, self.slots = operation, case, slots
        self.places = [Place(rank, group.n, count, case) for rank in group.driven]
        self._extents = [BufferExtent.of(operation, place) for place in self.places]
        self._stride = largest_stride(operation, case, group.n, slots)
        self.memory = [allocate(gpu, self._stride * slots) for gpu in gpus]
        self._checkers = [checker_of(gpu, stream) for gpu, stream in zip(gpus, streams, strict=True)]
        self._timed: list[NDArray[Any] | None] = [None] * len(self.places)
        self._first = 0  # the slot of the memory that is slot 0

    def over(self, operation: Operation, case: Case, slot: int) -> Self:
        """Return buffers with one slot, slot `slot` of these, for another case of the same data type that needs no more memory."""
        found = copy(self)
        found.operation, found.case, found.slots, found._first = operation, case, 1, slot
        found.places = [replace(place, case=case, count=operation.count(case, place.n)) for place in self.places]
        found._extents = [extent.within(operation, place) for extent, place in zip(self._extents, found.places, strict=True)]
        found._timed = [None] * len(self.places)
        return found

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
            extent, width = self._extents[driven], self.case.dtype.size
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
        place, wrong, found = seeded(self.places[driven], slot), 0, None
        for expected in expected_blocks_of(self.operation, place):
            address, width = self.recv_at(driven, slot) + expected.offset * self.case.dtype.size, self.case.dtype.size
            table = expected.elements(0, min(len(expected.period), expected.block.count))
            count, first = checker.verify(address, expected.block.count * width, table, tolerance_of(place))
            if count and found is None:
                found = explained(place, expected, first, self._window(checker, expected, address, first))
            wrong += count
        return replace(found, wrong=wrong) if found else None

    def _window(self, checker: Checker, expected: ExpectedBlock, address: int, first: int) -> NDArray[Any]:
        """Return the received elements of a block from `first` on, as many as the description of an error needs."""
        count, width = min(WINDOW, expected.block.count - first), self.case.dtype.size
        return checker.read(address + first * width, count * width).view(self.case.dtype.numpy)


def _digits(place: Place, count: int) -> NDArray[Any]:
    """Return one period of the data that a rank sends, at most `count` elements."""
    table = np.empty(min(count, PERIOD), place.case.dtype.numpy)
    write_digits(table, place)
    return table
