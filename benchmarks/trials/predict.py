"""python -m benchmarks.trials.predict FOLDER [ROUNDS]   checks `collbench predict` on hosts with shaped links.

Measures four collectives over MPI (TCP) with one rank on each of 2 to 32 hosts, the node counts of a round in a shuffled order.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from benchmarks.trials.series import srun
from tests.testbeds import Hosts, SlurmBed

NODES, TARGETS = (2, 4, 8, 12, 16), (24, 32)
ROUNDS = 3
LINK = ("rate", "20mbit", "burst", "16kb", "latency", "200ms")  # a small burst: what passes unshaped would hide the rate
SUITE = """\
schema = 1
title = "the trials of predict"

[run]
max_time = 2

[defaults]
sizes = ["64", "4K", "32K", "128K"]
backends = ["mpi"]

[[sweeps]]
operations = ["allreduce", "allgather", "alltoall", "broadcast"]
"""


def measure(folder: Path, rounds: int) -> None:
    """Measure the missing launches into FOLDER/runs: ROUND-NODES."""
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    suite = folder / "suite.toml"
    suite.write_text(SUITE)
    for number in range(1, rounds + 1):
        order = [*NODES, *TARGETS]
        random.Random(number).shuffle(order)
        for nodes in order:
            if not (out := runs / f"{number}-{nodes}").exists():
                try:
                    _launch(nodes, ["run", str(suite), "--out", str(out), "--timeout", "120", "--quiet"])
                except RuntimeError as error:  # a run that was cut off is left out, and not repeated: that would select quiet ones
                    print(f"{out.name}: {str(error)[-200:]}", flush=True)


def _launch(nodes: int, words: list[str]) -> None:
    """Start one rank on each of so many hosts; all 32 hosts exist in every launch."""
    with Hosts(max(TARGETS), None) as hosts, SlurmBed(hosts, cpus=1) as bed:
        for name in hosts.names:
            hosts.must("tc", "qdisc", "add", "dev", f"{name}p", "root", "tbf", *LINK)
            hosts.must("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *LINK)
        srun(bed, [f"-N{nodes}", f"-n{nodes}", "--mpi=pmi2"], words, codes=(0, 1, 3), timeout=300)


if __name__ == "__main__":
    measure(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
