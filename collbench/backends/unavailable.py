"""Why a backend cannot be opened here: one fact per kind, each with its cause and remedy. device/unavailable.py has those about GPUs."""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

from collbench.device.unavailable import Obstacle
from collbench.errors import RunFailed
from collbench.reason import Fact


class BackendObstacle(Obstacle):
    """The base of these facts. fix: the command or change that makes the backend available."""

    __slots__ = ()
    fix: str

    def remedy(self) -> str:
        return self.fix


class NotInstalled(BackendObstacle, Fact, frozen=True):
    """A package that the backend needs is not installed."""

    package: str
    fix: str
    needed_by: str = ""

    def cause(self) -> str:
        return f"{self.package} is not installed" + (f", but {self.needed_by} needs it" if self.needed_by else "")


class UnknownVersion(BackendObstacle, Fact, frozen=True):
    """The installed version is not one that this backend supports."""

    package: str
    version: str
    supported: str
    fix: str

    def cause(self) -> str:
        return f"{self.package} {self.version} is not supported (supported: {self.supported})"


class DoesNotLoad(BackendObstacle, Fact, frozen=True):
    """A package or library is installed but cannot be loaded."""

    package: str
    error: str
    fix: str

    def cause(self) -> str:
        return f"{self.package} does not load ({self.error})"


class WrongBuild(BackendObstacle, Fact, frozen=True):
    """The installed build lacks a part that the backend needs, or was made for another version of it."""

    package: str
    version: str
    defect: str
    fix: str

    def cause(self) -> str:
        return f"{self.package} {self.version} {self.defect}"


class Misconfigured(BackendObstacle, Fact, frozen=True):
    """An environment variable has a value that this backend does not support."""

    variable: str
    problem: str
    fix: str

    def cause(self) -> str:
        return f"{self.variable} {self.problem}"


class LibraryNotFound(BackendObstacle, Fact, frozen=True):
    """No shared library of that name can be loaded."""

    library: str
    error: str
    fix: str

    def cause(self) -> str:
        return f"no {self.library} library found ({self.error})"


class BrokenPlugin(BackendObstacle, Fact, frozen=True):
    """The plug-in of the backend violates the contract."""

    plugin: str
    place: str
    defect: str
    fix: str

    def cause(self) -> str:
        return f"plug-in '{self.plugin}' ({self.place}) {self.defect}"


class LibraryUnusable(RunFailed):
    """A library of this host cannot be used, for the reason in `obstacle`."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.render())
        self.obstacle = obstacle
