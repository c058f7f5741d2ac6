"""The mpiexec that belongs to this Python's mpi4py, its command line for ranks on this host, and what its exit code means."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from collbench.errors import FAILED, FINE, INTERRUPTED, NO_VERDICT, TERMINATED, USAGE, UsageError

_PASSED_ON = frozenset({FINE, USAGE, NO_VERDICT, FAILED, INTERRUPTED, TERMINATED})
_CPUS = Path("/sys/devices/system/cpu")


def find_mpiexec(env: Mapping[str, str]) -> Path | None:
    """The mpiexec beside this Python (the wheels put it there), else the first in PATH, else None."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpiexec", path=env.get("PATH"))
    return Path(found) if found else None


def mpiexec_family(mpiexec: Path) -> str:
    """ "Open MPI", "MPICH" or "other" by what `mpiexec --version` prints. Raises UsageError if it cannot be run."""
    try:
        answer = subprocess.run([str(mpiexec), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{mpiexec} cannot be run ({error}): install mpi4py with its MPI, `pip install collbench[mpich]`") from error
    text = answer.stdout + answer.stderr
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "Open MPI"
    return "MPICH" if "HYDRA" in text else "other"


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once: what Open MPI calls slots."""
    allowed = os.sched_getaffinity(0)
    try:
        return len({(_CPUS / f"cpu{n}/topology/thread_siblings_list").read_text(encoding="ascii") for n in allowed})
    except OSError:
        return len(allowed)


def command(mpiexec: Path, ranks: int, program: Sequence[str], cores: int | None = None) -> list[str]:
    """mpiexec's command line for `ranks` of `program` on this host."""
    family = mpiexec_family(mpiexec)
    flags: list[str] = []
    if family == "MPICH":
        flags = ["-launcher", "fork", "-host", "localhost"]
    elif family == "Open MPI" and ranks > (physical_cores() if cores is None else cores):
        flags = ["--oversubscribe"]  # only then: it also unbinds ranks from cores
    return [str(mpiexec), *flags, "-n", str(ranks), *program]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What mpiexec needs beside the environment: Open MPI refuses root otherwise."""
    if os.geteuid() != 0:
        return dict(env)
    return {**env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def exit_meaning(code: int, who: str = "a rank") -> tuple[int, str]:
    """Our exit code, and a sentence if mpiexec's own code tells of a killed rank (`who`) or of mpiexec failing itself.

    Hydra gives the signal's number for a killed rank, prterun 128 + the number; hydra ORs the ranks' codes before MPI_Init.
    """
    if code in _PASSED_ON:
        return code, ""
    number = -code if code < 0 else code - 128 if code > 128 else code
    if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGTERM):
        return FAILED, f"mpiexec ended with code {code}: {who} was killed by signal {number} ({signal.Signals(number).name})"
    return FAILED, f"mpiexec ended with code {code}: see what it printed above"
