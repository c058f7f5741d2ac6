"""The software of each host: the build of collbench, and the versions of Python, torch, MPI and NCCL."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

NAMES = {"collbench": "collbench", "native": "the compiled loop", "python": "Python", "torch": "torch", "mpi": "MPI", "nccl": "NCCL"}
VERSIONS = ("python", "torch", "mpi", "nccl")  # of these a difference changes what is measured; the loop is compiled from the same sources
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_SHOWN, _LONGEST = 8, 80
Software = dict[str, str]


def installed() -> Software:
    """What is installed for this Python, by its metadata: nothing is imported. MPI is not in it: a Python package does not name it."""
    found = {"python": platform.python_version(), "torch": _version("torch"), "nccl": next(filter(None, map(_version, _NCCL)), "")}
    return {name: version for name, version in found.items() if version}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def grouped(by_host: Iterable[tuple[str, Mapping[str, str]]]) -> list[dict[str, Any]]:
    """One entry for each combination of versions: {"hosts": [...], "python": ..., ...}, in the order in which they come."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, versions in by_host:
        hosts = found.setdefault(tuple((name, str(versions[name])[:_LONGEST]) for name in NAMES if versions.get(name)), [])
        if host not in hosts:
            hosts.append(host)
    return [{"hosts": hosts, **dict(versions)} for versions, hosts in found.items()]


def differing(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """What is not the same on all hosts: by name ("python"), then by version ("missing" where there is none), the hosts."""
    every = list(groups)
    found: dict[str, dict[str, list[str]]] = {}
    for name in NAMES:
        versions: dict[str, list[str]] = {}
        for group in every:
            versions.setdefault(str(group.get(name) or "missing"), []).extend(map(str, group.get("hosts", ())))
        if len(versions) > 1:
            found[name] = versions
    return found


def sentence(name: str, versions: Mapping[str, list[str]]) -> str:
    """ "Python differs between the hosts: 3.11.2 on n1, n2; 3.12.1 on n3"."""
    told = (f"{version} on {', '.join(hosts[:_SHOWN])}{' …' if len(hosts) > _SHOWN else ''}" for version, hosts in versions.items())
    return f"{NAMES[name]} differs between the hosts: {'; '.join(told)}"
