"""The names in a suite that depend on what is installed: operations, backends, types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from collbench.errors import UsageError
from collbench.operations.dtypes import DTYPES, dtype_named
from collbench.operations.form import nearest
from collbench.operations.operation import Operation
from collbench.operations.registry import broken, commands, operations
from collbench.operations.suite import Suite, Table

_MOVING: tuple[Callable[[Operation], bool], str] = (lambda operation: not operation.meets, "operations that move data")
# What only some operations have: the key, whether an operation has it, and what to call those that do.
_CONCERNS: dict[str, tuple[Callable[[Operation], bool], str]] = {
    "redops": (lambda operation: operation.reduces, "operations that reduce"),
    "roots": (lambda operation: operation.rooted, "operations with a root"),
    "window": (lambda operation: operation.windowed, "p2p_bandwidth, p2p_bidirectional, put_bandwidth and get_bandwidth"),
    "traffic": (lambda operation: operation.uneven, "alltoallv"),
    "skew": (lambda operation: operation.uneven, "alltoallv"),
    "streams": (lambda operation: operation.pair and not operation.one_sided, "p2p"),
    "sizes": _MOVING,
    "dtypes": _MOVING,
    "buffers": _MOVING,
    "in_place": _MOVING,
    "split": (lambda operation: not operation.pair, "collectives, not for pairs"),
}


def operations_of(names: Sequence[str]) -> tuple[Operation, ...]:
    """The operations by their own names or by a command's ("p2p" stands for three), each once. KeyError for an unknown name."""
    by_name = operations()
    return tuple({one.name: one for name in names for one in commands().get(name) or [by_name[name]]}.values())


def concerns(key: str, chosen: Sequence[Operation]) -> bool:
    """Whether a key of a sweep means something for some of the operations."""
    has, _ = _CONCERNS.get(key, (lambda _: True, ""))
    return any(has(operation) for operation in chosen)


def whose(key: str) -> str:
    """What to call the operations that a key of a sweep means something for: "alltoallv", "operations with a root"."""
    return _CONCERNS[key][1]


def check_names(suite: Suite, backends: Collection[str]) -> None:
    """Raises UsageError, one sentence with the place and the nearest known name, for an unknown operation, backend or type.

    Also for a key of a sweep that concerns none of its operations.
    """
    for table in suite.sweeps:
        wrong = next(_wrong(table, backends), None)
        if wrong:
            raise UsageError(f"suite {table.file}, {table.where}: {wrong}")


def _wrong(table: Table, backends: Collection[str]) -> Iterator[str]:
    known_operations = dict.fromkeys([*commands(), *operations()])
    yield from (f"operation {name!r}: {broken()[name]}" for name in table.values["operations"] if name in broken())
    yield from _unknown("operation", table.values["operations"], known_operations)
    yield from _unknown("backend", table.values.get("backends", ()), backends)
    yield from (f"dtype {name!r} is unknown: {nearest(name, DTYPES)}" for name in table.values.get("dtypes", ()) if not _is_type(name))
    chosen = operations_of(table.values["operations"])
    for key in table.own:
        if not concerns(key, chosen):
            yield f"{key} is for {whose(key)}, and this sweep has none: take it out, or put it below [defaults]"


def _unknown(what: str, names: Sequence[Any], known: Collection[str]) -> Iterator[str]:
    return (f"{what} {name!r} is unknown: {nearest(name, known)}" for name in names if name not in known)


def _is_type(name: str) -> bool:
    try:
        return bool(dtype_named(name))
    except UsageError:
        return False
