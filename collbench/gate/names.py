"""What cells are called in the gate's sentences."""

from __future__ import annotations

from collbench.gate.allocation import COLUMNS, Cell
from collbench.units import format_size


def name_of(cell: Cell) -> str:
    """A cell in few words: "allreduce 64 MiB mpi"; what else names it stands in its columns."""
    columns = dict(zip(COLUMNS, cell, strict=True))
    size = [format_size(columns["size_bytes"])] if columns["size_bytes"] else []
    return " ".join([str(columns["operation"]), *size, str(columns["backend"])])
