"""Slurm: a batch script for sbatch."""

from __future__ import annotations

from collbench.emit.job import Job, Kind, Setting
from collbench.emit.settings import CPUS, EVERYWHERE, MINUTES, one_of, word
from collbench.emit.template import filled

PARTITION = Setting("partition", "NAME", "Slurm's partition; with --site also the table that says what its jobs want", word)
ACCOUNT = Setting("account", "NAME", "whom the time is charged to", word)
MPI = Setting("mpi", "HOW", "how srun starts MPI: pmix, pmi2 or none (default: as Slurm is set up)", one_of("pmix", "pmi2", "none"))


def _render(job: Job) -> str:
    return filled("slurm.sbatch.j2", job=job)


KIND = Kind(
    name="slurm",
    summary="a batch script for sbatch",
    suffix=".sbatch",
    settings=(*EVERYWHERE, CPUS, MINUTES, PARTITION, ACCOUNT, MPI),
    render=_render,
    submit=("sbatch",),
    remedy="write the file with --write and call sbatch where Slurm is",
)
