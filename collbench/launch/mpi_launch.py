"""mpirun and mpiexec: Open MPI's OMPI_COMM_WORLD_* and MPICH's (hydra, Intel MPI, PALS) PMI_*."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from collbench.errors import FAILED
from collbench.launch.info import LaunchInfo
from collbench.launch.variables import ancestors, local_place, master, meeting_at, place

_OMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PALS = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
# One of these runs once per host, or once per job: the ancestor that all ranks of a host share even behind wrapper scripts.
_DAEMONS = ("hydra_pmi_prox", "prterun", "prted", "orterun", "orted", "mpiexec", "mpirun", "pals")


def detect(env: Mapping[str, str]) -> LaunchInfo | None:
    """This rank as mpirun tells it, or None. Raises UsageError where a variable is broken.

    A Slurm step with PMI or PMIx is srun's, not mpirun's; but mpirun inside an allocation starts its daemons as a step, so that
    SLURM_STEP_ID and SLURM_PROCID are there and tell about the daemons: OMPI_COMM_WORLD_* and MPI_LOCALNRANKS decide.
    """
    if "OMPI_COMM_WORLD_RANK" in env and "OMPI_COMM_WORLD_SIZE" in env:
        return _info(env, _OMPI, "Open MPI", "pmix")
    if "PMI_RANK" not in env or "PMI_SIZE" not in env:
        return None
    if "MPI_LOCALNRANKS" in env:
        return _info(env, _HYDRA, "MPICH", "pmi")
    if "SLURM_JOB_ID" in env:
        return None
    return _info(env, _PALS, "MPICH", "pmi")


def end_of_job(info: LaunchInfo, env: Mapping[str, str]) -> Callable[[], None] | None:
    """What has MPICH's mpiexec kill every rank, also one that is stopped, and end with our code; None under other launchers.

    With -disable-auto-cleanup it waits for the others for ever when one has failed. It is what MPI_Abort says to it (PMI-1).
    """
    descriptor = env.get("PMI_FD", "")
    if info.launcher != "mpirun" or info.facts.get("mpirun") != "MPICH" or "MPI_LOCALNRANKS" not in env or not descriptor.isdecimal():
        return None
    return lambda: _abort(int(descriptor))


def _abort(descriptor: int) -> None:
    with suppress(OSError):
        os.write(descriptor, f"cmd=abort exitcode={FAILED}\n".encode())


def _info(env: Mapping[str, str], names: tuple[str, str, str, str], family: str, manager: str) -> LaunchInfo:
    rank, ranks = place(env, names[0], names[1])
    local_rank, local_ranks = local_place(env, names[2], names[3], ranks)
    host, port = master(env)
    one_host = local_ranks == ranks
    meeting = meeting_at(host or "127.0.0.1") if host or one_host else "mpi"
    return LaunchInfo(
        launcher="mpirun",
        rank=rank,
        ranks=ranks,
        local_rank=local_rank,
        local_ranks=local_ranks,
        meeting=meeting,
        token=_token(env, one_host, ranks),
        port=port,
        mpi=manager,
        node=_daemon() or "",
        facts={"mpirun": family},
    )


def _token(env: Mapping[str, str], one_host: bool, ranks: int) -> str:
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or env.get("PMI_JOBID") or ""
    if one_host:
        return f"mpirun:{os.getuid()}:{job or _daemon() or _parent()}:{ranks}"
    # Across hosts hydra gives no name of the job; whoever wants two at a time on one MASTER_ADDR sets MASTER_PORT.
    return f"mpirun:{job}:{ranks}:{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"


def _daemon() -> str | None:
    return next((f"{pid}@{began}" for pid, name, began in ancestors() if name.startswith(_DAEMONS)), None)


def _parent() -> str:
    return next((f"{pid}@{began}" for pid, _, began in ancestors()), f"{os.getppid()}@")
