"""python -m tools.benchmarks.trials.losses FOLDER [HEALTHY [LOSSY]]   checks that lost packets are reported, and full queues are not.

Two hosts joined by a link of 1 Gbit/s, `srun -N2 collbench` over TCP. The trials take EXCHANGES and QUEUES in turn. A host's own queue
slows the sender, so nothing is dropped; a switch that gets more than 1 Gbit/s drops what its queue cannot hold. The kinds:
    healthy  only full queues drop packets -> no line of the output suspects cables (50 trials; in half of them packets have up to 64 KiB,
             with which a core fills the link, in the others one segment)
    lossy    1 % of the packets to one host, of one segment as on a cable, are dropped at random -> a line does (20 trials)
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

from collbench.results.reader import read_run
from tests.faults.matrix.path_faults import dropped
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import keep, shape, span, srun, trials_in

RATE_MBIT, FAST_MBIT = 1000, 10_000
COUNTS = {"healthy": 50, "lossy": 20}
EXCHANGES = (("allreduce", "gloo"), ("p2p", "gloo"), ("p2p", "socket"))
QUEUES = ("host, 50 ms", "switch, 20 ms", "switch, 5 ms")  # where packets wait for the link, and for how long at most
MOST_SEGMENTS = 65535  # of a packet: no limit
MEASURE = {
    "allreduce": ("--sizes", "256K,8M", "--max-time", "1.5"),
    "p2p": ("--sizes", "4M", "--window", "4", "--max-time", "1"),
}
SUSPICION = "Check cables"


@dataclass(frozen=True)
class Trial:
    """One run.

    queue     of QUEUES
    suspects  the lines of the output that suspect cables
    rows      of each case: its operation, size, flags, and the hosts' counters of TCP
    load      the machine's load average at the end; seconds: of the whole command
    """

    kind: str
    seed: int
    operation: str
    backend: str
    queue: str
    suspects: list[str]
    rows: list[dict[str, Any]]
    seconds: float
    load: float
    date: str

    @property
    def right(self) -> bool:
        """Whether exactly the loss was reported."""
        return bool(self.suspects) == (self.kind == "lossy")

    @property
    def lost(self) -> int:
        """How many TCP segments were retransmitted because they had not arrived."""
        hosts = [counts for row in self.rows for counts in row["network"].values()]
        return sum(max(0, counts["tcp_retransmitted"] - counts["tcp_duplicates"]) for counts in hosts)


def run_trial(hosts: Hosts, bed: SlurmBed, kind: str, seed: int) -> Trial:
    """Shape the links, measure, and read the output."""
    (operation, backend), queue = drawn(seed)
    place, _, wait = queue.partition(", ")
    for host in range(hosts.count):
        shape(hosts, host, RATE_MBIT, FAST_MBIT if place == "switch" else RATE_MBIT, queue_ms=int(wait.removesuffix(" ms")))
    began = time.monotonic()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        run = Path(folder) / "run"
        stack.callback(hosts.limit_packets, MOST_SEGMENTS)
        hosts.limit_packets(1 if kind == "lossy" or seed % 2 else MOST_SEGMENTS)
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
    return Trial(kind, seed, operation, backend, queue, suspects, rows, seconds, load, time.strftime("%Y-%m-%d"))


def drawn(seed: int) -> tuple[tuple[str, str], str]:
    """Return the exchange and the queue of a trial: all pairs in turn."""
    pairs = list(product(EXCHANGES, QUEUES))
    return pairs[seed % len(pairs)]


def wanted(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return the kinds in turn, so that other work on the machine affects both alike."""
    return [(kind, seed) for seed in range(max(counts.values())) for kind, count in counts.items() if seed < count]


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes as Markdown, with every wrong trial."""
    lines = [
        "| hosts | exchange | queue | trials | segments lost | suspect cables | seconds each | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, (exchange, queue) in product(COUNTS, product(EXCHANGES, QUEUES)):
        those = [one for one in trials if (one.kind, (one.operation, one.backend), one.queue) == (kind, exchange, queue)]
        if those:
            lines.append(_line(kind, " over ".join(exchange), queue, those))
    for kind in dict.fromkeys(one.kind for one in trials):
        lines.append(_line(kind, "**all**", "", [one for one in trials if one.kind == kind]))
    wrong = [f"- {one.kind}, seed {one.seed}: {'; '.join(one.suspects) or 'no line suspects cables'}" for one in trials if not one.right]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def _line(kind: str, exchange: str, queue: str, those: Sequence[Trial]) -> str:
    named = sum(bool(one.suspects) for one in those)
    lost = span([one.lost for one in those])
    cells = [kind, exchange, queue, len(those), lost, named, span([one.seconds for one in those]), span([one.load for one in those])]
    return f"| {' | '.join(map(str, cells))} |"


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    dates = sorted({one.date for one in trials})
    measured = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return "\n".join(
        [
            "# Lost packets and full queues",
            "",
            "Made by `python -m tools.benchmarks.trials.losses FOLDER`: two hosts (network namespaces) joined by a link of 1 Gbit/s, TCP.",
            "A host's own queue slows the sender and drops nothing; a switch drops what its queue cannot hold.",
            "Healthy: only full queues drop packets, and no line of the output may suspect cables. In half of the trials (even seeds)",
            "packets have up to 64 KiB, with which these cores fill the link, in the others one segment.",
            "Lossy: 1 % of the packets to one host, of one segment as on a cable, are dropped at random, and a line must suspect cables.",
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
