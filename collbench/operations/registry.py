"""The registry of operations: those of collbench.operations.builtin, and the entry points "collbench.operations"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from collbench.operations import builtin
from collbench.operations.operation import Operation
from collbench.plugin import BrokenEntry, EntryPoint, entries

_reserved: Callable[[], frozenset[str]] = frozenset


def reserve(commands: Callable[[], frozenset[str]]) -> None:
    """Reserve the names that the function returns for the command line: an operation of a plug-in cannot have them.

    Call it before `operations`. The function is called only if there are operations of plug-ins.
    """
    global _reserved  # noqa: PLW0603 - the command line passes its commands down to this package
    if commands != _reserved:
        _reserved = commands
        _registered.cache_clear()


def _in(module: ModuleType) -> Iterator[Operation]:
    return (value for value in vars(module).values() if isinstance(value, Operation))


def _defined_by(plugin: EntryPoint, existing: Mapping[str, Operation], commands: frozenset[str]) -> list[Operation]:
    """Return a plug-in's own operations: an Operation, or those of a module. Raises BrokenEntry."""
    content: Any = plugin.load()
    defined = list(_in(content)) if isinstance(content, ModuleType) else [content]
    if not defined or not all(isinstance(operation, Operation) for operation in defined):
        raise plugin.broken("contains no Operation")
    new = [operation for operation in defined if existing.get(operation.name) is not operation]  # a module may have imported built-in ones
    for operation in new:
        if operation.name in existing:
            raise plugin.broken(f"defines the operation '{operation.name}', which already exists")
        command = operation.command or operation.name
        if command in commands:
            raise plugin.broken(f"defines an operation of the command '{command}', which is another command of collbench")
    return new


@cache
def _registered() -> tuple[dict[str, Operation], dict[str, BrokenEntry]]:
    """Return (operations by name, errors of broken plug-ins by name)."""
    modules = (import_module(f"{builtin.__name__}.{module.name}") for module in iter_modules(builtin.__path__))
    by_name = {operation.name: operation for module in modules for operation in _in(module)}
    errors: dict[str, BrokenEntry] = {}
    plugins = entries("collbench.operations", ())
    reserved = _reserved() if plugins else frozenset()
    used_names = reserved | {name for operation in by_name.values() for name in (operation.name, operation.command)}
    for name, plugin in plugins.items():
        try:
            by_name |= {operation.name: operation for operation in _defined_by(plugin, by_name, reserved)}
        except BrokenEntry as error:
            errors[f"{name}@{plugin.package}" if name in used_names else name] = error
    return by_name, errors


def operations() -> dict[str, Operation]:
    """Return the operations that users can name, the built-in ones first.

    A plug-in's operation with a name that already exists is omitted.
    """
    return {name: operation for name, operation in _registered()[0].items() if not operation.internal}


def every_operation() -> dict[str, Operation]:
    """Return the operations by name, with the internal ones."""
    return _registered()[0]


def broken() -> dict[str, BrokenEntry]:
    """Return the errors of plug-ins with operations that are not in `operations`, by the plug-in's name."""
    return _registered()[1]


def commands() -> dict[str, list[Operation]]:
    """Return the operations by the subcommand that runs them."""
    by_command: dict[str, list[Operation]] = {}
    for operation in sorted(operations().values(), key=lambda operation: operation.windowed):  # latency before bandwidth
        by_command.setdefault(operation.command or operation.name, []).append(operation)
    return by_command
