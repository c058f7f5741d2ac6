"""Slurm: a batch script for sbatch, with or without a container (pyxis with enroot, or Apptainer), once or as an array of allocations."""

from __future__ import annotations

from collbench.errors import UsageError
from collbench.plugins.deploy.files import Quoted, filled, line, sh
from collbench.plugins.deploy.job import CPUS, EVERYWHERE, IMAGE, MINUTES, MODULES, JobSetting, LauncherKind, LaunchJob, one_of, whole, word

PARTITION = JobSetting("partition", "NAME", "Slurm's partition; with --site also the table of the site file", word)
ACCOUNT = JobSetting("account", "NAME", "the account to charge", word)
QOS = JobSetting("qos", "NAME", "Slurm's quality of service", word)
GPU_TYPE = JobSetting("gpu-type", "TYPE", "type of GPU, such as h100, if a partition has several", word)
MPI = JobSetting(
    "mpi", "HOW", "how srun starts MPI: pmix, pmi2, cray_shasta or none (default: Slurm's)", one_of("pmix", "pmi2", "cray_shasta", "none")
)
ARRAY = JobSetting("array", "K", "submit K jobs, one allocation each, one after the other", whole(1, 1000))
CONTAINER = JobSetting("container", "HOW", "container runtime: pyxis or apptainer (default: by the image)", one_of("pyxis", "apptainer"))

_FILES = (".sif", ".sqsh", ".squashfs")
_DOCKER = "docker://"
_SEPARATORS = ":,"  # in the lists of mounts of pyxis and Apptainer
# Slurm sends the signal up to a minute early, so a shorter job would be ended as soon as it begins
_LEAST_MINUTES_TO_SIGNAL = 3


def _render(job: LaunchJob) -> str:
    container = _container(job)
    if job["gpu-type"] and not job.gpus:
        raise UsageError("--gpu-type needs --gpus-per-node")
    return filled(
        "slurm.sbatch.j2",
        job=job,
        login=Quoted(" -l" if job["module"] else ""),
        container=container,
        image=sh(_enroot(job["image"]) if container == "pyxis" else str(job["image"])),
        is_file=_is_file(str(job["image"])),
        signals=job["minutes"] >= _LEAST_MINUTES_TO_SIGNAL,
        gres=sh(":".join(["gpu", *([job["gpu-type"]] if job["gpu-type"] else []), str(job.gpus)])),
        task=_task(job, container),
    )


def _task(job: LaunchJob, container: str) -> Quoted:
    """Return the command of each rank; the shell of the script expands the folder."""
    inside = '"${inside[@]}" ' if container == "apptainer" else ""
    folder = '"$runs"' if container else sh(job["runs"])
    out = f' --out {folder}/"$SLURM_JOB_ID"' if job.wants_out else ""
    again = ' ${again:+"$again"}' if job.resumes else ""
    return Quoted(f"{inside}{line((job['program'], *job.command))}{out}{again}")


def _container(job: LaunchJob) -> str:
    """Return the container runtime: "pyxis", "apptainer" or "". Raises UsageError for settings that contradict each other."""
    image = job["image"]
    if not image:
        if job["container"]:
            raise UsageError(f"--container {job['container']} needs --image")
        return ""
    container = str(job["container"] or ("apptainer" if image.endswith(".sif") else "pyxis"))
    if container == "apptainer" and not _is_file(image):
        fetch = f"run `apptainer pull collbench.sif docker://{image.removeprefix(_DOCKER)}` once"
        raise UsageError(f"--image {image} would be downloaded by each rank: {fetch}, and use --image collbench.sif")
    if container == "pyxis" and image.endswith(".sif"):
        raise UsageError(f"--image {image} is an Apptainer file: omit --container pyxis, or use an image of a registry or a .sqsh file")
    if "://" in image.removeprefix(_DOCKER):
        raise UsageError(f"--image {image} is not supported by pyxis: use registry/name:tag, or the path of a .sqsh file")
    if job.out is not None:  # the run folder would be lost with the container
        raise UsageError(f"--out {job.out} may be outside the container: omit it, and set the folder of all runs with --runs")
    if any(each in job["runs"] for each in _SEPARATORS):
        raise UsageError(f"--runs {job['runs']} cannot be mounted into a container: use a path without : and ,")
    return container


def _is_file(image: str) -> bool:
    return image.startswith(("/", ".")) or image.endswith(_FILES)


def _enroot(image: str) -> str:
    """Return an image as pyxis needs it: [REGISTRY#]IMAGE[:TAG], or for a file a path with a slash.

    Source: github.com/NVIDIA/enroot, doc/cmd/import.md; github.com/NVIDIA/pyxis, README.md (--container-image).
    """
    if _is_file(image):
        return image if image.startswith(("/", ".")) else f"./{image}"
    name = image.removeprefix(_DOCKER)
    registry, slash, path = name.partition("/")
    if "#" in name or not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        return name
    return path if registry == "docker.io" else f"{registry}#{path}"


KIND = LauncherKind(
    name="slurm",
    summary="a batch script for sbatch",
    settings=(*EVERYWHERE, CPUS, MINUTES, IMAGE, MODULES, PARTITION, ACCOUNT, QOS, GPU_TYPE, MPI, ARRAY, CONTAINER),
    render=_render,
    submit=("sbatch",),
    start="sbatch FILE",
)
