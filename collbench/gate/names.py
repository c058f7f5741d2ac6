"""What cells are called in the gate's sentences."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.gate.allocation import COLUMNS, Cell
from collbench.units import format_size

_MOST_NAMED = 4


def name_of(cell: Cell) -> str:
    """A cell in few words: "allreduce 64 MiB mpi"; what else names it stands in its columns."""
    columns = dict(zip(COLUMNS, cell, strict=True))
    size = [format_size(columns["size_bytes"])] if columns["size_bytes"] else []
    return " ".join([str(columns["operation"]), *size, str(columns["backend"])])


def names_of(cells: Sequence[Cell]) -> str:
    """Several cells, the first ones by name: "allreduce 8 B mpi, allreduce 16 B mpi and 12 more"; equal names once."""
    names = list(dict.fromkeys(map(name_of, cells)))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def counted(number: int, what: str) -> str:
    """ "1 launch", "3 launches"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"
