"""The software of each host: the build of collbench, and the versions of Python, torch, MPI and NCCL."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from collbench import __version__
from collbench.units import listed

# The build of this collbench: protocol number, version, and a digest of the installed sources.
#
# Ranks of two builds may measure differently, or fail to decode each other's messages, so a launch needs the same build on all nodes. The
# digest covers the installed Python and C sources and tables, so that it changes with a patched file. The compiled `_loop.so` is excluded,
# since it differs between folders, compilers and processors. `native` returns its digest, which run.json has. Reading the sources takes
# 20 ms from the page cache (3.6 MB).

PROTOCOL = 4  # of the control plane; increase it if ranks of earlier builds cannot take part
_PACKAGE = Path(__file__).parents[1]
_SOURCES = (".py", ".c", ".toml")
_VERSION_FILE = "_version.py"  # has the commit: the same sources in a wheel and in a checkout have one digest
_DIGITS = 12
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}")


class Build(msgspec.Struct, frozen=True):
    """A build of collbench: protocol and version numbers, and a digest of the sources, in hexadecimal."""

    protocol: int
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.version}+{self.digest}"

    def as_json(self) -> list[Any]:
        """Return the fields for messages and for run.json."""
        return [self.protocol, self.version, self.digest]


def read_build(value: Any) -> Build | None:
    """Return the build that another process sent; None for another value, such as an older collbench's."""
    if not (isinstance(value, list) and len(value) == 3):
        return None
    protocol, version, digest = value
    words = isinstance(version, str) and isinstance(digest, str) and _WORD.fullmatch(version) and _WORD.fullmatch(digest)
    return Build(protocol, version, digest) if words and type(protocol) is int and 0 <= protocol < 1 << 16 else None


@cache
def own() -> Build:
    """Return the build of this process."""
    return Build(PROTOCOL, __version__, digest_of(_PACKAGE))


@cache
def native() -> str:
    """Return the digest of the compiled loop; "" where none was built."""
    return _digest(sorted(_PACKAGE.glob("native/_loop*.so")), _PACKAGE)


def digest_of(package: Path) -> str:
    """Return the digest of a package's sources: the same for the same relative paths and contents in any folder."""
    return _digest(sorted(_sources(str(package))), package)


def _digest(files: list[Path] | list[str], package: Path) -> str:
    digest = hashlib.sha256()
    start = len(str(package)) + 1  # of a path below it
    for file in files:
        with open(file, "rb") as opened:  # noqa: PTH123 (Path.open takes a third of the time again)
            content = opened.read()
        digest.update(f"{os.fspath(file)[start:]} {len(content)}\n".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()[:_DIGITS] if files else ""


def _sources(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path) if entry.name != "__pycache__" else ()
            elif entry.name.endswith(_SOURCES) and entry.name != _VERSION_FILE:
                yield entry.path


def mismatch(rank: int, host: str, build: Build | None, rank_0_host: str, rank_0_build: Build | None) -> str:
    """Return the error about a rank of another build than rank 0's. None: an older collbench, which does not send its build."""
    return (
        f"rank {rank} ({host}) runs collbench {_named(build)}, rank 0 ({rank_0_host}) {_named(rank_0_build)}: "
        "install the same build on all nodes"
    )


def _named(build: Build | None) -> str:
    return str(build) if build else "of an older build"


NAMES = {
    "collbench": "collbench",
    "native": "the compiled loop",
    "python": "Python",
    "torch": "torch",
    "mpi": "MPI",
    "nccl": "NCCL",
    "rccl": "RCCL",
}
# a difference between these changes the measurement; the loop is compiled from the same sources
VERSIONS = ("python", "torch", "mpi", "nccl")
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_SHOWN = 8  # hosts
_LONGEST = 80  # characters of a version
Software = dict[str, str]


def installed() -> Software:
    """Return the packages installed for this Python, from metadata without imports. MPI is not included: it is not a Python package."""
    versions = {"python": platform.python_version(), "torch": version_of("torch"), "nccl": next(filter(None, map(version_of, _NCCL)), "")}
    return {name: version for name, version in versions.items() if version}


def version_of(package: str) -> str:
    """Return the version of an installed package; "" without it. `importlib.metadata` would import 30 modules into each rank for this."""
    wanted = _project_name(package)
    for folder in sys.path:
        for name in _metadata_folders(folder or "."):
            project, _, suffix = name.partition("-")
            if _project_name(project) == wanted:  # Python's version follows in an .egg-info
                return suffix.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
    return ""


def _project_name(name: str) -> str:
    """Return a name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _metadata_folders(folder: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))  # noqa: PTH208
    except OSError:
        return ()


def grouped(by_host: Iterable[tuple[str, Mapping[str, str]]]) -> list[dict[str, Any]]:
    """Return one entry for each combination of versions, in order of appearance: {"hosts": [...], "python": ..., ...}."""
    hosts_of_versions: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, versions in by_host:
        hosts = hosts_of_versions.setdefault(tuple((name, str(versions[name])[:_LONGEST]) for name in NAMES if versions.get(name)), [])
        if host not in hosts:
            hosts.append(host)
    return [{"hosts": hosts, **dict(versions)} for versions, hosts in hosts_of_versions.items()]


def differing(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return the software that differs between hosts: by name ("python"), then by version ("missing" without one), the hosts."""
    all_groups = list(groups)
    differing_software: dict[str, dict[str, list[str]]] = {}
    for name in NAMES:
        versions: dict[str, list[str]] = {}
        for group in all_groups:
            versions.setdefault(str(group.get(name) or "missing"), []).extend(map(str, group.get("hosts", ())))
        if len(versions) > 1:
            differing_software[name] = versions
    return differing_software


def difference(name: str, versions: Mapping[str, Sequence[str]]) -> str:
    """Return "Python differs between the hosts: 3.11.2 on n1, n2; 3.12.1 on n3" for an entry of `differing`."""
    hosts = (f"{version} on {listed(names, _SHOWN)}" for version, names in versions.items())
    return f"{NAMES.get(name, name)} differs between the hosts: {'; '.join(hosts)}"
