"""What other packages bring by entry points. One that is broken is one sentence, and in nobody else's way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from collbench.errors import UsageError


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
