"""The launchers that this shell finds, and what each says of itself: srun, sbatch, mpirun, mpiexec, torchrun, kubectl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

MPI_NAMES = ("mpirun", "mpiexec")
_NAMES = ("srun", "sbatch", *MPI_NAMES, "torchrun", "kubectl")
_OF_PYTHON = (*MPI_NAMES, "torchrun")  # wheels put these beside Python, which need not be in PATH
_ASKED = {"kubectl": ("version", "--client")}
_TIMEOUT_S = 10.0
# What each prints of itself, its family, and the process manager by which it starts MPI.
_FAMILIES = (
    (re.compile(r"\((?:Open MPI|OpenRTE|PRRTE)\) (\S+)"), "Open MPI", "pmix"),
    (re.compile(r"Spectrum MPI\)? v?([\d.]+)"), "Spectrum MPI", "pmix"),
    (re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)"), "Intel MPI", "pmi"),
    (re.compile(r"HYDRA build details:\s+Version:\s+(\S+)"), "MPICH", "pmi"),
    (re.compile(r"^slurm(?:-wlm)? (\d\S*)"), "Slurm", ""),
    (re.compile(r"Client Version: v?(\S+)"), "Kubernetes", ""),
)
_PLUGIN = re.compile(r"^(?:srun: )?\s*((?:none|openmpi|cray_shasta|pmi\w+)(?:/\w+)?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """A launcher's program.

    family      "Open MPI", "MPICH", "Intel MPI", "Spectrum MPI", "Slurm", "Kubernetes", "PyTorch"; "" where it does not say
    version     as it says itself, or ""
    manager     by what it starts MPI: "pmi", "pmix", or "" (srun: what it is told)
    first       whether it is what a shell starts that is told its name alone
    plugins     of srun: what --mpi= may say, as far as it tells
    trouble     the last thing that it says where that is not what it is: it may not work here
    """

    name: str
    path: Path
    family: str = ""
    version: str = ""
    manager: str = ""
    first: bool = True
    plugins: tuple[str, ...] = ()
    trouble: str = ""


def launchers(env: Mapping[str, str], names: Sequence[str] = _NAMES) -> list[Found]:
    """All of these names, in the order of PATH within each name; those beside this Python come last where PATH does not lead to them."""
    places = [(name, path, first) for name in names for path, first in _paths(name, env)]
    with ThreadPoolExecutor(max_workers=8) as asking:
        return list(asking.map(lambda place: _described(env, *place), places))


def family_of(text: str) -> tuple[str, str, str]:
    """Family, version and process manager by what a launcher prints of itself; empty where it is not known."""
    for pattern, family, manager in _FAMILIES:
        match = pattern.search(text)
        if match:
            return family, match[1].rstrip(","), manager
    return "", "", ""


def plugins_of(text: str) -> tuple[str, ...]:
    """What `srun --mpi=list` prints: the words that --mpi= takes."""
    return tuple(dict.fromkeys(_PLUGIN.findall(text)))


def _paths(name: str, env: Mapping[str, str]) -> list[tuple[Path, bool]]:
    """Every program of this name, and whether it is the first in PATH; one that PATH leads to by two ways counts once."""
    inside = [Path(folder, name) for folder in env.get("PATH", "").split(os.pathsep) if folder]
    beside = [Path(sys.prefix, "bin", name)] if name in _OF_PYTHON else []
    there = [path for path in inside if _runs(path)]
    every = [*there, *(path for path in beside if _runs(path))]
    found = {path.parent.resolve(): path for path in reversed(every)}
    return [(path, path in there[:1]) for path in every if found[path.parent.resolve()] is path]


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _described(env: Mapping[str, str], name: str, path: Path, first: bool) -> Found:
    if name == "torchrun":
        return Found(name, path, "PyTorch", _torch(path), first=first)
    said = _said(path, _ASKED.get(name, ("--version",)), env)
    family, version, manager = family_of(said)
    if not family:
        return Found(name, path, first=first, trouble=(said.split("\n") or [""])[-1] or "no answer")
    plugins = plugins_of(_said(path, ("--mpi=list",), env)) if name == "srun" else ()
    return Found(name, path, family, version, manager, first, plugins)


def _said(program: Path, words: tuple[str, ...], env: Mapping[str, str]) -> str:
    """What it prints; nothing where it cannot be run, or does not answer."""
    try:
        line = [str(program), *words]
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False, env=dict(env), stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def _torch(torchrun: Path) -> str:
    """The version of this Python's torch, if that torchrun belongs to it: asked itself it would import all of torch."""
    try:
        return metadata.version("torch") if torchrun.parent.resolve() == Path(sys.prefix, "bin").resolve() else ""
    except metadata.PackageNotFoundError:
        return ""
