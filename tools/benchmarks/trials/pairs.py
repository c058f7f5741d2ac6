"""python -m tools.benchmarks.trials.pairs FOLDER [N]   checks that `collbench pairs` names the slow host or pair, and no other.

Eight hosts joined by shaped links, `srun -N8 collbench pairs` over plain TCP, N seeded trials (20) of each kind:
    host    the link of one host has half the rate          -> only that host is named
    pair    the path from one host to another has half the rate -> only that directed pair is named
    equal   all links are equal                             -> no host is named
Writes to FOLDER every trial's run (only what `collbench report` needs), README.md (a table of outcomes) and trials.jsonl (a line per
trial). `make test-all` runs the same trials (tests/plugins/hunt/measure/test_pairs_across_hosts.py) and writes them to build/pairs-trials.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import bucket, keep, span, srun, trials_in

HOSTS, RATE_MBIT = 8, 200
COUNT = 20
KINDS = ("host", "pair", "equal")
WHAT = ("the link of one host has half the rate", "the path from one host to another has half the rate", "none")
# A sample of 256 KiB takes 11 ms, or 22. The time limit allows twice the fewest samples for an interval.
MEASURE = ["--backend", "socket", "--size", "128K", "--window", "2", "-n", "16", "--max-time", "0.4"]

NEEDLESS = ("cells.jsonl", "samples.bin", "topology.json")  # empty, and the same in all


@dataclass(frozen=True)
class Trial:
    """One matrix: the slowed link and the reported ones; `truth` and `named` are lists of [kind, places…].

    seconds: of the whole command; load: the machine's load average when it ended; code: the exit code (0 in older series)
    """

    kind: str
    seed: int
    truth: list[list[str]]
    named: list[list[str]]
    sentences: list[str]
    seconds: float
    load: float
    code: int = 0

    @property
    def right(self) -> bool:
        """Whether exactly the slow hosts or pairs were named."""
        return sorted(self.named) == sorted(self.truth)


def shape(hosts: Hosts, index: int, mbit: int, slower_to: str | None = None) -> None:
    """Set the rate of a host's link both ways; packets to the address `slower_to` have half of it."""
    name = hosts.names[index]
    hosts.must("tc", "qdisc", "replace", "dev", f"{name}p", *bucket(mbit, "64kb"))
    hosts.must("tc", "-n", name, "qdisc", "del", "dev", "eth0", "root")
    hosts.must("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10", "r2q", "1000")
    for number, rate in ((10, mbit), (20, mbit // 2)):
        speed = ("rate", f"{rate}mbit", "ceil", f"{rate}mbit", "burst", "64kb", "cburst", "64kb")
        hosts.must("tc", "-n", name, "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", *speed)
    if slower_to:
        match = ("protocol", "ip", "parent", "1:", "u32", "match", "ip", "dst", f"{slower_to}/32", "flowid", "1:20")
        hosts.must("tc", "-n", name, "filter", "add", "dev", "eth0", *match)


def prepared(hosts: Hosts, kind: str, seed: int) -> list[list[str]]:
    """Shape all links for a trial; return the truth."""
    drawn = random.Random(f"{kind} {seed}")
    first, second = drawn.sample(range(HOSTS), 2)
    for index in range(HOSTS):
        half = kind == "host" and index == first
        slower_to = hosts.addresses[second] if kind == "pair" and index == first else None
        shape(hosts, index, RATE_MBIT // 2 if half else RATE_MBIT, slower_to)
    names = hosts.names
    return {"host": [["node", names[first]]], "pair": [["pair", names[first], names[second]]], "equal": []}[kind]


def run_trial(hosts: Hosts, bed: SlurmBed, kind: str, seed: int, folder: Path) -> Trial:
    """Shape the links, run `collbench pairs`, read its findings, and store them."""
    truth = prepared(hosts, kind, seed)
    run = folder / f"{kind}-{seed}"
    began = time.monotonic()
    words = ["pairs", *MEASURE, "--out", str(run), "--format", "json", "--quiet"]
    done = srun(bed, [f"-N{HOSTS}"], words, codes=(0, 1, 3), timeout=110)
    seconds = round(time.monotonic() - began, 1)
    actual = json.loads(done.stdout)
    names = actual["places"]
    found = actual["findings"]
    named = [[one["kind"], *(names[place] for place in one["places"])] for one in found]
    for name in NEEDLESS:
        (run / name).unlink()
    info = run / "run.json"
    info.write_text(info.read_text().replace(str(folder), "pairs-trials"))
    load = round(os.getloadavg()[0], 1)
    trial = Trial(kind, seed, truth, named, [one["sentence"] for one in found], seconds, load, done.returncode)
    keep(folder, trial, readme)
    return trial


def wanted(count: int) -> list[tuple[str, int]]:
    """Return the kinds in turn, so that other work on the machine affects all kinds alike."""
    return [(kind, seed) for seed in range(count) for kind in KINDS]


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes as Markdown, with every wrong trial."""
    lines = ["| defect of the links of eight hosts | trials | exactly that was named | seconds each |", "|---|---|---|---|"]
    for kind, what in zip(KINDS, WHAT, strict=True):
        those = [trial for trial in trials if trial.kind == kind]
        lines.append(f"| {what} | {len(those)} | {sum(trial.right for trial in those)} | {span([trial.seconds for trial in those])} |")
    wrong = [f"- {trial.kind}, seed {trial.seed}: named {trial.named}, not {trial.truth}" for trial in trials if not trial.right]
    return "\n".join([*lines, *wrong])


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    return table(trials) + "\n"


def main(folder: Path, count: int) -> None:
    """Run the missing trials and print the table."""
    done = {(trial.kind, trial.seed) for trial in trials_in(folder, Trial)}
    with Hosts(HOSTS, f"{RATE_MBIT}mbit", "64kb") as hosts, SlurmBed(hosts) as bed:
        for kind, seed in (each for each in wanted(count) if each not in done):
            run_trial(hosts, bed, kind, seed, folder)
    print(table(trials_in(folder, Trial)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
