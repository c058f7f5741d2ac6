"""Barrier: no rank leaves before every rank has entered. Nothing is moved: its time alone is its figure."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.cell import Cell
from collbench.operations.operation import Binding, Operation, Reason
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Barrier", x.comm)


def _torch(x: Binding) -> Iterator[Call]:
    yield x.call("barrier", group=x.comm)


def _needs(n: int, cell: Cell) -> Reason | None:
    return "a barrier has no buffers that could be one: leave --in-place out" if cell.in_place else None


BARRIER = Operation(
    name="barrier",
    summary="no rank leaves before every rank has entered",
    bus_factor=lambda n: 0,
    arrives=lambda x: [],
    meets=True,
    needs=_needs,
    steps={"mpi": _mpi, "torch": _torch},  # NCCL has none
)
