"""python -m benchmarks.trials.gallery DIR   measures the gallery's runs on two hosts, through real Slurm over links of known rate.

two-hosts           `srun -N2 collbench run reports/suites/two-hosts.toml` over 1 Gbit/s
regression/before   five launches of a short sweep over that link
regression/after    the same five launches, with the second host's sends limited to 800 Mbit/s
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.trials.sweep import OVER_THE_LINK
from tests.testbeds import Hosts, SlurmBed

ROOT = Path(__file__).parents[2]
PROGRAM = [str(ROOT / ".venv/bin/python"), "-m", "collbench"]
LAUNCHES = 5
SHORT = ["allreduce", "--sizes", "256K-16M:x4", "--max-time", "3"]
SLOWED = "800mbit"


def start(bed: SlurmBed, words: list[str], out: Path) -> None:
    """Run a command on both hosts; its run folder is named as in the project's folder."""
    done = bed.srun(["-N2", "--mpi=pmi2"], [*PROGRAM, *words, "--out", str(out), "--quiet"], timeout=590, env=OVER_THE_LINK["pmi2"])
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr}")


def launches(bed: SlurmBed, target: Path) -> None:
    """Run the launches of one allocation, as a user in a job would."""
    for number in range(1, LAUNCHES + 1):
        start(bed, [*SHORT, "--allocation", target.name], target / f"launch-{number}")


def slow(hosts: Hosts) -> None:
    """Limit the second host's sends to a lower rate."""
    shape = ("root", "tbf", "rate", SLOWED, "burst", hosts.burst, "latency", "50ms")
    hosts.must("tc", "-n", hosts.names[1], "qdisc", "replace", "dev", "eth0", *shape)


def measure(target: Path) -> None:
    """Measure all runs, one after the other on one test bed."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        start(bed, ["run", "reports/suites/two-hosts.toml"], target / "two-hosts")
        launches(bed, target / "regression" / "before")
        slow(hosts)
        launches(bed, target / "regression" / "after")


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
