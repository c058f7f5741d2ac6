"""Barrier: no rank leaves before every rank has entered. It moves no data; only its time is reported."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Operation, needs_out_of_place
from collbench.operations.program import Call


def _mpi(x: Binding) -> Iterator[Call]:
    yield x.call("MPI_Barrier", x.comm)


def _torch(x: Binding) -> Iterator[Call]:
    yield x.call("barrier", group=x.comm)


BARRIER = Operation(
    name="barrier",
    summary="no rank leaves before every rank has entered",
    bus_factor=lambda n: 0,
    expected_blocks=lambda x: [],
    is_barrier=True,
    needs=needs_out_of_place("barrier"),
    steps={"mpi": _mpi, "torch": _torch},  # NCCL has none
)
