"""mpirun and mpiexec: a script for Open MPI, MPICH or Intel MPI, over the hosts of a file or those of the scheduler's job."""

from __future__ import annotations

from collbench.errors import UsageError
from collbench.plugins.deploy.files import Quoted, filled
from collbench.plugins.deploy.job import CPUS, EVERYWHERE, HOSTS, MODULES, JobSetting, LauncherKind, LaunchJob, one_of, word

_FAMILIES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
# if several libraries are installed, mpirun may be another one's, so MPICH is started by its launcher mpiexec
_LAUNCHERS = {"openmpi": "mpirun", "mpich": "mpiexec", "intel": "mpirun"}

LIBRARY = JobSetting("library", "MPI", "the MPI library: openmpi, mpich or intel", one_of(*_FAMILIES), "openmpi")
INTERFACE = JobSetting(
    "interface", "NAME", "the network interface that MPI's TCP and its daemons use, like eth0 (default: MPI's choice)", word
)
BIND = JobSetting(
    "bind", "WHAT", "binding of ranks: core, numa or none (default: none with GPUs, else core)", one_of("core", "numa", "none")
)

_WHY_BOUND = {
    "core": "a rank that moves between cores has unstable short times; for Gloo's threads use --cpus-per-rank 2 or more",
    "numa": "a rank stays on the NUMA node of its memory, and its threads have all cores there",
    "none": "not bound: NCCL binds its threads near their GPU itself, and they need more than one core",
}
_NOT_BOUND = "not bound, as requested: a rank may move between cores, which makes short times unstable"


def _render(job: LaunchJob) -> str:
    family, bound = _FAMILIES[job["library"]], _bound(job)
    launcher = _LAUNCHERS[job["library"]]
    return filled(
        "mpirun.sh.j2",
        job=job,
        family=family,
        launcher=launcher,
        bound=bound,
        cores=job["cpus-per-rank"] or 0,
        why_bound=_NOT_BOUND if bound == "none" and not job.gpus else _WHY_BOUND[bound],
        missing=f"{launcher} not found in PATH: load the module of {family}",
        fewer=f"{job['hosts']} has fewer than {job.nodes} hosts: write one name per line",
        no_job="not in a scheduler's job: start it in one, or emit it with --hosts FILE",
        out=Quoted(' --out "$out"' if job.wants_out else ""),
    )


def _bound(job: LaunchJob) -> str:
    """Return the binding of ranks. Raises UsageError if --cpus-per-rank and --bind contradict each other."""
    bind, cores = job["bind"], job["cpus-per-rank"]
    if cores and bind not in (None, "core"):
        raise UsageError(f"--cpus-per-rank {cores} binds a rank to {cores} cores and contradicts --bind {bind}: omit one of them")
    return str(bind or ("none" if job.gpus and not cores else "core"))


KIND = LauncherKind(
    name="mpirun",
    summary="a script for mpirun",
    settings=(*EVERYWHERE, CPUS, MODULES, LIBRARY, HOSTS, INTERFACE, BIND),
    render=_render,
    start="bash FILE",
)
