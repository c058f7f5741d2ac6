"""The registry of operations: those of collbench.operations.builtin, and the entry points "collbench.operations"."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import walk_tb
from types import ModuleType
from typing import Any

from collbench.errors import UsageError
from collbench.operations import builtin
from collbench.operations.operation import Operation

# Plug-ins of other packages, found by entry points. A broken one is reported in one sentence and does not affect others.


class BrokenEntry(UsageError):
    """A plug-in that cannot be used.

    plugin   the name of its entry point; place: "module:object", as the entry point has it
    defect   what is wrong, after the subject "plug-in 'name' (place)": "does not load (ImportError: …)"
    remedy   what the user can do
    """

    def __init__(self, plugin: str, place: str, defect: str, remedy: str) -> None:
        super().__init__(f"plug-in '{plugin}' ({place}) {defect}: {remedy}")
        self.plugin, self.place, self.defect, self.remedy = plugin, place, defect, remedy


@dataclass(frozen=True)
class EntryPoint:
    """An entry point of another package: {name = "module:object"}.

    package   the package's name in pip
    clash     why it cannot be selected by its name; "" where the name is unique
    """

    name: str
    point: Any
    package: str
    clash: str = ""

    def load(self) -> Any:
        """Return the object of the entry point. Raises BrokenEntry for any exception of its module."""
        if self.clash:
            raise self.broken(self.clash, f"rename its entry point, or uninstall {self.package}")
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise self.broken(f"does not load ({_line(error)})") from error

    def broken(self, defect: str, remedy: str = "") -> BrokenEntry:
        """Return the error with this defect, such as "contains no Operation"."""
        return BrokenEntry(self.name, self.point.value, defect, remedy or f"fix or uninstall {self.package}")

    def tried(self, what: str, call: Any) -> Any:
        """Return what a call of the plug-in returns. Raises BrokenEntry for any exception."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise self.broken(f"raises in {what} ({_line(error)})") from error


def plugins(group: str, taken: Collection[str]) -> Mapping[str, EntryPoint]:
    """Return the plug-ins of a group by the name that users type: the entry point's, or name@package where that is one of `taken`."""
    if not _is_declared(group):
        return {}
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist else "the package that provides it"
        other, is_taken = found.get(point.name), point.name in taken
        clash = "has a name that collbench itself uses" if is_taken else ""
        if other and not clash:
            clash = f"has the same name as a plug-in of package {other.package}"
        found[f"{point.name}@{package}" if is_taken else point.name] = EntryPoint(point.name, point, package, clash)
    return found


def _is_declared(group: str) -> bool:
    """Whether an installed package may declare plug-ins of a group. Most have none, and importlib.metadata takes a fifth of a start."""
    for folder in sys.path:
        if Path(folder).is_file():  # a zip archive: only importlib.metadata reads it
            return True
        for file in Path(folder).glob("*-[iI][nN][fF][oO]/entry_points.txt"):
            with suppress(OSError):
                if f"[{group}]".encode() in file.read_bytes():
                    return True
    return False


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def failed_plugin(error: BaseException) -> str | None:
    """Return the plug-in and the error in one sentence if an exception passed through a plug-in's code, else None.

    "plug-in 'ring' (entry point collbench.backends, ring_code:Ring, of ring-maker 1.2) failed: ValueError: no ranks". If the code has
    several entry points, they are those of the class that failed, or all.
    """
    from importlib.metadata import entry_points

    where: list[tuple[str, str]] = []  # (package, class or function), innermost last
    cause: BaseException | None = error
    while cause:
        for frame, _ in walk_tb(cause.__traceback__):
            where.append((str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_qualname.partition(".")[0]))
        cause = cause.__cause__ or cause.__context__
    known = [point for group in ("collbench.backends", "collbench.operations") for point in entry_points(group=group)]
    known = [point for point in known if point.module.partition(".")[0] in {package for package, _ in where} - {"collbench"}]
    named = [point for point in known if (point.module.partition(".")[0], point.attr) in where] or known
    texts = [
        f"'{point.name}' (entry point {point.group}, {point.value}{f', of {point.dist.name} {point.dist.version}' if point.dist else ''})"
        for point in named
    ]
    return f"plug-in {' or '.join(texts)} failed: {_line(error)}" if texts else None


_reserved: frozenset[str] = frozenset()


def reserve(commands: frozenset[str]) -> None:
    """Reserve command names for the command line: an operation of a plug-in cannot have them. Call it before `operations`."""
    global _reserved  # noqa: PLW0603 - the command line passes its commands down to this package
    if commands != _reserved:
        _reserved = commands
        _found.cache_clear()


def _in(module: ModuleType) -> Iterator[Operation]:
    return (value for value in vars(module).values() if isinstance(value, Operation))


def _own() -> Iterator[Operation]:
    for module in iter_modules(builtin.__path__):
        yield from _in(import_module(f"{builtin.__name__}.{module.name}"))


def _inside(plugin: EntryPoint, known: Mapping[str, Operation], commands: frozenset[str]) -> list[Operation]:
    """Return a plug-in's own operations: an Operation, or those of a module. Raises BrokenEntry."""
    found: Any = plugin.load()
    inside = list(_in(found)) if isinstance(found, ModuleType) else [found]
    if not inside or not all(isinstance(operation, Operation) for operation in inside):
        raise plugin.broken("contains no Operation")
    new = [one for one in inside if known.get(one.name) is not one]  # a module may have imported built-in ones
    for one in new:
        if one.name in known:
            raise plugin.broken(f"defines the operation '{one.name}', which already exists")
        if (one.command or one.name) in commands:
            raise plugin.broken(f"defines an operation of the command '{one.command or one.name}', which is another command of collbench")
    return new


@cache
def _found() -> tuple[dict[str, Operation], dict[str, BrokenEntry]]:
    """Return (operations by name, errors of broken plug-ins by name)."""
    found = {operation.name: operation for operation in _own()}
    wrong: dict[str, BrokenEntry] = {}
    taken = _reserved | {name for one in found.values() for name in (one.name, one.command)}
    for name, plugin in plugins("collbench.operations", ()).items():
        try:
            found |= {operation.name: operation for operation in _inside(plugin, found, _reserved)}
        except BrokenEntry as error:
            wrong[f"{name}@{plugin.package}" if name in taken else name] = error
    return found, wrong


def operations() -> dict[str, Operation]:
    """Return the operations that users can name, the built-in ones first.

    A plug-in's operation with a name that already exists is omitted.
    """
    return {name: operation for name, operation in _found()[0].items() if not operation.internal}


def every_operation() -> dict[str, Operation]:
    """Return the operations by name, with the internal ones."""
    return _found()[0]


def broken() -> dict[str, BrokenEntry]:
    """Return the errors of plug-ins with operations that are not in `operations`, by the plug-in's name."""
    return _found()[1]


def commands() -> dict[str, list[Operation]]:
    """Return the operations by the subcommand that runs them."""
    by_command: dict[str, list[Operation]] = {}
    for operation in sorted(operations().values(), key=lambda one: one.windowed):  # latency before bandwidth
        by_command.setdefault(operation.command or operation.name, []).append(operation)
    return by_command
