"""Why a backend cannot be opened here: one fact per kind, each with its cause and its remedy. Those about GPUs: device/unavailable.py."""

# ruff: noqa: D102 - `render`, `cause` and `remedy` are described in the base classes
from __future__ import annotations

from collbench.device.unavailable import Obstacle
from collbench.reason import Fact


class NotInstalled(Obstacle, Fact, frozen=True):
    """A package that the backend needs is not installed."""

    package: str
    install: str
    needed_by: str = ""

    def cause(self) -> str:
        return f"{self.package} is not installed" + (f", but {self.needed_by} needs it" if self.needed_by else "")

    def remedy(self) -> str:
        return self.install


class UnknownVersion(Obstacle, Fact, frozen=True):
    """The installed version is not one that this backend supports."""

    package: str
    version: str
    supported: str
    install: str

    def cause(self) -> str:
        return f"{self.package} {self.version} is not supported (supported: {self.supported})"

    def remedy(self) -> str:
        return self.install


class DoesNotLoad(Obstacle, Fact, frozen=True):
    """A package or library is installed but cannot be loaded."""

    package: str
    error: str
    install: str

    def cause(self) -> str:
        return f"{self.package} does not load ({self.error})"

    def remedy(self) -> str:
        return self.install


class WrongBuild(Obstacle, Fact, frozen=True):
    """The installed build lacks a part that the backend needs, or was made for another version of it."""

    package: str
    version: str
    defect: str
    install: str

    def cause(self) -> str:
        return f"{self.package} {self.version} {self.defect}"

    def remedy(self) -> str:
        return self.install


class Misconfigured(Obstacle, Fact, frozen=True):
    """An environment variable has a value that this backend cannot be used with."""

    variable: str
    problem: str
    fix: str

    def cause(self) -> str:
        return f"{self.variable} {self.problem}"

    def remedy(self) -> str:
        return self.fix


class LibraryNotFound(Obstacle, Fact, frozen=True):
    """No shared library of that name loads."""

    library: str
    error: str
    install: str

    def cause(self) -> str:
        return f"no {self.library} library found ({self.error})"

    def remedy(self) -> str:
        return self.install


class BrokenPlugin(Obstacle, Fact, frozen=True):
    """The backend comes from a plug-in that does not fulfil the contract."""

    plugin: str
    place: str
    defect: str
    fix: str

    def cause(self) -> str:
        return f"plug-in '{self.plugin}' ({self.place}) {self.defect}"

    def remedy(self) -> str:
        return self.fix
