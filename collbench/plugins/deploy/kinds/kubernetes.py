"""Kubernetes: an indexed Job (the default: it needs no operator, and no sshd), a JobSet, a TrainJob or an MPIJob; one pod for each node."""

from __future__ import annotations

import re

import msgspec

from collbench.errors import UsageError
from collbench.operations.registry import commands
from collbench.plugins.deploy.files import Quoted, filled, pod, pods
from collbench.plugins.deploy.job import CPUS, EVERYWHERE, IMAGE, MINUTES, JobSetting, LauncherKind, LaunchJob, matching, one_of
from collbench.plugins.importers.pod_log import BEGIN, END

_LONGEST_NAME = 63  # of a DNS label, RFC 1035
_RESULTS = "/results"  # the mount point of the volume
LOST = "/tmp/collbench-run"  # the run folder without a volume: any user may write there, and it is lost with the pod
_PATIENCE_S = 600
_WHY_BOUND = {
    False: "--bind-to core: a rank that moves between cores has unstable short times",
    True: "--bind-to none: NCCL's threads need several cores near their GPU",
}


class _Flavour(msgspec.Struct, frozen=True):
    """The differences between the kinds of Kubernetes jobs.

    longest     the longest suffix that controllers add to the name; K: the last pod's number
    first       the network name of rank 0's pod, NAME: the job's; "" where MPI or the operator sets it
    index       the variable with the pod's number
    logs        the selector or object; its log has the rows
    """

    longest: str
    first: str
    index: str
    logs: str


_FLAVOURS = {
    "job": _Flavour("-K", "NAME-0.NAME", "JOB_COMPLETION_INDEX", "-l batch.kubernetes.io/job-name=NAME --tail=-1"),
    "jobset": _Flavour("-pods-0-K-abcde", "NAME-pods-0-0.NAME", "JOB_COMPLETION_INDEX", "-l jobset.sigs.k8s.io/jobset-name=NAME --tail=-1"),
    "trainjob": _Flavour("-node-0-K-abcde", "", "PET_NODE_RANK", "-l jobset.sigs.k8s.io/jobset-name=NAME --tail=-1"),
    "mpijob": _Flavour("-worker-K", "", "", "job/NAME-launcher"),
}


_label = matching(
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    "a valid namespace: use at most 63 lower-case letters, digits and -, not beginning or ending with -",
)
_claim = matching(
    "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "a valid name of a PersistentVolumeClaim: use lower-case letters, digits, - and ."
)
_size = matching("[1-9][0-9]{0,8}(Ki|Mi|Gi|Ti|k|M|G|T)?", "a valid size: use e.g. 512Mi or 16Gi")
_resource = matching(
    "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?=[1-9][0-9]{0,3}",
    "NAME=COUNT: use the resource name of the device plug-in, like rdma/hca_shared_devices_a=1",
)
_pages = matching("[1-9][0-9]{0,5}(Ki|Mi|Gi)=[1-9][0-9]{0,8}(Ki|Mi|Gi)", "PAGE=SIZE: use 2Mi=1Gi for 1 GiB of 2-MiB pages")
KIND_OF_JOB = JobSetting("kind", "KIND", "job, jobset, trainjob or mpijob", one_of(*_FLAVOURS), "job")
NAMESPACE = JobSetting("namespace", "NAME", "Kubernetes namespace (default: kubectl's)", _label)
PULL = JobSetting(
    "pull-policy", "WHEN", "when a node fetches the image: Always, IfNotPresent or Never", one_of("Always", "IfNotPresent", "Never")
)
VOLUME = JobSetting("volume", "CLAIM", "a PersistentVolumeClaim for the run folders (default: the rows are written to the log)", _claim)
RDMA = JobSetting("rdma", "NAME=COUNT", "a resource of an RDMA device plug-in for each pod; may be repeated", _resource, many=True)
HUGEPAGES = JobSetting("hugepages", "PAGE=SIZE", "huge pages for each pod, such as 2Mi=1Gi; may be repeated", _pages, many=True)
SHM = JobSetting("shm", "SIZE", "/dev/shm of each pod with several ranks", _size, "8Gi")
MEMORY = JobSetting("memory", "SIZE", "memory of each pod", _size)
RUNTIME = JobSetting("runtime", "NAME", "TrainJob: its ClusterTrainingRuntime (default: torch-distributed)", _claim)


def _render(job: LaunchJob) -> str:
    kind = str(job["kind"])
    flavour = _FLAVOURS[kind]
    _check_name(job, flavour)
    _check(job, kind)
    formatted = job.option("--format") is not None
    has_timeout = job.option("--timeout") is not None or "COLLBENCH_TIMEOUT" in job.environment
    marked = not job["volume"] and not formatted and job.command[0] in (*commands(), "run")  # rows are in the log, between two marks
    return filled(
        f"kubernetes.{kind}.j2",
        job=job,
        in_namespace=Quoted(f" -n {job['namespace']}" if job["namespace"] else ""),
        logs=Quoted(flavour.logs.replace("NAME", job["name"])),
        first=Quoted(flavour.first.replace("NAME", job["name"])) if job.nodes > 1 else "",
        index=Quoted(flavour.index) if job.nodes > 1 else "",
        marked=marked,
        begin=Quoted(BEGIN),
        end=Quoted(END),
        words=_words(job, marked),
        environment=job.environment,
        has_env=job.nodes > 1 or bool(job.environment or (job["volume"] and job.wants_out)),
        why_bound=Quoted(_WHY_BOUND[bool(job.gpus)]),
        limits=_limits(job),
        seconds=int(job["minutes"]) * 60,
        patience=0 if job.nodes == 1 or has_timeout else min(_PATIENCE_S, int(job["minutes"]) * 60),
        shm=job["shm"] if job.ranks > 1 or "shm" in job.explicit else "",
        folder=job["runs"] if job["runs"].startswith("/") else _RESULTS,  # the mount point
        runs=_runs(job),
        runtime=job["runtime"] or "torch-distributed",
    )


