"""Finds the operations: every module of this room that defines one, and the entry points "collbench.operations"."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from collbench.errors import UsageError
from collbench.operations.operation import Operation

# The room's own furniture. Everything else in this folder is an operation; only those are imported for `--help`.
FURNITURE = frozenset({
    "__init__", "cell", "check", "digits", "dtypes", "groups", "layout", "operation", "plan", "program", "registry", "split", "sweeps",
    "tournament", "traffic", "traffic_file",
})  # fmt: skip


def _in(module: ModuleType) -> Iterator[Operation]:
    return (value for value in vars(module).values() if isinstance(value, Operation))


def _own() -> Iterator[Operation]:
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem not in FURNITURE:
            yield from _in(import_module(f"collbench.operations.{file.stem}"))


def _plugins() -> Iterator[Operation]:
    from importlib.metadata import entry_points

    for point in entry_points(group="collbench.operations"):
        try:
            found = point.load()
        except Exception as error:
            raise UsageError(f"plug-in '{point.name}' ({point.value}) does not load: {error}; mend or uninstall it") from error
        inside = list(_in(found)) if isinstance(found, ModuleType) else [found]
        if not inside or not all(isinstance(operation, Operation) for operation in inside):
            raise UsageError(f"plug-in '{point.name}' ({point.value}) holds no Operation: mend or uninstall it")
        yield from inside


@cache
def operations() -> dict[str, Operation]:
    """All operations by name, the project's own first."""
    found: dict[str, Operation] = {}
    for operation in (*_own(), *_plugins()):
        found.setdefault(operation.name, operation)
    return found


def commands() -> dict[str, list[Operation]]:
    """Operations by the subcommand that runs them."""
    by_command: dict[str, list[Operation]] = {}
    for operation in sorted(operations().values(), key=lambda one: one.windowed):  # latency before bandwidth
        by_command.setdefault(operation.command or operation.name, []).append(operation)
    return by_command
