"""How this shell would launch: where it is, host names, the launchers it finds, the MPI library, what does not fit, and what to type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from collbench.launch.explain_found import MPI_NAMES, Found, launchers
from collbench.launch.explain_mpi import Library, library
from collbench.launch.explain_names import HostName, findings, host_names
from collbench.launch.explain_places import launch_of, places
from collbench.launch.explain_type import FLAG, Typed, typed
from collbench.launch.info import LaunchInfo
from collbench.launch.pairing import mpi_mismatch
from collbench.launch.software import differing, sentence

_STARTS_MPI = ("srun", "mpirun")
Severity = Literal["severe", "warning", "note"]
_SEVERITY: Mapping[str, Severity] = {
    "collbench": "severe", "torch": "warning", "mpi": "warning", "nccl": "warning", "python": "note", "native": "note",
}  # fmt: skip
_REMEDY = {"collbench": ": ranks of two builds do not join; install the same build on all nodes"}


@dataclass(frozen=True)
class Problem:
    """Something that does not fit: "severe" starts the wrong thing, or nothing; "warning" leaves MPI out; "note" may matter later.

    `what` is one sentence with its remedy.
    """

    severity: Severity
    what: str


@dataclass(frozen=True)
class Explanation:
    """All that `collbench doctor --launch` shows; hosts: of a launch on several, the software of each, as `software.grouped` gives it."""

    places: tuple[str, ...]
    names: tuple[HostName, ...]
    library: Library
    launchers: tuple[Found, ...]
    problems: tuple[Problem, ...]
    commands: tuple[Typed, ...]
    hosts: tuple[Mapping[str, Any], ...] = ()

    @property
    def severe(self) -> bool:
        """Whether something would start wrongly."""
        return any(problem.severity == "severe" for problem in self.problems)


def with_hosts(told: Explanation, hosts: Sequence[Mapping[str, Any]], silent: int) -> Explanation:
    """The same with the software of the launch's hosts, of which `silent` did not answer."""
    problems = [Problem(_SEVERITY[name], sentence(name, versions) + _REMEDY.get(name, "")) for name, versions in differing(hosts).items()]
    if silent:
        those = "1 host of this launch" if silent == 1 else f"{silent} hosts of this launch"
        problems.append(
            Problem(
                "warning",
                f"{those} did not answer rank 0: their software is not known; see whether they reach rank 0's host by UDP, and whether "
                "COLLBENCH_SECRET, or the secret in the home directory, is the same there",
            )
        )
    return replace(told, hosts=tuple(hosts), problems=(*told.problems, *problems))


def rank_of(env: Mapping[str, str]) -> int:
    """This process's rank in its launch, 0 where it is in none: rank 0 alone is to look around and to speak."""
    info, _ = launch_of(env)
    return info.rank if info else 0


def explained(env: Mapping[str, str]) -> Explanation:
    """What this shell would do. It starts each launcher once, to ask its version, and mpi4py in a process of its own."""
    info, broken = launch_of(env)
    found, loaded, names = launchers(env), library(env), host_names(env)
    of_launch = [*([Problem("severe", broken)] if broken else []), *_of_this_launch(info, loaded, env)]
    of_names = [Problem(each.severity, each.sentence()) for each in findings(names, info, env)]
    problems = (
        *of_launch,
        *of_names,
        *_of_mpirun(found, loaded),
        *_of_srun(found, loaded),
        *_without_library(loaded),
    )
    serves = not any(problem.severity == "severe" for problem in of_launch)
    lines = tuple(typed(env, info, loaded, found, serves=serves))
    return Explanation(tuple(places(env, info)), names, loaded, tuple(found), problems, lines)


def mixed_mpi(env: Mapping[str, str]) -> Problem | None:
    """An mpirun or mpiexec of another MPI than mpi4py's, first in this shell's PATH. It asks these two alone, and mpi4py."""
    found = launchers(env, MPI_NAMES)
    return next(_of_mpirun(found, library(env)), None) if any(each.first for each in found) else None


def _of_this_launch(info: LaunchInfo | None, loaded: Library, env: Mapping[str, str]) -> Iterator[Problem]:
    """A launcher that has started this process, and cannot start this library: no mistake of one that never could."""
    if info is None:
        return
    mismatch = mpi_mismatch(loaded.said, info, env) if loaded.said else None
    if mismatch:
        yield Problem("severe" if info.launcher in _STARTS_MPI else "warning", mismatch)
    if info.advice and info.ranks == 1:  # of several ranks srun does not say whether it was told to --kill-on-bad-exit
        yield Problem("note", info.advice)


def _of_mpirun(found: Sequence[Found], loaded: Library) -> Iterator[Problem]:
    """mpirun and mpiexec that a shell would take by their names, but that are another MPI's."""
    wrong = [each for each in found if each.name in MPI_NAMES and each.first and each.manager and each.manager not in loaded.managers]
    if not wrong or not loaded.managers:
        return
    right = next((each for each in found if each.name in MPI_NAMES and each.manager in loaded.managers), None)
    instead = f"type {right.path}, or put {right.path.parent} first in PATH" if right else f"load the module of {loaded.name}"
    for family, each in {each.family: each for each in reversed(wrong)}.items():
        names = " and ".join(one.name for one in wrong if one.family == family)
        yield Problem(
            "severe",
            f"{names} in {each.path.parent}, first in PATH, {'is' if ' and ' not in names else 'are'} {family}'s, but mpi4py loads "
            f"{loaded.name}: N ranks would be N jobs of one rank, or MPI_Init aborts; {instead}",
        )


def _of_srun(found: Sequence[Found], loaded: Library) -> Iterator[Problem]:
    """A Slurm that was built without what the library needs."""
    srun = next((each for each in found if each.name == "srun"), None)
    if srun is None or not srun.plugins or not loaded.managers:
        return
    wanted = [FLAG[manager] for manager in sorted(loaded.managers)]
    if not any(plugin.partition("/")[0].startswith(flag) for plugin in srun.plugins for flag in wanted):
        has = ", ".join(srun.plugins)
        yield Problem(
            "warning",
            f"this srun cannot start {loaded.name}: --mpi={wanted[0]} is missing, it has {has}; use mpirun inside the job, "
            "or have the administrator install the plug-in",
        )


def _without_library(loaded: Library) -> Iterator[Problem]:
    if loaded.problem:
        yield Problem("warning" if loaded.mpi4py else "note", loaded.problem)
