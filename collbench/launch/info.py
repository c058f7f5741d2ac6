"""The launcher's description of this process: its rank, the number of ranks, and where rank 0 listens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from collbench.addresses import bracketed
from collbench.errors import UsageError

# Reading launchers' environment variables strictly, and leaving them out of what a child inherits.

_MAX_DIGITS = 9
# Variables of a process manager for one process. A child must not have them, since MPI_Init would abort.
_MANAGER = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",
    "OMPI_WORLD_",
    "MPI_LOCAL",
    "PALS_",
    "MV2_COMM_WORLD_",
    "I_MPI_INFO_",
)
INTEL_HYDRA = "I_MPI_HYDRA_UUID"  # only Intel MPI's mpiexec sets it, once per launch
_MANAGER_NAMES = frozenset({"PRTE_LAUNCHED", "OMPI_FILE_LOCATION", "OMPI_UNIVERSE_SIZE", "SLURM_MPI_TYPE", INTEL_HYDRA})
# mpiexec reads these, and then distributes its ranks over the allocation, or waits forever for a Slurm step inside a step.
_SCHEDULER = ("SLURM_", "SLURMD_", "PBS_", "LSB_", "LS_", "SGE_", "PE_HOSTFILE", "HYDRA_HOST_FILE")
_KEPT = frozenset({"SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CONF", "PBS_JOBID", "LSB_JOBID"})


def number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the integer in variable `name`, or `default` where it is not set. Raises UsageError with the variable and its value."""
    text = env.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise UsageError(f"{name}={env.get(name, '')!r} is not a whole number: unset {name}, or start collbench through its launcher again")
    return int(text)


def place(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """Return (rank, number of ranks) from two variables. Raises UsageError unless 0 ≤ rank < size."""
    rank = number(env, rank_name)
    size = number(env, size_name)
    if rank >= size:
        raise UsageError(f"{rank_name}={rank} is not below {size_name}={size}: ranks count from 0; correct or unset both variables")
    return rank, size


def local_place(env: Mapping[str, str], rank_name: str, size_name: str, ranks: int) -> tuple[int, int]:
    """Return local rank and local ranks, (0, 1) if the launcher does not set them. Raises UsageError if they are impossible."""
    if rank_name not in env and size_name not in env:
        return 0, 1
    local_rank = number(env, rank_name, 0)
    local_ranks = number(env, size_name, local_rank + 1)
    if not local_rank < local_ranks <= ranks:
        raise UsageError(
            f"{rank_name}={local_rank} and {size_name}={local_ranks} contradict {ranks} ranks: correct or unset these variables"
        )
    return local_rank, local_ranks


def master(env: Mapping[str, str]) -> tuple[str, int | None]:
    """Return (host, port) from MASTER_ADDR and MASTER_PORT, host "" if not set. Raises UsageError for an invalid port."""
    port = number(env, "MASTER_PORT") if env.get("MASTER_PORT") else None
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"MASTER_PORT={port} is not a TCP port: choose one from 1 to 65535, or unset it")
    return env.get("MASTER_ADDR", "").strip(), port


def meeting_at(host: str) -> str:
    """Return the address "tcp://host" for rank 0; an IPv6 address gets brackets."""
    return f"tcp://{bracketed(host)}"


def without_manager(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without a process manager's (PMI, PMIx) variables of this process; PMIX_MCA_* settings stay."""
    return {k: v for k, v in env.items() if k.startswith("PMIX_MCA_") or not (k.startswith(_MANAGER) or k in _MANAGER_NAMES)}


def without_scheduler(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the allocation, so that mpiexec stays on this host. Job and cluster names stay for run.json."""
    return {k: v for k, v in without_manager(env).items() if k in _KEPT or not k.startswith(_SCHEDULER)}


def ancestors() -> list[tuple[int, str, str]]:
    """Return parent, grandparent, …: (pid, name, start time in clock ticks since boot) from /proc; empty if /proc is not readable."""
    processes: list[tuple[int, str, str]] = []
    pid = os.getppid()
    while pid > 1 and len(processes) < 64:
        try:
            name, _, after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").partition("(")[2].rpartition(")")
        except OSError:
            break
        fields = after_name.split()
        processes.append((pid, name, fields[19]))
        pid = int(fields[1])
    return processes


class LaunchInfo(msgspec.Struct, frozen=True):
    """One process as its launcher started it. Ranks, local ranks and nodes count from 0.

    launcher      "local", "torchrun", "mpirun", "srun" or "kubernetes"
    meeting       address of the control plane: "ipc:///path" on one host, or "tcp://host" across hosts
    port          a port that the user or launcher fixed, else None (derived from `token`)
    token         text that all ranks of this launch share, and no other launch has
    node          text that the ranks of one node share, and no other node has, if the host's name is not enough
    secret        origin of the launch's secret: "token": the token; a path: the file with it; "": the user's own
    mpi           the process manager that can start MPI here: "pmi" (PMI 1 or 2), "pmix", or None
    advice        sentences that rank 0 prints once
    """

    launcher: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    meeting: str
    token: str
    port: int | None = None
    mpi: str | None = None
    hosts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    node: str = ""
    secret: str = ""
    facts: dict[str, str] = msgspec.field(default_factory=dict)
