"""Buffers in GPU memory: laid out as those of the host, filled and compared by kernels, told in the same words when wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.device.checker import Checker, checker_of
from collbench.device.gpu import Gpu, Stream
from collbench.operations.cell import Cell
from collbench.operations.data import (
    PERIOD,
    WINDOW,
    Extent,
    Mismatch,
    Wanted,
    explained,
    grows,
    largest_stride,
    seeded,
    tolerance_of,
    wanted_of,
    write_digits,
)
from collbench.operations.operation import Operation, Place


class Held(Protocol):
    """Memory of a GPU, held as long as this object lives."""

    address: int
    n_bytes: int


class _Members(Protocol):
    """What is needed of a group: how many ranks it has, and which of them this process drives."""

    @property
    def n(self) -> int: ...
    @property
    def driven(self) -> tuple[int, ...]: ...


class DeviceBuffers:
    """The buffers of the ranks this process drives, each on its GPU; `places` are those ranks' views.

    Every rank of the group has as many bytes, so that they can become a symmetric window.
    `memory` is what `allocate` gave per driven rank (plain memory, or that of a library's own allocator).
    """

    page_bytes: int | None = None

    def __init__(  # noqa: PLR0917
        self, operation: Operation, cell: Cell, group: _Members, slots: int, gpus: Sequence[Gpu], streams: Sequence[Stream],
        allocate: Callable[[Gpu, int], Held] = Gpu.allocate,
    ) -> None:  # fmt: skip
        """`gpus` and `streams`: one per driven rank. Raises MemoryError, one sentence."""
        count = operation.count(cell, group.n)
        self.operation, self.cell, self.slots = operation, cell, slots
        self.places = [Place(rank, group.n, count, cell) for rank in group.driven]
        self._extents = [Extent.of(operation, place) for place in self.places]
        self._stride = largest_stride(operation, cell, group.n, slots)
        self.memory = [allocate(gpu, self._stride * slots) for gpu in gpus]
        self._checkers = [checker_of(gpu, stream) for gpu, stream in zip(gpus, streams, strict=True)]
        self._timed: list[NDArray[Any] | None] = [None] * len(self.places)

    def send_at(self, driven: int, slot: int) -> int:
        """The address of the send elements of the `driven`th rank in a slot."""
        return self._at(driven, slot, self._extents[driven].send_at)

    def recv_at(self, driven: int, slot: int) -> int:
        """The address of the receive elements."""
        return self._at(driven, slot, self._extents[driven].recv_at)

    def elements(self, driven: int) -> tuple[int, int]:
        """How many elements the `driven`th rank sends and receives."""
        return self._extents[driven].send, self._extents[driven].recv

    def _at(self, driven: int, slot: int, element: int) -> int:
        return self.memory[driven].address + slot % self.slots * self._stride + element * self.cell.dtype.size

    def fill(self, slot: int, for_check: bool) -> None:
        """Writes the inputs of every driven rank into a slot; for a check, what has not arrived yet is poisoned first.

        They are there when it returns: not every library waits for our streams. Slots that are only timed share their digits, since
        each table that a GPU gets costs a copy. As on the host, timed in-place sums run on zeros and products on ones.
        """
        for driven, (checker, place) in enumerate(zip(self._checkers, self.places, strict=True)):
            extent, width = self._extents[driven], self.cell.dtype.size
            if for_check:
                checker.poison(self._at(driven, slot, 0), extent.total * width)
            table = _digits(seeded(place, slot), extent.send) if for_check else self._timed_table(driven, place, extent.send)
            checker.fill(self.send_at(driven, slot), extent.send * width, table)
        for checker in self._checkers:
            checker.settle()

    def _timed_table(self, driven: int, place: Place, count: int) -> NDArray[Any]:
        table = self._timed[driven]
        if table is None:
            grown = np.full(1, 1 if self.cell.redop == "prod" else 0).astype(self.cell.dtype.numpy)
            table = self._timed[driven] = grown if grows(self.cell) else _digits(place, count)
        return table

    def check(self, slot: int) -> list[Mismatch | None]:
        """What is wrong with every driven rank's received elements in a slot, or None. Waits for the streams."""
        return [self._check(driven, checker, slot) for driven, checker in enumerate(self._checkers)]

    def _check(self, driven: int, checker: Checker, slot: int) -> Mismatch | None:
        place, wrong, found = seeded(self.places[driven], slot), 0, None
        for wanted in wanted_of(self.operation, place):
            address, width = self.recv_at(driven, slot) + wanted.offset * self.cell.dtype.size, self.cell.dtype.size
            table = wanted.elements(0, min(len(wanted.period), wanted.block.count))
            count, first = checker.verify(address, wanted.block.count * width, table, tolerance_of(place))
            if count and found is None:
                found = explained(place, wanted, first, self._window(checker, wanted, address, first))
            wrong += count
        return replace(found, wrong=wrong) if found else None

    def _window(self, checker: Checker, wanted: Wanted, address: int, first: int) -> NDArray[Any]:
        """The elements of a block that were got from `first` on, as many as it takes to explain them."""
        count, width = min(WINDOW, wanted.block.count - first), self.cell.dtype.size
        return checker.read(address + first * width, count * width).view(self.cell.dtype.numpy)


def _digits(place: Place, count: int) -> NDArray[Any]:
    """One period of what a rank sends, as far as it sends so much."""
    table = np.empty(min(count, PERIOD), place.cell.dtype.numpy)
    write_digits(table, place)
    return table
