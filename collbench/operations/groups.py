"""Which ranks an operation runs over: all, pairs, or the groups of a split; the groups of a cell run at the same time."""

from __future__ import annotations

from collbench.operations.cell import Cell
from collbench.operations.operation import Operation

Groups = tuple[tuple[int, ...], ...]
_NAMED = 8  # pairs named one by one


def groups_of(operation: Operation, cell: Cell, n: int) -> Groups:
    """The groups among n ranks: one of all, those of the cell's split, or for pairs (i, i + n/2).

    These cross hosts with the usual block placement; the odd rank out rests. Raises UsageError for a split that does not fit.
    """
    if operation.pair:
        return tuple((i, i + n // 2) for i in range(n // 2))
    return cell.split.groups(n) if cell.split else (tuple(range(n)),)


def group_size(operation: Operation, cell: Cell, n: int) -> int:
    """How many of n ranks each group has; a pair has two, whether there is one or not. Raises UsageError as `groups_of` does."""
    return 2 if operation.pair else len(groups_of(operation, cell, n)[0])


def group_name(operation: Operation, cell: Cell, groups: Groups) -> str:
    """What rows call the groups: "all", the split, or the pairs: "0-2,1-3"; the first and last of many."""
    if not operation.pair:
        return str(cell.split) if cell.split and len(groups) > 1 else "all"
    names = [f"{a}-{b}" for a, b in groups]
    return ",".join(names) if len(names) <= _NAMED else f"{names[0]}…{names[-1]}"
