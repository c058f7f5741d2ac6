"""Barrier: no rank leaves before every rank has entered. It moves no data; only its time is reported."""

from __future__ import annotations

from collbench.operations.operation import Operation, needs_out_of_place

BARRIER = Operation(
    name="barrier",
    summary="no rank leaves before every rank has entered",
    bus_factor=lambda n: 0,
    expected_blocks=lambda x: [],
    is_barrier=True,
    needs=needs_out_of_place("barrier"),
    steps={"mpi": lambda x: [x.call("MPI_Barrier", x.comm)], "torch": lambda x: [x.call("barrier", group=x.comm)]},  # NCCL has none
)
