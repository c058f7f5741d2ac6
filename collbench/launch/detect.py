"""Detect the launcher that started this process. The nearest launcher takes precedence, then the one with the most variables."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from collbench.errors import FAILED, UsageError
from collbench.launch import slurm
from collbench.launch.info import INTEL_HYDRA, LaunchInfo, ancestors, local_place, master, meeting_at, number, place

# Kubernetes: a pod of an indexed Job or of a JobSet, or of a TrainJob without torchrun (PET_*). A pod is one task.
#
# Sources: kubernetes.io, Jobs, "Completion mode" (JOB_COMPLETION_INDEX); github.com/kubeflow/trainer, plugins/torch/torch.go (PET_*).

LAUNCHER = "kubernetes"
_INDEX = "JOB_COMPLETION_INDEX"
_PODS = "COLLBENCH_PODS"
_MASTER = "MASTER_ADDR"
_NODE = "PET_NODE_RANK"
_NODES = "PET_NNODES"
_FIRST = "PET_MASTER_ADDR"
_PORT = "PET_MASTER_PORT"
_SECRETS = ("COLLBENCH_SECRET", "COLLBENCH_SECRET_FILE")
_REMEDY = "use `collbench emit kubernetes` to write the Job, or use --ranks N to measure inside this pod only"


def detect_kubernetes(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return this pod as its Job describes it, or None.

    Raises UsageError for an invalid variable, and for pods that cannot reach each other.
    """
    if all(env.get(name) for name in (_NODE, _NODES, _FIRST)):
        rank, pods = place(env, _NODE, _NODES)
        return _info(env, rank, pods, host=env[_FIRST].strip(), port=_port(env), kind="TrainJob")
    if env.get(_INDEX) and env.get(_PODS) and (env.get(_MASTER) or number(env, _PODS) == 1):
        rank, pods = place(env, _INDEX, _PODS)
        host, port = master(env)
        return _info(env, rank, pods, host=host or "127.0.0.1", port=port, kind="indexed Job")
    return None


def refusal(env: Mapping[str, str]) -> str | None:
    """Return why a pod that `detect_kubernetes` does not support cannot measure; None outside a job of several pods.

    Without this error each pod would measure alone, as if it were the whole job.
    """
    if env.get(_PODS) and not env.get(_INDEX):
        return f"{_PODS}={env[_PODS]!r} is set but {_INDEX} is not: set completionMode: Indexed in the Job, or unset {_PODS}"
    if not env.get(_INDEX):
        return None
    missing = [name for name in (_PODS, _MASTER) if not env.get(name)]
    which = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
    return f"this is pod {env[_INDEX]} of an indexed Job, but {which} not set, so each pod would measure alone: {_REMEDY}"


def _info(env: Mapping[str, str], rank: int, pods: int, *, host: str, port: int | None, kind: str) -> LaunchInfo:
    if pods > 1 and not any(env.get(name) for name in _SECRETS):
        raise UsageError(f"{_SECRETS[0]} is not set, and pods share no home directory that could hold a secret: {_REMEDY}")
    token = f"{LAUNCHER}:{host}:{pods}"
    return LaunchInfo(LAUNCHER, rank, pods, 0, 1, meeting_at(host), token, port, node=str(rank), facts={"kubernetes": kind})


def _port(env: Mapping[str, str]) -> int | None:
    """Return the port that the operator set for torchrun; the control plane uses it if torchrun does not run."""
    port = number(env, _PORT, 0)
    if port > 65535:
        raise UsageError(f"{_PORT}={port} is not a TCP port: choose one from 1 to 65535, or unset it")
    return port or None


# Ranks that collbench started itself: COLLBENCH_LOCAL (spawn.start_local) and COLLBENCH_WORKER (spawn.node_workers).

