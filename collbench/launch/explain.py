"""How a launch from this shell would work: environment, host names, launchers, MPI library, problems, and commands to use."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from collbench.addresses import Family, families_of, is_loopback, is_numeric, own_addresses, resolve, route_to
from collbench.errors import UsageError
from collbench.launch import slurm
from collbench.launch.detect import detect
from collbench.launch.info import LaunchInfo, without_manager
from collbench.launch.mpi import CHOSEN, PMI_FLAGS, NotAnMpi, chosen_mpiexec, forced, managers, mpi_mismatch, mpi_name, with_chosen
from collbench.launch.network import loopback_down, missing_interface
from collbench.launch.software import difference, differing, version_of
from collbench.plugin import commands as plugin_commands
from collbench.units import plural
from collbench.untrusted import parse_json

Severity = Literal["severe", "warning", "note"]


class Problem(msgspec.Struct, frozen=True):
    """A problem of the launch, with its severity.

    "severe": the launch starts the wrong processes, or none. "warning": it works without MPI. "note": it may matter later.
    `what` is one sentence with its remedy.
    """

    severity: Severity
    what: str


# The launchers that this shell finds, with their versions: srun, sbatch, mpirun, mpiexec, torchrun, kubectl.

MPI_NAMES = ("mpirun", "mpiexec")
_NAMES = ("srun", "sbatch", *MPI_NAMES, "torchrun", "kubectl")
_OF_PYTHON = (*MPI_NAMES, "torchrun")  # wheels install these next to Python, which may be outside PATH
_VERSION_ARGUMENTS = {"kubectl": ("version", "--client")}
_TIMEOUT_S = 10.0
# By launcher the pattern of its version text, its family, and the process manager with which it starts MPI.
_FAMILIES = (
    (re.compile(r"\((?:Open MPI|OpenRTE|PRRTE)\) (\S+)"), "Open MPI", "pmix"),
    (re.compile(r"Spectrum MPI\)? v?([\d.]+)"), "Spectrum MPI", "pmix"),
    (re.compile(r"Intel\(R\) MPI Library.*?Version (\S+)"), "Intel MPI", "pmi"),
    (re.compile(r"HYDRA build details:\s+Version:\s+(\S+)"), "MPICH", "pmi"),
    (re.compile(r"^slurm(?:-wlm)? (\d\S*)"), "Slurm", ""),
    (re.compile(r"Client Version: v?(\S+)"), "Kubernetes", ""),
)
_PLUGIN = re.compile(r"^(?:srun: )?\s*((?:none|openmpi|cray_shasta|pmi\w+)(?:/\w+)?)\s*$", re.MULTILINE)


class LauncherProgram(msgspec.Struct, frozen=True):
    """A launcher's program.

    family      "Open MPI", "MPICH", "Intel MPI", "Spectrum MPI", "Slurm", "Kubernetes", "PyTorch"; "" where unknown
    version     as the program prints it, or ""
    manager     the process manager that starts MPI: "pmi", "pmix", or "" (srun: its option decides)
    first       whether its name alone starts it in a shell
    plugins     of srun: the listed values of --mpi=
    trouble     its last line of output if that is not its version, which may mean that it does not work here
    """

    name: str
    path: Path
    family: str = ""
    version: str = ""
    manager: str = ""
    first: bool = True
    plugins: tuple[str, ...] = ()
    trouble: str = ""


def launchers(env: Mapping[str, str], names: Sequence[str] = _NAMES) -> list[LauncherProgram]:
    """Return the programs with these names, in the order of PATH within each name. Those next to this Python, outside PATH, come last."""
    places = [(name, path, first) for name in names for path, first in _paths(name, env)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda place: _described(env, *place), places))


def family_of(text: str) -> tuple[str, str, str]:
    """Return (family, version, process manager) from a launcher's output; empty if not known."""
    for pattern, family, manager in _FAMILIES:
        match = pattern.search(text)
        if match:
            return family, match[1].rstrip(","), manager
    return "", "", ""


