"""Which launcher started this process. The order is the rule: what is nearest to the process and names most wins."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from collbench.errors import UsageError
from collbench.launch import kubernetes, local, slurm, torchrun
from collbench.launch import mpi_launch as mpi
from collbench.launch.info import LaunchInfo

_ORDER = (torchrun.detect, mpi.detect, slurm.detect, kubernetes.detect)
_OF_ONE_TASK = ("srun", kubernetes.LAUNCHER)


@dataclass(frozen=True)
class LocalRequest:
    """What was typed: `ranks` of --ranks (None: not given) and the command line, to repeat in advice."""

    ranks: int | None = None
    command: tuple[str, ...] = ("collbench",)


def detect(env: Mapping[str, str], request: LocalRequest | None = None) -> LaunchInfo | None:
    """The launch this process belongs to, or None: nobody started ranks, a local start may.

    Raises UsageError for a variable that cannot be read, for launchers that contradict each other, for --ranks under a
    launcher, and inside a Slurm allocation, or a pod of an indexed Job, where nothing says how many ranks there are, nor --ranks.
    """
    request = request or LocalRequest()
    own = local.detect(env)
    if own:
        return own
    info = next((found for found in (one(env) for one in _ORDER) if found), None)
    if info is None:
        _check_nobody(env, request)
        return None
    return _under_launcher(_completed(env, info), request)


def _check_nobody(env: Mapping[str, str], request: LocalRequest) -> None:
    if request.ranks is None and slurm.in_allocation(env):
        line = shlex.join(request.command)
        raise UsageError(
            f"inside Slurm job {env['SLURM_JOB_ID']} but not started by srun: put srun in front, "
            f"`srun {line}`, or give --ranks N to start N ranks on this host alone"
        )
    if request.ranks is None and (why := kubernetes.refusal(env)):
        raise UsageError(why)
    if "PMIX_RANK" in env and not slurm.in_allocation(env):
        raise UsageError("PMIX_RANK is set but nothing tells how many ranks there are: start collbench with mpirun, mpiexec or srun")


def _completed(env: Mapping[str, str], info: LaunchInfo) -> LaunchInfo:
    """A hand-written RANK and WORLD_SIZE with what the launcher below adds: its MPI and hosts, if it means the same ranks."""
    if info.launcher != "torchrun" or "TORCHELASTIC_RUN_ID" in env:
        return info
    below = mpi.detect(env) or slurm.detect(env)
    if below is None:
        return info
    if below.launcher == "mpirun" and below.ranks > info.ranks:
        # else a container's own RANK=0 WORLD_SIZE=1 makes every rank of mpirun -n 4 a rank 0
        raise UsageError(f"WORLD_SIZE says {info.ranks}, but mpirun started {below.ranks} ranks: unset RANK and WORLD_SIZE")
    same = (below.rank, below.ranks) == (info.rank, info.ranks)
    return replace(info, mpi=below.mpi, hosts=below.hosts) if same else info


def _under_launcher(info: LaunchInfo, request: LocalRequest) -> LaunchInfo | None:
    if request.ranks is None or request.ranks == info.ranks:
        return info
    if info.launcher in _OF_ONE_TASK and info.ranks == 1:
        return None  # `srun --pty bash`, a single pod: a shell in which a local start is what was asked for
    raise UsageError(f"--ranks {request.ranks} is for a start without a launcher, but {info.launcher} started {info.ranks}: drop --ranks")
