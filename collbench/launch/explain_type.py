"""What to type in this shell: a line for each way to start ranks that it has, with the launcher that fits its MPI library."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.launch import slurm
from collbench.launch.explain_found import MPI_NAMES, Found
from collbench.launch.explain_mpi import Library
from collbench.launch.explain_places import in_pod
from collbench.launch.info import LaunchInfo

FLAG = {"pmi": "pmi2", "pmix": "pmix"}
_EMITTED = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intel"}
_MEASURED = ("allreduce",)


@dataclass(frozen=True)
class Typed:
    """A line to type, and what for."""

    purpose: str
    line: str


def typed(
    env: Mapping[str, str], info: LaunchInfo | None, loaded: Library, found: Sequence[Found], *, serves: bool = True
) -> Iterator[Typed]:
    """The lines, nearest first; `serves`: whether the launch that this process is in, if any, starts what it is to start."""
    program = _program(env)
    if info and info.ranks > 1 and not serves:
        yield from () if info.launcher == "srun" else _by_mpirun(program, loaded, found)
    elif info and info.ranks > 1:
        yield Typed("in this launch, as each of its ranks", shlex.join([*program, *_MEASURED]))
    else:
        yield Typed("2 ranks on this host", shlex.join([*program, *_MEASURED, "--ranks", "2"]))
        yield from _by_mpirun(program, loaded, found)
        yield from _by_torchrun(program, found)
    yield from _by_slurm(env, info, program, loaded, found)
    if in_pod(env) or any(each.name == "kubectl" for each in found):
        yield Typed(
            "pods of Kubernetes", shlex.join([*program, "emit", "kubernetes", "--nodes", "2", "--image", "IMAGE", "--", *_MEASURED])
        )


def _program(env: Mapping[str, str]) -> list[str]:
    """Return the command `collbench` of this shell, or else the words that start it with this Python."""
    there, ours = shutil.which("collbench", path=env.get("PATH")), Path(sys.prefix, "bin", "collbench")
    if there and Path(there).parent.resolve() == ours.parent.resolve():
        return ["collbench"]
    return [str(ours)] if os.access(ours, os.X_OK) else [sys.executable, "-P", "-m", "collbench"]


def _by_mpirun(program: list[str], loaded: Library, found: Sequence[Found]) -> Iterator[Typed]:
    fitting = [each for each in found if each.name in MPI_NAMES and each.manager and each.manager in loaded.managers]
    if not fitting:
        return
    one = next((each for each in fitting if each.first), fitting[0])
    name = one.name if one.first else str(one.path)
    yield Typed("2 ranks on this host, over MPI", shlex.join([name, "-n", "2", *program, *_MEASURED, "--backend", "mpi"]))
    if one.family in _EMITTED:
        words = ["emit", "mpirun", "--library", _EMITTED[one.family], "--nodes", "2", "--hosts", "HOSTS", "--", *_MEASURED]
        yield Typed("hosts that ssh reaches, by a script", shlex.join([*program, *words]))


def _by_torchrun(program: list[str], found: Sequence[Found]) -> Iterator[Typed]:
    for one in [each for each in found if each.name == "torchrun"][:1]:
        name = one.name if one.first else str(one.path)
        words = [name, "--standalone", "--nproc-per-node", "2", "--no-python", *program, *_MEASURED]
        yield Typed("2 ranks on this host, as training starts", shlex.join([*words, "--backend", "gloo"]))


def _by_slurm(
    env: Mapping[str, str], info: LaunchInfo | None, program: list[str], loaded: Library, found: Sequence[Found]
) -> Iterator[Typed]:
    there = next((each for each in found if each.name == "srun" and each.family), None)
    if there is None:
        return
    srun = ["srun", f"--mpi={_flag(loaded, there)}", "--kill-on-bad-exit=1"]
    if slurm.in_allocation(env):
        instead = ", in place of this step" if info and info.launcher == "srun" else ""
        yield Typed(f"all nodes of this Slurm job{instead}", shlex.join([*srun, "--ntasks-per-node=1", *program, *_MEASURED]))
    else:
        yield Typed("2 nodes of Slurm", shlex.join([*srun, "--nodes=2", "--ntasks-per-node=1", *program, *_MEASURED]))
        yield Typed("2 nodes of Slurm, by a batch script", shlex.join([*program, "emit", "slurm", "--nodes", "2", "--", *_MEASURED]))


def _flag(loaded: Library, srun: Found) -> str:
    """What the library takes and this Slurm has; PMI-2 of two that fit, which asks least of either."""
    wanted = [FLAG[manager] for manager in sorted(loaded.managers)] or ["none"]
    return next((flag for flag in wanted if flag in srun.plugins), wanted[0])
