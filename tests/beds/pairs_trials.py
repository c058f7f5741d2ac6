"""python -m tests.beds.pairs_trials FOLDER [N]   does `collbench pairs` name who is slow, and nobody else?

Eight hosts joined by shaped links, `srun -N8 collbench pairs` over plain TCP, N seeded trials (20) of each kind:
    host    the link of one host carries half, both ways    -> that host alone is named
    pair    what one host sends to one other is slowed to half -> that directed pair alone is named
    equal   all links are alike                              -> nobody is named
Leaves every trial's run folder in FOLDER and prints a table of outcomes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.beds import Hosts, SlurmBed

ROOT = Path(__file__).parents[2]
HOSTS, RATE_MBIT = 8, 200
KINDS = ("host", "pair", "equal")
MEASURE = ["--backend", "socket", "--size", "256K", "--window", "2", "--max-time", "0.6"]


@dataclass(frozen=True)
class Trial:
    """One matrix: what was done to the links, and who was named; `truth` and `named` are lists of [kind, places…]."""

    kind: str
    seed: int
    truth: list[list[str]]
    named: list[list[str]]
    sentences: list[str]

    @property
    def right(self) -> bool:
        """Whether exactly those were named that are slow."""
        return sorted(self.named) == sorted(self.truth)


def shape(hosts: Hosts, index: int, mbit: int, slower_to: str | None = None) -> None:
    """Gives a host's link this rate both ways; what goes to the address `slower_to` has half of it."""
    name = hosts.names[index]
    hosts.must("tc", "qdisc", "replace", "dev", f"{name}p", "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
    hosts.must("tc", "-n", name, "qdisc", "del", "dev", "eth0", "root")
    hosts.must("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10", "r2q", "1000")
    for number, rate in ((10, mbit), (20, mbit // 2)):
        speed = ("rate", f"{rate}mbit", "ceil", f"{rate}mbit", "burst", "64kb", "cburst", "64kb")
        hosts.must("tc", "-n", name, "class", "add", "dev", "eth0", "parent", "1:", "classid", f"1:{number}", "htb", *speed)
    if slower_to:
        match = ("protocol", "ip", "parent", "1:", "u32", "match", "ip", "dst", f"{slower_to}/32", "flowid", "1:20")
        hosts.must("tc", "-n", name, "filter", "add", "dev", "eth0", *match)


def prepared(hosts: Hosts, kind: str, seed: int) -> list[list[str]]:
    """Shapes all links for a trial; returns the truth."""
    drawn = random.Random(f"{kind} {seed}")
    first, second = drawn.sample(range(HOSTS), 2)
    for index in range(HOSTS):
        half = kind == "host" and index == first
        slower_to = hosts.addresses[second] if kind == "pair" and index == first else None
        shape(hosts, index, RATE_MBIT // 2 if half else RATE_MBIT, slower_to)
    names = hosts.names
    return {"host": [["node", names[first]]], "pair": [["pair", names[first], names[second]]], "equal": []}[kind]


def run_trial(hosts: Hosts, bed: SlurmBed, kind: str, seed: int, folder: Path) -> Trial:
    """Shapes, measures, and reads what `collbench report` says of the run."""
    truth = prepared(hosts, kind, seed)
    run = folder / f"{kind}-{seed}"
    program = [str(ROOT / ".venv/bin/python"), "-m", "collbench"]
    done = bed.srun([f"-N{HOSTS}"], [*program, "pairs", *MEASURE, "--out", str(run), "--format", "json", "--quiet"], timeout=110)
    if done.returncode != 0:
        raise RuntimeError(f"trial {kind} {seed} ended with {done.returncode}: {done.stderr}")
    told = json.loads(done.stdout)
    names = told["places"]
    found = told["findings"]
    named = [[one["kind"], *(names[place] for place in one["places"])] for one in found]
    return Trial(kind, seed, truth, named, [one["sentence"] for one in found])


def run_trials(folder: Path, wanted: Sequence[tuple[str, int]]) -> list[Trial]:
    """All of them on one bed."""
    with Hosts(HOSTS, f"{RATE_MBIT}mbit", "64kb") as hosts, SlurmBed(hosts) as bed:
        return [run_trial(hosts, bed, kind, seed, folder) for kind, seed in wanted]


def table(trials: Sequence[Trial]) -> str:
    """Outcomes as markdown, with every trial that was not right in full."""
    lines = ["| done to the links | trials | exactly that was named |", "|---|---|---|"]
    for kind in KINDS:
        those = [trial for trial in trials if trial.kind == kind]
        lines.append(f"| {kind} | {len(those)} | {sum(trial.right for trial in those)} |")
    wrong = [f"- {trial.kind}, seed {trial.seed}: named {trial.named}, not {trial.truth}" for trial in trials if not trial.right]
    return "\n".join([*lines, *wrong])


def main(folder: Path, count: int) -> None:
    """Runs the trials and prints the table."""
    print(table(run_trials(folder, [(kind, seed) for seed in range(count) for kind in KINDS])))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