def plugins_of(text: str) -> tuple[str, ...]:
    """Return the values of --mpi= in the output of `srun --mpi=list`."""
    return tuple(dict.fromkeys(_PLUGIN.findall(text)))


def _paths(name: str, env: Mapping[str, str]) -> list[tuple[Path, bool]]:
    """Return every program of this name, and whether it is the first in PATH. A program found twice in PATH counts once."""
    inside = [Path(folder, name) for folder in env.get("PATH", "").split(os.pathsep) if folder]
    outside = [Path(sys.prefix, "bin", name)] if name in _OF_PYTHON else []
    if name in MPI_NAMES and env.get(CHOSEN):
        with suppress(NotAnMpi):  # `library` reports it
            chosen = chosen_mpiexec(env, name)
            outside = [chosen] if chosen else []
    programs = [path for path in (*inside, *outside) if path.is_file() and os.access(path, os.X_OK)]
    first = next((path for path in programs if path in inside), None)
    first_in_folder = {path.parent.resolve(): path for path in reversed(programs)}
    return [(path, path == first) for path in programs if first_in_folder[path.parent.resolve()] is path]


def _described(env: Mapping[str, str], name: str, path: Path, first: bool) -> LauncherProgram:
    if name == "torchrun":  # it would import all of torch; its version is that of this Python's torch, if it belongs to it
        belongs = path.parent.resolve() == Path(sys.prefix, "bin").resolve()
        return LauncherProgram(name, path, "PyTorch", version_of("torch") if belongs else "", first=first)
    output = _output_of(path, _VERSION_ARGUMENTS.get(name, ("--version",)), env)
    family, version, manager = family_of(output)
    if not family:
        return LauncherProgram(name, path, first=first, trouble=(output.split("\n") or [""])[-1] or "no answer")
    plugins = plugins_of(_output_of(path, ("--mpi=list",), env)) if name == "srun" else ()
    return LauncherProgram(name, path, family, version, manager, first, plugins)


def _output_of(program: Path, words: tuple[str, ...], env: Mapping[str, str]) -> str:
    """Return the program's output; "" if it cannot run, or does not answer."""
    try:
        line = [str(program), *words]
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False, env=dict(env), stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


# The MPI library that mpi4py would load, found in a separate process, since a wrong library may end the process.

_MPI_TIMEOUT_S = 30.0
# The path of the library is the kernel's, from /proc, since mpi4py itself tries several names.
_PROGRAM = """
import json, re
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
mapped = [line.split(None, 5)[-1].strip() for line in open("/proc/self/maps", errors="replace") if "/" in line]
files = [file for file in mapped if re.search(r"/libmpi[\\w-]*\\.so[^/]*$", file)]
print(json.dumps([MPI.Get_library_version(), files[0] if files else ""]))
"""


class MpiLibrary(msgspec.Struct, frozen=True):
    """The MPI library that mpi4py loads.

    `version_text`      MPI.Get_library_version(), or "" where no library is loaded
    path        the library's file, or "" where that is not known
    mpi4py      its version, or "" where it is not installed
    problem     why no library is loaded, or ""
    """

    version_text: str = ""
    path: str = ""
    mpi4py: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """The short name, like "MPICH 5.0.2"; "" without a library."""
        return mpi_name(self.version_text) if self.version_text else ""

    @property
    def managers(self) -> frozenset[str]:
        """The process managers that can start it: "pmi", "pmix"; empty without a library."""
        return managers(self.version_text) if self.version_text else frozenset()

    @property
    def srun_flags(self) -> list[str]:
        """The values of srun's --mpi= with which it can start in a step of Slurm; empty without a library."""
        return [PMI_FLAGS[manager] for manager in sorted(managers(self.version_text, "srun"))] if self.version_text else []


