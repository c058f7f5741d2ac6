"""python -m benchmarks.trials.gallery_hunt DIR   measures the gallery's hunt and training step, through Slurm over links of known rate.

hunt-host   `srun -N8 collbench hunt` over eight hosts; one of them, drawn by the seed, has a link of half the rate
training    `srun -N2 collbench workload data-parallel` of resnet50 over 1 Gbit/s, with a step time of 180 ms
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from benchmarks.trials.gallery import PROGRAM
from benchmarks.trials.pairs_trials import HOSTS, MEASURE, RATE_MBIT, shape
from tests.testbeds import Hosts, SlurmBed

SEED = 0
TRAINING = ["data-parallel", "--model", "resnet50", "--backend", "gloo", "--step-time", "180ms", "--max-time", "30"]


def hunt(target: Path) -> None:
    """Hunt among eight hosts, one with half the rate; exit code 1 is expected."""
    with Hosts(HOSTS, f"{RATE_MBIT}mbit", "64kb") as hosts, SlurmBed(hosts) as bed:
        sick = random.Random(f"hunt {SEED}").randrange(HOSTS)
        for index in range(HOSTS):
            shape(hosts, index, RATE_MBIT // 2 if index == sick else RATE_MBIT)
        _start(bed, [f"-N{HOSTS}"], ["hunt", *MEASURE, "--seed", str(SEED), "--out", str(target / "hunt-host")], 1)


def training(target: Path) -> None:
    """Measure a training step's exchanges between two hosts."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        _start(bed, ["-N2"], ["workload", *TRAINING, "--out", str(target / "training")], 0)


def _start(bed: SlurmBed, options: list[str], words: list[str], code: int) -> None:
    done = bed.srun(options, [*PROGRAM, *words, "--quiet"], timeout=400)
    if done.returncode != code:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    hunt(Path(sys.argv[1]))
    training(Path(sys.argv[1]))
