"""A killed MPI run leaves no shared memory: its launcher's parent, its survivors or the next start on the node remove it."""

import signal
from pathlib import Path

import pytest

from collbench.launch.shared_memory import PREFIXES
from tests.cli.command import BIN
from tests.faults.launch import TIMEOUT_S

LONG = ("allreduce", "--backend", "mpi", "--ranks", "2", "--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))


def segments():
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(PREFIXES)}


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
def test_a_killed_mpi_run_leaves_no_shared_memory(launch):
    before = segments()
    one = launch(*LONG)
    assert _holds_nameless(one.pids[1]), "MPICH shares no memory here: the test proves nothing"
    one.code_after(signal.SIGKILL, 1)
    assert not segments() - before


def _holds_nameless(pid):
    """Return whether the process maps a file of MPICH that has no name any more."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return any("/dev/shm/mpich_shm_" in line and line.endswith("(deleted)") for line in lines)
