"""Finds the operations: those of collbench.operations.builtin, and the entry points "collbench.operations"."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from collbench.errors import UsageError
from collbench.operations import builtin
from collbench.operations.operation import Operation

# What other packages bring by entry points. One that is broken is one sentence, and in nobody else's way.


class Broken(UsageError):
    """A plug-in that cannot be used: why, with its name, place and package; and the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}: {remedy}")
        self.why, self.remedy = why, remedy


@dataclass(frozen=True)
class Plugin:
    """An entry point of another package: {name = "module:what"}.

    package   that has it, as pip names it
    clash     why nobody can ask for it by its name; "" where that is its own
    """

    name: str
    point: Any
    package: str
    clash: str = ""

    def load(self) -> Any:
        """What the entry point leads to. Raises Broken, whatever its module raises."""
        if self.clash:
            raise self.broken(self.clash, f"rename its entry point, or uninstall {self.package}")
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise self.broken(f"does not load ({_line(error)})") from error

    def broken(self, what: str, remedy: str = "") -> Broken:
        """That it `what`, like "holds no Operation"."""
        return Broken(f"plug-in '{self.name}' ({self.point.value}) {what}", remedy or f"mend or uninstall {self.package}")

    def tried(self, what: str, call: Any) -> Any:
        """What a call of the plug-in's returns. Raises Broken, whatever that raises."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise self.broken(f"raises in {what} ({_line(error)})") from error


def plugins(group: str, taken: Collection[str]) -> Mapping[str, Plugin]:
    """The plug-ins of a group by what users type: the name, or name@package where the name is one of `taken`."""
    from importlib.metadata import entry_points

    found: dict[str, Plugin] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist else "the package that brings it"
        own = Plugin(point.name, point, package)
        other = found.get(point.name)
        if point.name in taken:
            found[f"{point.name}@{package}"] = Plugin(point.name, point, package, "has a name that is collbench's own")
        elif other:
            found[point.name] = Plugin(point.name, point, package, f"has the name of another, of the package {other.package}")
        else:
            found[point.name] = own
    return found


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


_reserved: frozenset[str] = frozenset()


def reserve(commands: frozenset[str]) -> None:
    """Reserve command names for the command line: an operation of a plug-in cannot have them. Call it before `operations`."""
    global _reserved  # noqa: PLW0603 - the command line knows its commands, and stands above this package
    if commands != _reserved:
        _reserved = commands
        _found.cache_clear()


def _in(module: ModuleType) -> Iterator[Operation]:
    return (value for value in vars(module).values() if isinstance(value, Operation))


def _own() -> Iterator[Operation]:
    for module in iter_modules(builtin.__path__):
        yield from _in(import_module(f"{builtin.__name__}.{module.name}"))


def _inside(plugin: Plugin, known: Mapping[str, Operation], commands: frozenset[str]) -> list[Operation]:
    """A plug-in's own operations: an Operation, or those of a module. Raises Broken."""
    found: Any = plugin.load()
    inside = list(_in(found)) if isinstance(found, ModuleType) else [found]
    if not inside or not all(isinstance(operation, Operation) for operation in inside):
        raise plugin.broken("holds no Operation")
    new = [one for one in inside if known.get(one.name) is not one]  # a module may have imported some of ours
    for one in new:
        if one.name in known:
            raise plugin.broken(f"has an operation '{one.name}', which there is already")
        if (one.command or one.name) in commands:
            raise plugin.broken(f"has an operation of the command '{one.command or one.name}', which is another one of collbench's own")
    return new


@cache
def _found() -> tuple[dict[str, Operation], dict[str, Broken]]:
    """(operations by name, what is wrong with plug-ins by theirs)."""
    found = {operation.name: operation for operation in _own()}
    wrong: dict[str, Broken] = {}
    taken = _reserved | {name for one in found.values() for name in (one.name, one.command)}
    for name, plugin in plugins("collbench.operations", ()).items():
        try:
            found |= {operation.name: operation for operation in _inside(plugin, found, _reserved)}
        except Broken as error:
            wrong[f"{name}@{plugin.package}" if name in taken else name] = error
    return found, wrong


def operations() -> dict[str, Operation]:
    """All operations by name, the project's own first; what a plug-in has under a name that there is already is left out."""
    return _found()[0]


def broken() -> dict[str, Broken]:
    """What is wrong with plug-ins whose operations are not among `operations`, by the plug-in's name."""
    return _found()[1]


def commands() -> dict[str, list[Operation]]:
    """Operations by the subcommand that runs them."""
    by_command: dict[str, list[Operation]] = {}
    for operation in sorted(operations().values(), key=lambda one: one.windowed):  # latency before bandwidth
        by_command.setdefault(operation.command or operation.name, []).append(operation)
    return by_command
