"""Kubernetes: a pod of an indexed Job or of a JobSet, or of a TrainJob in which nobody ran torchrun (PET_*). A pod is one task.

Sources: kubernetes.io, Jobs, "Completion mode" (JOB_COMPLETION_INDEX); github.com/kubeflow/trainer, plugins/torch/torch.go (PET_*).
"""

from __future__ import annotations

from collections.abc import Mapping

from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.launch.variables import master, meeting_at, number, place

LAUNCHER = "kubernetes"
_INDEX, _PODS, _MASTER = "JOB_COMPLETION_INDEX", "COLLBENCH_PODS", "MASTER_ADDR"
_NODE, _NODES, _FIRST, _PORT = "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"
_SECRETS = ("COLLBENCH_SECRET", "COLLBENCH_SECRET_FILE")
_REMEDY = "let `collbench emit kubernetes` write the Job, or give --ranks N to measure inside this pod alone"


def detect(env: Mapping[str, str]) -> LaunchInfo | None:
    """This pod as its Job tells it, or None. Raises UsageError where a variable is broken, or the pods cannot know one another."""
    if all(env.get(name) for name in (_NODE, _NODES, _FIRST)):
        rank, pods = place(env, _NODE, _NODES)
        return _info(env, (rank, pods), (env[_FIRST].strip(), _port(env)), "TrainJob")
    if env.get(_INDEX) and env.get(_PODS) and (env.get(_MASTER) or number(env, _PODS) == 1):
        rank, pods = place(env, _INDEX, _PODS)
        host, port = master(env)
        return _info(env, (rank, pods), (host or "127.0.0.1", port), "indexed Job")
    return None


def refusal(env: Mapping[str, str]) -> str | None:
    """Why a pod that `detect` does not know measures nothing; None where this is no pod of several.

    As many pods as there are would measure alone otherwise, each as if it were the whole job.
    """
    if env.get(_PODS) and not env.get(_INDEX):
        return f"{_PODS}={env[_PODS]!r} is set but {_INDEX} is not: write completionMode: Indexed into the Job, or unset {_PODS}"
    if not env.get(_INDEX):
        return None
    missing = [name for name in (_PODS, _MASTER) if not env.get(name)]
    which = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
    return f"this is pod {env[_INDEX]} of an indexed Job, but {which} not set, and each pod would measure alone: {_REMEDY}"


def _info(env: Mapping[str, str], of: tuple[int, int], at: tuple[str, int | None], what: str) -> LaunchInfo:
    (rank, pods), (host, port) = of, at
    if pods > 1 and not any(env.get(name) for name in _SECRETS):
        raise UsageError(f"{_SECRETS[0]} is not set, and pods have no home directory in common to keep one for them: {_REMEDY}")
    return LaunchInfo(
        launcher=LAUNCHER,
        rank=rank,
        ranks=pods,
        local_rank=0,
        local_ranks=1,
        meeting=meeting_at(host),
        token=f"{LAUNCHER}:{host}:{pods}",
        port=port,
        node=str(rank),
        facts={"kubernetes": what},
    )


def _port(env: Mapping[str, str]) -> int | None:
    """What torchrun would listen at; nobody does."""
    port = number(env, _PORT, 0)
    if port > 65535:
        raise UsageError(f"{_PORT}={port} is not a TCP port: choose one from 1 to 65535, or unset it")
    return port or None
