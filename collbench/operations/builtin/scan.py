"""Scan: each rank gets the reduction of the buffers of ranks 0 to itself. Exscan: of the ranks before it; rank 0 gets nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _mpi_exscan(x: Binding) -> Iterator[Call]:
    """Rank 0 has no receive elements. Out of place it passes another address than that of its own elements: MPICH rejects equal ones."""
    recv = x.recv if x.rank or x.case.in_place else x.scratch
    yield x.call("MPI_Exscan", x.unless_in_place(x.send), recv, x.count, x.type, x.redop, x.comm)


SCAN = Operation(
    name="scan",
    summary="every rank gets the reduction of the buffers of ranks 0 to itself",
    reduces=True,
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests has no scan; in a chain, each rank passes the whole size on once
    expected_blocks=lambda x: [Block(range(x.rank + 1), at=0, count=x.count)],
    steps={"mpi": lambda x: [x.call("MPI_Scan", x.unless_in_place(x.send), x.recv, x.count, x.type, x.redop, x.comm)]},
    cpu_model="sum",
)
# MPI 4.1, 6.11.2: rank 0's receive buffer is not significant, so rank 0 expects nothing. In place, the result replaces own elements.
EXSCAN = replace(
    SCAN,
    name="exscan",
    summary="every rank gets the reduction of the buffers of the ranks before it",
    expected_blocks=lambda x: [Block(range(x.rank), at=0, count=x.count)] if x.rank else [],
    steps={"mpi": _mpi_exscan},
)