def _check_name(job: LaunchJob, flavour: _Flavour) -> None:
    """Raise UsageError for a name that is not a valid host name, or too long with the suffixes of pods."""
    longest = f"{job['name']}{flavour.longest.replace('K', str(job.nodes - 1))}"
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", job["name"]):
        raise UsageError(
            f"--name {job['name']} is not a valid name in Kubernetes: use lower-case letters, digits and -, "
            "with a letter first and no - at the end"
        )
    if len(longest) > _LONGEST_NAME:
        most = _LONGEST_NAME - (len(longest) - len(job["name"]))
        raise UsageError(f"--name {job['name']} is too long: use at most {most} characters with {job['kind']} and {job.nodes} pods")


def _check(job: LaunchJob, kind: str) -> None:
    """Raise UsageError for settings that are missing, or contradict each other."""
    image = job["image"]
    if not image:
        raise UsageError("emit kubernetes needs an image with collbench: use --image registry/name:tag")
    if image.startswith(("/", ".")) or image.endswith((".sif", ".sqsh", ".squashfs")) or "#" in image or "://" in image:
        raise UsageError(f"--image {image} is not supported by Kubernetes: use registry/name:tag")
    if job["hugepages"] and not (job["memory"] or job["cpus-per-rank"]):
        raise UsageError("Kubernetes does not support --hugepages alone: add --memory or --cpus-per-rank")
    if kind == "trainjob" and job["pull-policy"]:
        raise UsageError("--pull-policy does not apply to a TrainJob, because its runtime sets it: omit it, or use another --kind")
    if kind != "trainjob" and job["runtime"]:
        raise UsageError(f"--runtime applies to a TrainJob only: omit it, or use --kind trainjob instead of {kind}")
    own = {"COLLBENCH_PODS", "COLLBENCH_SECRET", "MASTER_ADDR", "JOB_COMPLETION_INDEX", "POD_NAME"} if kind != "mpijob" else {"POD_NAME"}
    for name in job.environment:
        if name in own or name.startswith("PET_"):
            raise UsageError(f"--env {name}=… is set by the manifest or by Kubernetes: omit it")


def _words(job: LaunchJob, marked: bool) -> Quoted:
    """Return the program and its arguments; Kubernetes expands the pod's name in the run folder."""
    measures = job.command[0] not in ("probe", "doctor")
    several = job.ranks > 1 or job.gpus  # a pod with GPUs has one rank per GPU by default
    ranks = ["--ranks-per-node", str(job.ranks)] if measures and several and job["kind"] != "mpijob" else []
    words = [job["program"], *job.command, *ranks, *(["--format", "json"] if marked else [])]
    if job["kind"] == "mpijob":
        words = [*_mpirun(job), *words]
    if not job.wants_out:
        return pods(words)
    if not job["volume"]:
        return pods([*words, "--out", LOST])
    return Quoted(f'{pods([*words, "--out"])[:-1]}, {pod(f"{_runs(job)}/")[:-1]}$(POD_NAME)"]')


def _runs(job: LaunchJob) -> str:
    return job["runs"].rstrip("/") if job["runs"].startswith("/") else f"{_RESULTS}/{job['runs']}"


def _mpirun(job: LaunchJob) -> list[str]:
    """Return Open MPI's mpirun and its options; `env` because ssh does not pass variables on."""
    bound = "none" if job.gpus else "core"
    pairs = [f"{name}={value}" for name, value in job.environment.items()]
    where = ["-n", str(job.nodes * job.ranks), "--hostfile", "/etc/mpi/hostfile", "--map-by", f"ppr:{job.ranks}:node", "--bind-to", bound]
    return ["mpirun", *where, *(["env", *pairs] if pairs else [])]


def _limits(job: LaunchJob) -> list[tuple[str, str, str]]:
    """Return (resource, amount, reason) of each resource of a pod. Raises UsageError for one that is requested twice."""
    plain = {"nvidia.com/gpu": job.gpus, "cpu": (job["cpus-per-rank"] or 0) * job.ranks, "memory": job["memory"]}
    limits = [f"{name}={value}" for name, value in plain.items() if value]
    limits += [*(job["rdma"] or ()), *(f"hugepages-{each}" for each in job["hugepages"] or ())]
    names = [each.partition("=")[0] for each in limits]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is requested twice: remove one")
    return [(name, each.partition("=")[2], _why(name)) for name, each in zip(names, limits, strict=True)]


def _why(resource: str) -> str:
    if resource.startswith("hugepages-"):
        return "buffers of UCX and DPDK; the node must have reserved huge pages"
    return "the RDMA devices; without them NCCL and UCX use TCP" if "/" in resource and "gpu" not in resource else ""


_OWN = (KIND_OF_JOB, NAMESPACE, PULL, VOLUME, RDMA, HUGEPAGES, SHM, MEMORY, RUNTIME)
KIND = LauncherKind(
    name="kubernetes",
    summary="a manifest of an indexed Job, JobSet, TrainJob or MPIJob",
    settings=(*EVERYWHERE, CPUS, MINUTES, IMAGE, *_OWN),
    render=_render,
    submit=("kubectl", "create", "-f", "-"),
    start="kubectl create -f FILE",
)
