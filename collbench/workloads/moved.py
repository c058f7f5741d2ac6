"""How many bytes a step moves, by the conventions of busbw: what each rank has to send or receive at least, whatever carries it.

Of an even collective that is nccl-tests' factor times the size, the same at every rank of a group. Of a message, and of uneven parts,
it is what the rank really sends to others or receives from them, whichever is more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.operations.traffic import elements

if TYPE_CHECKING:
    from collbench.operations.operation import Operation
    from collbench.workloads.exchange import Exchange, Step


def moved_bytes(step: Step, ranks: int) -> tuple[float, ...]:
    """Bytes of one step, by rank. Raises UsageError for an operation that is unknown."""
    moved = [0.0] * ranks
    for exchange in step.exchanges:
        for group in exchange.groups:
            for rank, each in zip(group, bytes_of(exchange, len(group)), strict=True):
                moved[rank] += each
    return tuple(moved)


def operation_of(exchange: Exchange) -> Operation:
    """What it runs. Raises UsageError for a name that no operation has."""
    found = operations().get(exchange.operation)
    if found is None:
        raise UsageError(f"{exchange.what}: there is no operation '{exchange.operation}': choose from {', '.join(operations())}")
    return found


def bytes_of(exchange: Exchange, n: int) -> tuple[float, ...]:
    """Bytes of one exchange, all its `times`, by rank of a group of n."""
    operation = operation_of(exchange)
    if operation.uneven:
        return _uneven(exchange, operation, n)
    return (exchange.times * exchange.size_bytes * operation.bus_factor(n),) * n


def _uneven(exchange: Exchange, operation: Operation, n: int) -> tuple[float, ...]:
    """The larger of what a rank sends to others and what it gets from them."""
    from collbench.operations.dtypes import dtype_named

    width = dtype_named(exchange.dtype).size
    parts = elements(exchange.traffic, n, exchange.size_bytes // (operation.parts(n) * width)).copy()
    for rank in range(n):
        parts[rank, rank] = 0
    busier = zip(parts.sum(axis=1).tolist(), parts.sum(axis=0).tolist(), strict=True)
    return tuple(float(exchange.times * width * max(each)) for each in busier)
