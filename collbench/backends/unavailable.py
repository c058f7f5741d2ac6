"""Why a backend cannot be opened here: one fact per kind, each with its cause and remedy. device/unavailable.py has those about GPUs."""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

from collbench.device.unavailable import Obstacle
from collbench.errors import RunFailed
from collbench.reason import Fact


class BackendObstacle(Obstacle):
    """The base of these facts. fix: the command or change that makes the backend available."""

    __slots__ = ()
    REMEDY = "{fix}"


class NotInstalled(BackendObstacle, Fact, frozen=True):
    """A package that the backend needs is not installed."""

    package: str
    fix: str
    needed_by: str = ""

    def cause(self) -> str:
        return f"{self.package} is not installed" + (f", but {self.needed_by} needs it" if self.needed_by else "")


class UnknownVersion(BackendObstacle, Fact, frozen=True):
    """The installed version is not one that this backend supports."""

    CAUSE = "{package} {version} is not supported (supported: {supported})"
    package: str
    version: str
    supported: str
    fix: str


class DoesNotLoad(BackendObstacle, Fact, frozen=True):
    """A package or library is installed but cannot be loaded."""

    CAUSE = "{package} does not load ({error})"
    package: str
    error: str
    fix: str


class WrongBuild(BackendObstacle, Fact, frozen=True):
    """The installed build lacks a part that the backend needs, or was made for another version of it."""

    CAUSE = "{package} {version} {defect}"
    package: str
    version: str
    defect: str
    fix: str


class Misconfigured(BackendObstacle, Fact, frozen=True):
    """An environment variable has a value that this backend does not support."""

    CAUSE = "{variable} {problem}"
    variable: str
    problem: str
    fix: str


class LibraryNotFound(BackendObstacle, Fact, frozen=True):
    """No shared library of that name can be loaded."""

    CAUSE = "no {library} library found ({error})"
    library: str
    error: str
    fix: str


class BrokenPlugin(BackendObstacle, Fact, frozen=True):
    """The plug-in of the backend violates the contract."""

    CAUSE = "plug-in '{plugin}' ({place}) {defect}"
    plugin: str
    place: str
    defect: str
    fix: str


class LibraryUnusable(RunFailed):
    """A library of this host cannot be used, for the reason in `obstacle`."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.render())
        self.obstacle = obstacle
