"""What a parameter server does with the gradients that it gets: it adds up what every rank has sent to it, on the host's memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.host import Buffers
from collbench.measure.one_cell import Ready
from collbench.operations.data import Mismatch, poison, seeded, wanted_of
from collbench.operations.operation import Operation, Place
from collbench.operations.program import Program, PythonCall

_HINT = "what the server added up"


@dataclass(frozen=True)
class _Server:
    """A rank that receives: where each sender's share lies among what it receives, and room for a sum per slot."""

    place: Place
    buffers: Buffers
    driven: int
    shares: tuple[tuple[int, int], ...]
    totals: NDArray[Any]

    @classmethod
    def of(cls, operation: Operation, buffers: Buffers, driven: int) -> _Server | None:
        """None for a rank that receives nothing."""
        place = buffers.places[driven]
        shares, at = [], 0
        for block in operation.arrives(place):
            shares += [(at, block.count)] if block.count else []
            at += block.count
        if not shares:
            return None
        totals = np.zeros((buffers.slots, max(count for _, count in shares)), place.cell.dtype.numpy)
        return cls(place, buffers, driven, tuple(shares), totals)

    def add(self, slot: int) -> None:
        """Adds up, in the order of the ranks; a share that is shorter (its last element was rounded off) ends earlier."""
        received, total = self.buffers.recv(self.driven, slot), self.totals[slot]
        total[:] = 0
        for at, count in self.shares:
            np.add(total[:count], received[at : at + count], out=total[:count])

    def wrong(self, operation: Operation, slot: int, rank: int) -> Mismatch | None:
        """What is wrong with the sum, told by the rank in the job; the order of adding is known, so it is exact in every type."""
        total = self.totals[slot]
        right = np.zeros_like(total)
        for wanted in wanted_of(operation, seeded(self.place, slot)):
            part = right[: wanted.block.count]
            np.add(part, wanted.elements(0, wanted.block.count), out=part)
        width = f"u{right.itemsize}"
        bad = np.flatnonzero(right.view(width) != total.view(width))
        if not bad.size:
            return None
        first = int(bad[0])
        return Mismatch(rank, int(bad.size), first, str(right[first]), str(total[first]), _HINT)


class Adding:
    """The servers that this process drives, of one part of a step."""

    def __init__(self, ready: Ready) -> None:
        self._ready, self._servers = ready, list[tuple[_Server, int]]()
        for group, buffers in zip(ready.mine, ready.buffers, strict=True):
            assert isinstance(buffers, Buffers), "refused on GPUs before"
            for driven, place in enumerate(buffers.places):
                server = _Server.of(ready.operation, buffers, driven)
                self._servers += [(server, group.ranks[place.rank])] if server else []

    def program(self) -> Program:
        """What was received is added up as soon as it is there, slot by slot."""
        added = [PythonCall("add", partial(self._add, slot)) for slot in range(len(self._ready.program.slots))]
        if not self._servers:
            return self._ready.program
        slots = tuple((*calls, add) for calls, add in zip(self._ready.program.slots, added, strict=True))
        return Program(slots, keep=(self._ready.program, self), explain=self._ready.program.explain)

    def _add(self, slot: int) -> None:
        for server, _ in self._servers:
            server.add(slot)

    def spoil(self) -> None:
        """Poisons the sums: one that nobody makes shows."""
        for server, _ in self._servers:
            poison(server.totals)

    def mismatches(self, slot: int) -> list[Mismatch]:
        """Of the sums of what lay in this slot."""
        found = (server.wrong(self._ready.operation, slot, rank) for server, rank in self._servers)
        return [wrong for wrong in found if wrong]
