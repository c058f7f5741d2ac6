"""python -m benchmarks.trials.losses FOLDER [HEALTHY [LOSSY]]   checks that lost packets are reported, and full queues are not.

Two hosts joined by a link of 1 Gbit/s, `srun -N2 collbench` over TCP. The trials take EXCHANGES and QUEUES_MS in turn: a short queue
overflows when a flow fills the link. The kinds:
    healthy  only full queues drop packets -> no line of the output suspects cables (50 trials)
    lossy    1 % of the packets to one host are dropped at random -> a line does (20 trials)
Writes to FOLDER trials.jsonl (a line per trial, with the counters of both hosts) and README.md (a table). A trial that has a line is not
repeated, so an interrupted series continues.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.trials.series import keep, shape, span, srun, trials_in
from collbench.results.reader import read_run
from tests.faults.matrix.path_faults import dropped
from tests.testbeds import Hosts, SlurmBed

RATE_MBIT = 1000
COUNTS = {"healthy": 50, "lossy": 20}
EXCHANGES = (("allreduce", "gloo"), ("p2p", "gloo"), ("p2p", "socket"))
QUEUES_MS = (50, 20, 5)
MEASURE = {
    "allreduce": ("--sizes", "64K,1M,16M", "--max-time", "1.5"),
    "p2p": ("--sizes", "256K,4M", "--window", "4", "--max-time", "0.7"),
}
SUSPICION = "Check cables"


@dataclass(frozen=True)
class Trial:
    """One run.

    queue_ms  how long a packet may wait for the link
    suspects  the lines of the output that suspect cables
    rows      of each case: its operation, size, flags, and the hosts' counters of TCP
    load      the machine's load average at the end; seconds: of the whole command
    """

    kind: str
    seed: int
    operation: str
    backend: str
    queue_ms: int
    suspects: list[str]
    rows: list[dict[str, Any]]
    seconds: float
    load: float
    date: str

    @property
    def right(self) -> bool:
        """Whether exactly the loss was reported."""
        return bool(self.suspects) == (self.kind == "lossy")


def run_trial(hosts: Hosts, bed: SlurmBed, kind: str, seed: int) -> Trial:
    """Shape the links, measure, and read the output."""
    (operation, backend), queue_ms = drawn(seed)
    for host in range(hosts.count):
        shape(hosts, host, RATE_MBIT, RATE_MBIT, queue_ms=queue_ms)
    began = time.monotonic()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        run = Path(folder) / "run"
        if kind == "lossy":
            stack.enter_context(dropped(hosts, seed % hosts.count, "loss 1"))
        words = [operation, "--backend", backend, *MEASURE[operation], "--out", str(run)]
        done = srun(bed, [f"-N{hosts.count}"], words, timeout=180)
        rows = [
            {"operation": row.operation, "bytes": row.size_bytes, "flags": list(row.flags), "network": row.evidence["network"]}
            for row in read_run(run).rows
        ]
    seconds = round(time.monotonic() - began, 1)
    suspects = [line for line in done.stdout.splitlines() if SUSPICION in line]
    load = round(os.getloadavg()[0], 1)
    return Trial(kind, seed, operation, backend, queue_ms, suspects, rows, seconds, load, time.strftime("%Y-%m-%d"))


def drawn(seed: int) -> tuple[tuple[str, str], int]:
    """Return the exchange and the queue of a trial: all pairs in turn."""
    pairs = list(product(EXCHANGES, QUEUES_MS))
    return pairs[seed % len(pairs)]


def wanted(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return the kinds in turn, so that other work on the machine affects both alike."""
    return [(kind, seed) for seed in range(max(counts.values())) for kind, count in counts.items() if seed < count]


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes as Markdown, with every wrong trial."""
    lines = ["| hosts | exchange | queue | trials | suspect cables | seconds each | load |", "|---|---|---|---|---|---|---|"]
    for kind, (exchange, queue_ms) in product(COUNTS, product(EXCHANGES, QUEUES_MS)):
        those = [one for one in trials if (one.kind, (one.operation, one.backend), one.queue_ms) == (kind, exchange, queue_ms)]
        if those:
            lines.append(_line(kind, " over ".join(exchange), f"{queue_ms} ms", those))
    for kind in COUNTS:
        lines.append(_line(kind, "**all**", "", [one for one in trials if one.kind == kind]))
    wrong = [f"- {one.kind}, seed {one.seed}: {'; '.join(one.suspects) or 'no line suspects cables'}" for one in trials if not one.right]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def _line(kind: str, exchange: str, queue: str, those: Sequence[Trial]) -> str:
    named = sum(bool(one.suspects) for one in those)
    cells = [kind, exchange, queue, len(those), named, span([one.seconds for one in those]), span([one.load for one in those])]
    return f"| {' | '.join(map(str, cells))} |"


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    dates = sorted({one.date for one in trials})
    measured = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return "\n".join(
        [
            "# Lost packets and full queues",
            "",
            "Made by `python -m benchmarks.trials.losses FOLDER`: two hosts (network namespaces) joined by a link of 1 Gbit/s, TCP.",
            "Healthy: only full queues drop packets, and no line of the output may suspect cables.",
            "Lossy: 1 % of the packets to one host are dropped at random, and a line must suspect cables.",
            f"Measured {measured} on a machine with 2 cores that other work used too.",
            "",
            table(trials),
            "",
        ]
    )  # fmt: skip


def main(folder: Path, counts: dict[str, int]) -> None:
    """Run the missing trials and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {(trial.kind, trial.seed) for trial in trials_in(folder, Trial)}
    with Hosts(2, f"{RATE_MBIT}mbit") as hosts, SlurmBed(hosts) as bed:
        for kind, seed in (each for each in wanted(counts) if each not in done):
            trial = run_trial(hosts, bed, kind, seed)
            keep(folder, trial, readme)
            print(f"{kind}, seed {seed}: {'right' if trial.right else 'WRONG'}, {trial.seconds} s, load {trial.load}", flush=True)
    print(table(trials_in(folder, Trial)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), {**COUNTS, **dict(zip(COUNTS, map(int, sys.argv[2:]), strict=False))})