# Open MPI first: if both exist, an outer launcher left PMI_*
_RANK_ORDER = ("COLLBENCH_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_RANK_VARIABLES = {"COLLBENCH_RANK": None, "PMI_RANK": "pmi", "OMPI_COMM_WORLD_RANK": "pmix"}


def detect_local(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return this rank of collbench's own start, or None. Raises UsageError if its variables are invalid."""
    if "COLLBENCH_WORKER" in env:
        import msgspec

        try:
            info = msgspec.json.decode(env["COLLBENCH_WORKER"], type=LaunchInfo)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            info = None
        if info is None or not (0 <= info.rank < info.ranks and 0 <= info.local_rank < info.local_ranks <= info.ranks):
            raise UsageError("COLLBENCH_WORKER is not a valid rank: unset it (collbench sets it when it starts ranks itself)")
        return info
    if "COLLBENCH_LOCAL" not in env:
        return None
    folder = env["COLLBENCH_LOCAL"]
    name = next((n for n in _RANK_ORDER if n in env), None)
    if name is None or not folder:
        raise UsageError(
            f"COLLBENCH_LOCAL={folder!r} is set, but the rank is not: unset it (collbench sets it when it starts ranks itself)"
        )
    rank, ranks = place(env, name, "COLLBENCH_RANKS")
    mpi = _RANK_VARIABLES[name]
    return LaunchInfo("local", rank, ranks, rank, ranks, f"ipc://{folder}/control", token=folder, mpi=mpi, secret=f"{folder}/secret")


def is_follower(env: Mapping[str, str]) -> bool:
    """Return whether this is a rank other than 0 of a start on this host. All ranks get signals; rank 0 or the parent reports them."""
    return "COLLBENCH_LOCAL" in env and next((env[name] for name in _RANK_ORDER if name in env), "0") != "0"


def to_variable(info: LaunchInfo) -> str:
    """Return the text of COLLBENCH_WORKER for one rank."""
    return json.dumps(msgspec.to_builtins(info))


# mpirun and mpiexec: Open MPI's OMPI_COMM_WORLD_* and MPICH's (hydra, PALS) and Intel MPI's (hydra) PMI_*.

_OMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PALS = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
# One of these runs once per host or per job. It is the common ancestor of a host's ranks, also behind wrapper scripts.
_DAEMONS = ("hydra_pmi_prox", "prterun", "prted", "orterun", "orted", "mpiexec", "mpirun", "pals")


def detect_mpirun(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return this rank as mpirun describes it, or None. Raises UsageError if a variable is invalid.

    A Slurm step with PMI or PMIx is srun's, not mpirun's. But mpirun inside an allocation starts its daemons as a step. Then
    SLURM_STEP_ID and SLURM_PROCID describe the daemons, so OMPI_COMM_WORLD_* and MPI_LOCALNRANKS decide.
    """
    if "OMPI_COMM_WORLD_RANK" in env and "OMPI_COMM_WORLD_SIZE" in env:
        return _info_mpirun(env, _OMPI, "Open MPI", "pmix")
    if "PMI_RANK" not in env or "PMI_SIZE" not in env:
        return None
    if "MPI_LOCALNRANKS" in env:
        return _info_mpirun(env, _HYDRA, "Intel MPI" if INTEL_HYDRA in env else "MPICH", "pmi")
    if "SLURM_JOB_ID" in env:
        return None
    return _info_mpirun(env, _PALS, "MPICH", "pmi")


def end_of_job(info: LaunchInfo, env: Mapping[str, str]) -> Callable[[], None] | None:
    """Return a function that makes hydra (mpiexec of MPICH and Intel MPI) kill every rank, also stopped ones, and end with this exit code.

    None for other launchers. With -disable-auto-cleanup mpiexec waits forever for the other ranks if one has failed. The
    message is that of MPI_Abort (PMI-1).
    """
    descriptor = env.get("PMI_FD", "")
    if info.launcher != "mpirun" or not is_hydra(info) or "MPI_LOCALNRANKS" not in env or not descriptor.isdecimal():
        return None

    def abort() -> None:
        with suppress(OSError):
            os.write(int(descriptor), f"cmd=abort exitcode={FAILED}\n".encode())

    return abort


def is_hydra(info: LaunchInfo) -> bool:
    """Return whether MPICH's or Intel MPI's mpiexec started this launch. It kills a host's ranks within a millisecond of the end of one."""
    return info.facts.get("mpirun") in ("MPICH", "Intel MPI")


def _info_mpirun(env: Mapping[str, str], names: tuple[str, str, str, str], family: str, manager: str) -> LaunchInfo:
    rank, ranks = place(env, names[0], names[1])
    local_rank, local_ranks = local_place(env, names[2], names[3], ranks)
    host, port = master(env)
    one_host = local_ranks == ranks
    meeting = meeting_at(host or "127.0.0.1") if host or one_host else "mpi"
    daemon = next((f"{pid}@{began}" for pid, name, began in ancestors() if name.startswith(_DAEMONS)), "")
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or env.get("PMI_JOBID") or ""
    if one_host:
        parent = next((f"{pid}@{began}" for pid, _, began in ancestors()), f"{os.getppid()}@")
        token = f"mpirun:{os.getuid()}:{job or daemon or parent}:{ranks}"
    else:  # hydra passes no name of the job, so two jobs with one MASTER_ADDR need different values of MASTER_PORT
        token = f"mpirun:{job}:{ranks}:{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    return LaunchInfo(
        "mpirun", rank, ranks, local_rank, local_ranks, meeting, token, port, mpi=manager, node=daemon, facts={"mpirun": family}
    )


# torchrun, and other launchers that set its variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (Kubernetes, or by hand).

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def detect_torchrun(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return this rank as torchrun or hand-set variables describe it, or None. Raises UsageError if a variable is invalid."""
    if not all(env.get(name) for name in _NEEDED):
        return None
    rank, ranks = place(env, "RANK", "WORLD_SIZE")
    local_rank, local_ranks = local_place(env, "LOCAL_RANK", "LOCAL_WORLD_SIZE", ranks)
    host, port = master(env)
    elastic = "TORCHELASTIC_RUN_ID" in env
    restarts = number(env, "TORCHELASTIC_RESTART_COUNT", 0)  # agents of other nodes may count differently
    token = ":".join((host, str(port), env.get("TORCHELASTIC_RUN_ID", ""), str(ranks)))  # the restart count differs between ranks
    facts = {"variables": "torchrun" if elastic else "RANK and WORLD_SIZE"}
    if restarts:
        facts["restarts"] = str(restarts)
    port = None if elastic else port  # torchrun's own store listens at that port
    node = env.get("GROUP_RANK", "")
    return LaunchInfo("torchrun", rank, ranks, local_rank, local_ranks, meeting_at(host), token, port, node=node, facts=facts)


def is_elastic(info: LaunchInfo) -> bool:
    """Return whether torchrun itself started this launch. Only then ranks may have been restarted."""
    return info.facts.get("variables") == "torchrun"


def left_over_variables(info: LaunchInfo) -> tuple[str, str] | None:
    """Return the variables of the number of ranks and of the rank, if no process of a launcher's is behind them; else None.

    Operators of Kubernetes set them in each pod, also for a shell in it. Then no other rank may have been started.
    """
    if info.facts.get("variables") == "RANK and WORLD_SIZE":
        return "WORLD_SIZE", "RANK"
    return {"TrainJob": (_NODES, _NODE), "indexed Job": (_PODS, _INDEX)}.get(info.facts.get("kubernetes", ""))


def refusal_torchrun(restarts: str) -> str:
    """Return why ranks that torchrun restarted cannot measure: samples of two starts do not belong to one run."""
    return (
        f"torchrun restarted the ranks (restart {restarts}) after an earlier start failed: why it did is above and in its run "
        "folder, which keeps what it measured; go on with `collbench --resume RUN`, and give torchrun --max-restarts 0"
    )


_ORDER = (detect_torchrun, detect_mpirun, slurm.detect, detect_kubernetes)
_OF_ONE_TASK = ("srun", LAUNCHER)


class LocalRequest(msgspec.Struct, frozen=True):
    """The user's request of a local start: `ranks` of --ranks (None: not given), and the command line, which errors repeat."""

    ranks: int | None = None
    command: tuple[str, ...] = ("collbench",)


def detect(env: Mapping[str, str], request: LocalRequest | None = None) -> LaunchInfo | None:
    """Return the launch of this process; None if no launcher started it, so that a local start is allowed.

    Raises UsageError for an invalid variable, for launchers that contradict each other, and for --ranks under a launcher.
    Also raises it inside a Slurm allocation, or a pod of an indexed Job, if neither a variable nor --ranks gives the number
    of ranks.
    """
    request = request or LocalRequest()
    local = detect_local(env)
    if local:
        return local
    info = next(filter(None, (detect_launcher(env) for detect_launcher in _ORDER)), None)
    if info is None:
        _refuse_unlaunched(env, request)
        return None
    info = _completed(env, info)
    if request.ranks is None or request.ranks == info.ranks:
        return info
    if info.launcher in _OF_ONE_TASK and info.ranks == 1:
        return None  # `srun --pty bash`, or a single pod: a local start in this shell
    raise UsageError(f"--ranks {request.ranks} is for a start without a launcher, but {info.launcher} started {info.ranks}: drop --ranks")


def _refuse_unlaunched(env: Mapping[str, str], request: LocalRequest) -> None:
    if request.ranks is None:
        if slurm.in_allocation(env):
            line = shlex.join(request.command)
            raise UsageError(
                f"inside Slurm job {env['SLURM_JOB_ID']} but not started by srun: put srun in front, "
                f"`srun {line}`, or give --ranks N to start N ranks on this host alone"
            )
        why = refusal(env)
        if why:
            raise UsageError(why)
    if "PMIX_RANK" in env and not slurm.in_allocation(env):
        raise UsageError("PMIX_RANK is set, but the number of ranks is unknown: start collbench with mpirun, mpiexec or srun")


def _completed(env: Mapping[str, str], info: LaunchInfo) -> LaunchInfo:
    """Return a launch by hand-set RANK and WORLD_SIZE, with the MPI and hosts of the launcher below if that has the same ranks."""
    if info.launcher != "torchrun" or "TORCHELASTIC_RUN_ID" in env:
        return info
    below = detect_mpirun(env) or slurm.detect(env)
    if below is None:
        return info
    if below.ranks > info.ranks:
        # otherwise a container's own RANK=0 WORLD_SIZE=1 would make every rank of mpirun -n 4 or srun -n 4 a rank 0
        raise UsageError(f"WORLD_SIZE={info.ranks}, but {below.launcher} started {below.ranks} ranks: unset RANK and WORLD_SIZE")
    same = (below.rank, below.ranks) == (info.rank, info.ranks)
    return replace(info, mpi=below.mpi, hosts=below.hosts) if same else info
