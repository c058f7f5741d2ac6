"""Which ranks an operation runs over: all, pairs, or the groups of a split; the groups of a cell run at the same time."""

from __future__ import annotations

from collbench.operations.cell import Cell
from collbench.operations.operation import Operation

Groups = tuple[tuple[int, ...], ...]


def groups_of(operation: Operation, cell: Cell, n: int) -> Groups:
    """The groups among n ranks: one of all, those of the cell's split, or for pairs (i, i + n/2).

    These cross hosts with the usual block placement; the odd rank out rests. Raises UsageError for a split that does not fit.
    """
    if operation.pair:
        return tuple((i, i + n // 2) for i in range(n // 2))
    return cell.split.groups(n) if cell.split else (tuple(range(n)),)


def group_size(operation: Operation, cell: Cell, n: int) -> int:
    """How many of n ranks each group has; 1 where n is too small for a pair."""
    return len(next(iter(groups_of(operation, cell, n)), (0,)))