def library(env: Mapping[str, str]) -> MpiLibrary:
    """Return the library of this Python's mpi4py in that environment."""
    version = version_of("mpi4py")
    if not version:
        return MpiLibrary(
            problem="mpi4py is not installed: pip install 'collbench[mpi]' takes the site's MPI, 'collbench[mpich]' brings one"
        )
    try:
        line = [sys.executable, "-P", "-c", _PROGRAM]
        chosen = with_chosen(without_manager(env))
        done = subprocess.run(line, capture_output=True, text=True, timeout=_MPI_TIMEOUT_S, check=False, env=chosen)
        version_text, path = parse_json(done.stdout)
    except NotAnMpi as error:
        return MpiLibrary(mpi4py=version, problem=str(error))
    except (OSError, subprocess.TimeoutExpired) as error:
        return MpiLibrary(mpi4py=version, problem=f"mpi4py {version} did not report its MPI library: {error}")
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        setting = forced(env)
        remedy = f"correct or unset {setting}" if setting else "load the site's MPI module"
        return MpiLibrary(mpi4py=version, problem=f"mpi4py {version} finds no MPI library ({last}): {remedy}")
    return MpiLibrary(version_text, path, version)


# Host names of this launch or allocation as this host resolves them, and the problems that affect how ranks connect.

_MOST_NAMES = 32  # each needs a look-up, which may take seconds if DNS does not answer
_SHOWN = 4


class HostName(msgspec.Struct, frozen=True):
    """A host name, as this host resolves it.

    addresses   of the name; empty if it does not resolve
    reachable   its addresses without loopback: for this host those of its interfaces, for another one those of its name
    own         whether it is this host
    """

    name: str
    addresses: tuple[str, ...]
    reachable: tuple[str, ...]
    own: bool = False

    @property
    def families(self) -> frozenset[Family]:
        """The address families in which other hosts may reach it."""
        return families_of(self.reachable)


# By kind its severity, and its sentence with the remedy. {name} and {at} are of the first affected host, {names} of all.
_OF_NAMES: Mapping[str, tuple[Severity, str]] = {
    "own name is loopback": (
        "note",
        "this host's name '{name}' resolves to loopback here ({at}), as in Debian's /etc/hosts; a rank 0 on this host listens at every "
        "address, and other hosts connect to {used}; set MASTER_ADDR to choose one address",
    ),
    "own host has no address": (
        "severe",
        "this host, '{name}', has only loopback addresses, so other hosts cannot reach it: bring up its network interface",
    ),
    "meeting is loopback": (
        "warning",
        "rank 0's host '{name}' is a loopback address ({at}), by which each host reaches only itself; if ranks run on other hosts, set "
        "MASTER_ADDR to an address of rank 0's host in the network between the hosts",
    ),
    "meeting does not resolve": (
        "severe",
        "rank 0's host '{name}' does not resolve on this host: set MASTER_ADDR to its address, or fix DNS or /etc/hosts",
    ),
    "no route to meeting": (
        "severe",
        "rank 0's host '{name}' ({at}) cannot be reached from this host: no route; set MASTER_ADDR to an address that has one",
    ),
    "IPv6 only": (
        "note",
        "IPv6 addresses only: {names}; ranks meet and measure over IPv6, but MPICH's mpiexec needs IPv4 between hosts: start MPICH with "
        "srun --mpi=pmi2",
    ),
    "no common family": ("severe", "the hosts have no address family in common ({families}): give every host addresses of one family"),
}


def name_problem(kind: str, *hosts: HostName, used: Sequence[str] = ()) -> Problem:
    """Return a problem of the names of these hosts. `used`: the addresses at which other hosts connect."""
    severity, text = _OF_NAMES[kind]
    names = [host.name for host in hosts[:_SHOWN]]
    if len(hosts) > _SHOWN:
        names.append(f"{len(hosts) - _SHOWN} more")
    families = []
    for host in hosts:
        own_families = " and ".join(family.value for family in Family if family in host.families)
        families.append(f"{host.name} has only {own_families}")
    filled = text.format(
        name=hosts[0].name, at=", ".join(hosts[0].addresses), used=" or ".join(used), names=", ".join(names), families=", ".join(families)
    )
    return Problem(severity, filled)


