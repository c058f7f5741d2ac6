"""mpirun and mpiexec: a script for Open MPI, MPICH or Intel MPI, over the hosts of a file or those of the scheduler's job."""

from __future__ import annotations

from collbench.deploy.files import Quoted, filled
from collbench.deploy.job import CPUS, EVERYWHERE, HOSTS, MODULES, Job, Kind, Setting, one_of, word
from collbench.errors import UsageError

_FAMILIES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
# MPICH's is there under a name that no other library takes, where several are installed
_LAUNCHERS = {"openmpi": "mpirun", "mpich": "mpiexec", "intel": "mpirun"}

LIBRARY = Setting("library", "MPI", "whose mpirun it is: openmpi, mpich or intel", one_of(*_FAMILIES), "openmpi")
INTERFACE = Setting(
    "interface", "NAME", "the network interface that MPI's TCP and its daemons use, like eth0 (default: MPI's choice)", word
)
BIND = Setting(
    "bind", "WHAT", "what a rank keeps to: core, numa or none (default: none with GPUs, else core)", one_of("core", "numa", "none")
)

_WHY_BOUND = {
    "core": "a rank that wanders between cores scatters short times; threads of Gloo want --cpus-per-rank 2 or more",
    "numa": "a rank stays beside its memory, and its threads have the cores there",
    "none": "not bound: NCCL puts its threads beside their GPU by itself, and they need more than a rank's one core",
}
_NOT_BOUND = "not bound, as was said: a rank may wander between cores, which scatters short times"


def _render(job: Job) -> str:
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
        missing=f"no {launcher} in PATH: load the module of {family}",
        fewer=f"{job['hosts']} names fewer than {job.nodes} hosts: one name in each line",
        no_job="this is no scheduler's job: start it in one, or write it with --hosts FILE",
        out=Quoted(' --out "$out"' if job.wants_out else ""),
    )


def _bound(job: Job) -> str:
    """What a rank keeps to. Raises UsageError for cores to be given to a rank that is bound to something else."""
    said, cores = job["bind"], job["cpus-per-rank"]
    if cores and said not in (None, "core"):
        raise UsageError(
            f"--cpus-per-rank {cores} binds a rank to {cores} cores, --bind {said} to something else: leave one of the two out"
        )
    return str(said or ("none" if job.gpus and not cores else "core"))


KIND = Kind(
    name="mpirun",
    summary="a script for mpirun",
    suffix=".sh",
    settings=(*EVERYWHERE, CPUS, MODULES, LIBRARY, HOSTS, INTERFACE, BIND),
    render=_render,
    start="bash FILE",
)
