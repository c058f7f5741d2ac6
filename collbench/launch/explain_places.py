"""Where this shell is: in a launch, a Slurm job, a Kubernetes pod, or nowhere of the kind; by its variables."""

from __future__ import annotations

from collections.abc import Mapping

from collbench.errors import UsageError
from collbench.launch import slurm
from collbench.launch.detect import detect
from collbench.launch.info import LaunchInfo


def launch_of(env: Mapping[str, str]) -> tuple[LaunchInfo | None, str]:
    """The launch that this process belongs to, or None; and why its variables cannot be right, or ""."""
    try:
        return detect(_outside(env)), ""
    except UsageError as error:
        return None, str(error)


def waits_for_srun(env: Mapping[str, str]) -> bool:
    """Whether this is a batch script or a shell of salloc: an allocation without a step. Raises UsageError for a broken step id."""
    return slurm.in_allocation(env) and not slurm.in_step(env)


def in_pod(env: Mapping[str, str]) -> bool:
    """Whether this is a container of Kubernetes, which names its own service to each."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def _outside(env: Mapping[str, str]) -> Mapping[str, str]:
    """Without the allocation, where nobody started ranks in it: here that is a fact to be told, and no mistake."""
    return {name: value for name, value in env.items() if name not in ("SLURM_JOB_ID", "PMIX_RANK")} if waits_for_srun(env) else env


def places(env: Mapping[str, str], info: LaunchInfo | None) -> list[str]:
    """A phrase for each thing that this shell is in; one that says so where there is none."""
    found = [_launch(info)] if info else []
    if slurm.in_allocation(env):
        nodes = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "?"
        step = f"in step {env.get('SLURM_STEP_ID', '?')}" if info and info.launcher == "srun" else "not in a step of srun's"
        found.append(f"Slurm job {env['SLURM_JOB_ID']} on {nodes} node{'' if nodes == '1' else 's'}, {step}")
    if in_pod(env):
        index = env.get("JOB_COMPLETION_INDEX", "")
        found.append(f"pod {env.get('HOSTNAME', 'without a name')} of Kubernetes{f', index {index} of its job' if index else ''}")
    return found or ["started by no launcher, and in no scheduler's job"]


def _launch(info: LaunchInfo) -> str:
    manager = {"pmi": "PMI", "pmix": "PMIx"}.get(info.mpi or "", "")
    starts = f"it can start MPI by {manager}" if manager else "it cannot start MPI"
    return f"{_starter(info)} started this as rank {info.rank} of {info.ranks}; {starts}"


def _starter(info: LaunchInfo) -> str:
    if info.launcher == "srun":
        return f"srun --mpi={info.facts.get('srun_mpi', 'none')}"
    if info.launcher == "mpirun":
        return f"mpirun of {info.facts.get('mpirun', 'an unknown MPI')}"
    if "kubernetes" in info.facts:
        return f"Kubernetes ({info.facts['kubernetes']})"
    return info.facts.get("variables", info.launcher)