def host_names(env: Mapping[str, str]) -> tuple[HostName, ...]:
    """Return this host, and the other hosts of a Slurm allocation, with their addresses as this host resolves them."""
    own_name = socket.gethostname()
    own_host = HostName(own_name, resolve(own_name), own_addresses(), own=True)
    nodes: Sequence[str] = ()
    if slurm.in_allocation(env):
        with suppress(UsageError):  # the detection of the launch reports it
            nodes = slurm.hosts_of(env)
    others = [name for name in nodes if name.partition(".")[0] != own_name.partition(".")[0]]
    return own_host, *map(_other, others[:_MOST_NAMES])


def _other(name: str) -> HostName:
    addresses = resolve(name)
    return HostName(name, addresses, tuple(address for address in addresses if not is_loopback(address)))


def _of_host_names(hosts: Sequence[HostName], info: LaunchInfo | None, env: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of these hosts' names, of which the first is this host, and of the name of rank 0's host."""
    own_host, *others = hosts
    several = info is not None and info.local_ranks < info.ranks
    if not own_host.reachable and any(host.reachable for host in others):  # otherwise the nodes are on one machine
        yield name_problem("own host has no address", own_host)
    elif own_host.reachable and own_host.addresses and all(map(is_loopback, own_host.addresses)):
        node_addresses = slurm.known_addresses(own_host.name) if slurm.in_allocation(env) else ()
        resolved = resolve(env.get("MASTER_ADDR", "")) if info is not None else ()
        usable = [tuple(address for address in addresses if address in own_host.reachable) for addresses in (resolved, node_addresses)]
        yield name_problem("own name is loopback", own_host, used=usable[0] or usable[1] or own_host.reachable)
    if info is not None and several and info.meeting.startswith("tcp://"):
        host = info.meeting.removeprefix("tcp://").strip("[]")
        named = _other(host)
        if not named.addresses:
            yield name_problem("meeting does not resolve", named)
        elif all(map(is_loopback, named.addresses)) and (is_numeric(host) or host.partition(".")[0] != own_host.name.partition(".")[0]):
            yield name_problem("meeting is loopback", named)
        elif not any(map(route_to, named.addresses)):
            yield name_problem("no route to meeting", named)
    reachable = [host for host in hosts if host.reachable]
    ipv6_only = [host for host in reachable if host.families == {Family.IPV6}]
    ipv4_only = [host for host in reachable if host.families == {Family.IPV4}]
    if ipv6_only and ipv4_only:
        yield name_problem("no common family", ipv4_only[0], ipv6_only[0])
    elif ipv6_only:
        yield name_problem("IPv6 only", *ipv6_only)


# The environment of this shell, by its variables: a launch, a Slurm job, a Kubernetes pod, or none of them.


def launch_of(env: Mapping[str, str]) -> tuple[LaunchInfo | None, str]:
    """Return (the launch of this process or None, why its variables are invalid or "")."""
    try:
        if waits_for_srun(env):  # an allocation in which no rank was started, which is not an error here
            env = {name: value for name, value in env.items() if name not in ("SLURM_JOB_ID", "PMIX_RANK")}
        return detect(env), ""
    except UsageError as error:
        return None, str(error)


def waits_for_srun(env: Mapping[str, str]) -> bool:
    """Return whether this is a batch script or a shell of salloc: an allocation without a step.

    Raises UsageError for an invalid step id.
    """
    return slurm.in_allocation(env) and not slurm.in_step(env)


def in_pod(env: Mapping[str, str]) -> bool:
    """Return whether this is a container of Kubernetes, which sets the address of its own service in each container."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def places(env: Mapping[str, str], info: LaunchInfo | None) -> list[str]:
    """Return a phrase for each environment of this shell; one phrase if there is none."""
    phrases = [_started(info)] if info else []
    if slurm.in_allocation(env):
        nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "?"
        step = f"in step {env.get('SLURM_STEP_ID', '?')}" if info and info.launcher == "srun" else "not in a step of srun's"
        phrases.append(f"Slurm job {env['SLURM_JOB_ID']} on {nodes} node{'' if nodes == '1' else 's'}, {step}")
    if in_pod(env):
        index = env.get("JOB_COMPLETION_INDEX", "")
        phrases.append(f"pod {env.get('HOSTNAME', 'without a name')} of Kubernetes{f', index {index} of its job' if index else ''}")
    return phrases or ["not started by a launcher, and not in a scheduler's job"]


def _started(info: LaunchInfo) -> str:
    if info.launcher == "srun":
        starter = f"srun --mpi={info.facts.get('srun_mpi', 'none')}"
    elif info.launcher == "mpirun":
        starter = f"mpirun of {info.facts.get('mpirun', 'an unknown MPI')}"
    elif "kubernetes" in info.facts:
        starter = f"Kubernetes ({info.facts['kubernetes']})"
    else:
        starter = info.facts.get("variables", info.launcher)
    manager = {"pmi": "PMI", "pmix": "PMIx"}.get(info.mpi or "", "")
    starts = f"it can start MPI by {manager}" if manager else "it cannot start MPI"
    return f"{starter} started this as rank {info.rank} of {info.ranks}; {starts}"


# The commands to use in this shell: one for each way to start ranks, with the launcher that fits its MPI library.

_EMITTED = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intel"}
_MEASURED = ("allreduce",)


class CommandLine(msgspec.Struct, frozen=True):
    """A command to type, and its purpose."""

    purpose: str
    line: str


def typed(
    env: Mapping[str, str], info: LaunchInfo | None, loaded: MpiLibrary, programs: Sequence[LauncherProgram], *, serves: bool = True
) -> Iterator[CommandLine]:
    """Yield the commands to use, the most suitable first. serves: whether this process's launch, if any, starts all ranks."""
    program = _program(env)
    launched = info is not None and info.ranks > 1
    if launched and serves:
        yield CommandLine("in this launch, as each of its ranks", shlex.join([*program, *_MEASURED]))
    if not launched:
        yield CommandLine("2 ranks on this host", shlex.join([*program, *_MEASURED, "--ranks", "2"]))
    if not launched or not (serves or (info and info.launcher == "srun")):
        yield from _by_mpirun(program, loaded, programs)
    torchrun = next((launcher for launcher in programs if launcher.name == "torchrun"), None)
    if torchrun and not launched:
        word = torchrun.name if torchrun.first else str(torchrun.path)
        words = [word, "--standalone", "--nproc-per-node", "2", "--no-python", *program, *_MEASURED, "--backend", "gloo"]
        yield CommandLine("2 ranks on this host, started like a training", shlex.join(words))
    srun = next((launcher for launcher in programs if launcher.name == "srun" and launcher.family), None)
    if srun:
        start = ["srun", f"--mpi={_flag(loaded, srun)}", "--kill-on-bad-exit=1"]
        one_each = ["--ntasks-per-node=1", *program, *_MEASURED]
        if slurm.in_allocation(env):
            instead = ", in place of this step" if info and info.launcher == "srun" else ""
            yield CommandLine(f"all nodes of this Slurm job{instead}", shlex.join([*start, *one_each]))
        else:
            yield CommandLine("2 nodes of Slurm", shlex.join([*start, "--nodes=2", *one_each]))
            yield from _by_job("2 nodes of Slurm, by a batch script", program, ["slurm", "--nodes", "2"])
    if in_pod(env) or any(launcher.name == "kubectl" for launcher in programs):
        yield from _by_job("pods of Kubernetes", program, ["kubernetes", "--nodes", "2", "--image", "IMAGE"])


def _by_job(purpose: str, program: list[str], kind: list[str]) -> Iterator[CommandLine]:
    if "emit" in plugin_commands():
        yield CommandLine(purpose, shlex.join([*program, "emit", *kind, "--", *_MEASURED]))


def _program(env: Mapping[str, str]) -> list[str]:
    """Return the command `collbench` of this shell, or the words that start it with this Python."""
    in_path = shutil.which("collbench", path=env.get("PATH"))
    beside_python = Path(sys.prefix, "bin", "collbench")
    if in_path and Path(in_path).parent.resolve() == beside_python.parent.resolve():
        return ["collbench"]
    return [str(beside_python)] if os.access(beside_python, os.X_OK) else [sys.executable, "-P", "-m", "collbench"]


def _by_mpirun(program: list[str], loaded: MpiLibrary, programs: Sequence[LauncherProgram]) -> Iterator[CommandLine]:
    fitting = [launcher for launcher in programs if launcher.name in MPI_NAMES and launcher.manager and launcher.manager in loaded.managers]
    if not fitting:
        return
    launcher = next((launcher for launcher in fitting if launcher.first), fitting[0])
    words = [launcher.name if launcher.first else str(launcher.path), "-n", "2", *program, *_MEASURED, "--backend", "mpi"]
    yield CommandLine("2 ranks on this host, over MPI", shlex.join(words))
    if launcher.family in _EMITTED:
        kind = ["mpirun", "--library", _EMITTED[launcher.family], "--nodes", "2", "--hosts", "HOSTS"]
        yield from _by_job("hosts that ssh reaches, by a script", program, kind)


def srun_line(env: Mapping[str, str]) -> list[str] | None:
    """Return the words that start collbench with one task on each node of this Slurm allocation; None without srun."""
    srun = next(iter(launchers(env, ("srun",))), None)
    if srun is None:
        return None
    return [str(srun.path), f"--mpi={_flag(library(env), srun)}", "--kill-on-bad-exit=1", "--ntasks-per-node=1", *_program(env)]


def _flag(loaded: MpiLibrary, srun: LauncherProgram) -> str:
    """Return the --mpi= value that the library and this Slurm support. PMI-2 is preferred, as the simplest for both."""
    flags = loaded.srun_flags or ["none"]
    return next((flag for flag in flags if flag in srun.plugins), flags[0])


_STARTS_MPI = ("srun", "mpirun")
_SEVERITY: Mapping[str, Severity] = {
    "collbench": "severe", "torch": "warning", "mpi": "warning", "nccl": "warning", "rccl": "warning", "python": "note",
    "native": "note",
}  # fmt: skip
_REMEDY = {"collbench": ": ranks of two builds do not join; install the same build on all nodes"}


class Explanation(msgspec.Struct, frozen=True):
    """The content of `collbench doctor --launch`.

    hosts: for a launch on several hosts, their software as from `software.grouped`.
    """

    places: tuple[str, ...]
    names: tuple[HostName, ...]
    library: MpiLibrary
    launchers: tuple[LauncherProgram, ...]
    problems: tuple[Problem, ...]
    commands: tuple[CommandLine, ...]
    hosts: tuple[Mapping[str, Any], ...] = ()

    @property
    def severe(self) -> bool:
        """Return whether any problem is severe."""
        return any(problem.severity == "severe" for problem in self.problems)


def with_hosts(explanation: Explanation, hosts: Sequence[Mapping[str, Any]], silent: int) -> Explanation:
    """Return the explanation with the software of the launch's hosts, of which `silent` did not reply."""
    problems = [Problem(_SEVERITY[name], difference(name, versions) + _REMEDY.get(name, "")) for name, versions in differing(hosts).items()]
    if silent:
        text = (
            f"{plural(silent, 'host')} of this launch did not answer rank 0: their software is unknown; check that they reach rank 0's "
            "host by UDP, and whether COLLBENCH_SECRET, or the secret in the home directory, is the same there"
        )
        problems.append(Problem("warning", text))
    return replace(explanation, hosts=tuple(hosts), problems=(*explanation.problems, *problems))


def rank_of(env: Mapping[str, str]) -> int:
    """Return this process's rank in its launch, 0 without one. Only rank 0 examines the host and prints."""
    info, _ = launch_of(env)
    return info.rank if info else 0


def explained(env: Mapping[str, str]) -> Explanation:
    """Return how a launch from this shell would work. It starts each launcher once for its version, and mpi4py in a separate process."""
    info, broken = launch_of(env)
    programs = launchers(env)
    loaded = library(env)
    names = host_names(env)
    launch_problems = [Problem("severe", broken)] if broken else []
    mismatch = mpi_mismatch(loaded.version_text, info, env) if info and loaded.version_text else None
    if info and mismatch:  # its launcher cannot start this library
        launch_problems.append(Problem("severe" if info.launcher in _STARTS_MPI else "warning", mismatch))
    if info and info.advice and info.ranks == 1:  # of several ranks srun does not show whether --kill-on-bad-exit is set
        launch_problems.append(Problem("note", "; ".join(info.advice)))
    problems = [*launch_problems, *_of_host_names(names, info, env), *_of_mpirun(programs, loaded), *_of_srun(programs, loaded)]
    missing = missing_interface(env)
    if missing:
        problems.append(Problem("warning", missing.render()))
    without_loopback = loopback_down()
    if without_loopback:
        problems.append(Problem("severe", without_loopback))
    if loaded.problem:
        problems.append(Problem("warning" if loaded.mpi4py else "note", loaded.problem))
    serves = not any(problem.severity == "severe" for problem in launch_problems)
    lines = tuple(typed(env, info, loaded, programs, serves=serves))
    return Explanation(tuple(places(env, info)), names, loaded, tuple(programs), tuple(problems), lines)


def mixed_mpi(env: Mapping[str, str]) -> Problem | None:
    """Return the problem of an mpirun or mpiexec in PATH that is of another MPI than mpi4py's, or None. Runs only these programs."""
    programs = launchers(env, MPI_NAMES)
    return next(_of_mpirun(programs, library(env)), None) if any(program.first for program in programs) else None


def _of_mpirun(programs: Sequence[LauncherProgram], loaded: MpiLibrary) -> Iterator[Problem]:
    """Yield the problems of an mpirun and mpiexec that are first in PATH but belong to another MPI."""
    mpiexecs = [program for program in programs if program.name in MPI_NAMES]
    wrong = [program for program in mpiexecs if program.first and program.manager and program.manager not in loaded.managers]
    if not wrong or not loaded.managers:
        return
    right = next((program for program in mpiexecs if program.manager in loaded.managers), None)
    instead = f"type {right.path}, or put {right.path.parent} first in PATH" if right else f"load the module of {loaded.name}"
    for family, program in {program.family: program for program in reversed(wrong)}.items():
        names = " and ".join(other.name for other in wrong if other.family == family)
        yield Problem(
            "severe",
            f"{names} in {program.path.parent}, first in PATH, {'is' if ' and ' not in names else 'are'} {family}'s, but mpi4py loads "
            f"{loaded.name}: N ranks would be N jobs of one rank, or MPI_Init aborts; {instead}",
        )


def _of_srun(programs: Sequence[LauncherProgram], loaded: MpiLibrary) -> Iterator[Problem]:
    """Yield the problem of a Slurm that was built without support for the library."""
    srun = next((program for program in programs if program.name == "srun"), None)
    if srun is None or not srun.plugins or not loaded.managers:
        return
    flags = loaded.srun_flags
    if not any(plugin.partition("/")[0].startswith(flag) for plugin in srun.plugins for flag in flags):
        has = ", ".join(srun.plugins)
        yield Problem(
            "warning",
            f"this srun cannot start {loaded.name}: --mpi={flags[0]} is missing, it has {has}; use mpirun inside the job, "
            "or have the administrator install the plug-in",
        )
