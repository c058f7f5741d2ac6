"""python -m tools.benchmarks.trials.groups FOLDER [SECONDS]   checks that `collbench hunt --groups` names a slow trunk, and no node.

Eight hosts on two bridges that a trunk joins, `srun -N8 collbench hunt` over plain TCP, seeded trials of each kind:
    trunk    the trunk carries 0.5 to 1.4 times the rate of a host, in each direction  -> only the trunk is confirmed
    equal    the trunk has no limit                                                   -> nothing is confirmed or inconclusive
    node     the trunk has no limit, and the link of one host has half the rate       -> only that host is confirmed
The trunk joins 4 and 4 hosts, or 3 and 5. Writes to FOLDER trials.jsonl (a line per trial) and README.md (a table). SECONDS: no trial
begins later. A trial that has a line is not repeated, so an interrupted series continues.
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
from tempfile import TemporaryDirectory
from typing import Any

from tests.testbeds import Bottleneck, SlurmBed
from tools.benchmarks.trials.series import bucket, keep, shape, span, srun, trials_in

HOSTS, RATE_MBIT, BURST = 8, 200, "64kb"
# A sample of 256 KiB takes 11 ms, or 88 ms if four pairs share a trunk of half the rate.
MEASURE = ["--backend", "socket", "--size", "128K", "--window", "2", "-n", "8", "--max-time", "0.25"]
COUNTS = {"trunk": 40, "equal": 34, "node": 6}
WHAT = {
    "trunk": "the trunk carries 0.5 to 1.4 times the rate of a host",
    "equal": "none",
    "node": "the link of one host has half the rate",
}
NEAR = (4, 3, 5)  # hosts on the first bridge
PORTS_EVERY = 10  # trials, of which the first also measures source ports and confirmed hosts alone


class TwoLeaves(Bottleneck):
    """Hosts with links of one rate on two bridges, and a trunk whose limit can be set."""

    def __init__(self) -> None:
        super().__init__(HOSTS)
        self.rate, self.burst = f"{RATE_MBIT}mbit", BURST

    @property
    def trunk_ends(self) -> tuple[str, str]:
        return f"cb{self.number}h0p", f"cb{self.number}h00p"

    def _shape(self, device: str, senders: Sequence[str]) -> None:
        """Do not limit the trunk."""

    def set_up(self, near: int, trunk_mbit: int | None, slow: int | None = None) -> None:
        """Put so many hosts on the first bridge, limit the trunk (None: not), and give one host half the rate (None: none)."""
        for index, name in enumerate(self.names):
            self.must("ip", "link", "set", f"{name}p", "master", self.bridge if index < near else self.far_bridge)
            rate = RATE_MBIT // 2 if index == slow else RATE_MBIT
            shape(self, index, rate, rate, BURST)
        for device in self.trunk_ends:
            self.must("tc", "qdisc", "replace", "dev", device, *bucket(trunk_mbit or 100_000, BURST if trunk_mbit else "4mb"))


@dataclass(frozen=True)
class Trial:
    """One hunt. trunk_mbit: the limit of the trunk, 0: none; suspects: [state, kind, part or places] of each that is not cleared."""

    kind: str
    seed: int
    near: int
    trunk_mbit: int
    slow: str
    suspects: list[list[Any]]
    ratio: float | None
    seconds: float
    load: float
    date: str

    @property
    def right(self) -> bool:
        """Whether exactly the fault was confirmed, and no other place is confirmed or inconclusive as slow by its messages."""
        named = [[kind, places] for state, kind, places in self.suspects if state == "confirmed"]
        truth = {"trunk": [["trunk", []]], "equal": [], "node": [["node", [self.slow]]]}[self.kind]
        return named == truth

    @property
    def doubts(self) -> int:
        """How many trunks are inconclusive."""
        return sum((state, kind) == ("inconclusive", "trunk") for state, kind, _ in self.suspects)


def run_trial(hosts: TwoLeaves, bed: SlurmBed, kind: str, seed: int) -> Trial:
    """Set the links, hunt, and read the verdict."""
    drawn = random.Random(f"groups {kind} {seed}")
    near = drawn.choice(NEAR)
    trunk_mbit = round(RATE_MBIT * drawn.uniform(0.5, 1.4)) if kind == "trunk" else 0
    slow = drawn.randrange(HOSTS) if kind == "node" else None
    hosts.set_up(near, trunk_mbit or None, slow)
    names = hosts.names
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "topology.conf"
        lines = [f"SwitchName=leaf1 Nodes={','.join(names[:near])}", f"SwitchName=leaf2 Nodes={','.join(names[near:])}"]
        file.write_text("\n".join([*lines, "SwitchName=spine Switches=leaf[1-2]", ""]))
        alone = [] if seed % PORTS_EVERY == 0 else ["--no-isolation"]
        words = [
            "hunt",
            *MEASURE,
            *alone,
            "--groups",
            str(file),
            "--seed",
            str(seed),
            "--out",
            f"{folder}/run",
            "--format",
            "json",
            "--quiet",
        ]
        done = srun(bed, [f"-N{HOSTS}"], words, codes=(0, 1, 3), timeout=200)
    verdict = json.loads(done.stdout.splitlines()[-1])
    suspects = []
    ratio = None
    for suspect in verdict["suspects"]:
        if suspect["state"] == "cleared":
            continue
        is_trunk = suspect["kind"] == "trunk"
        suspects.append([suspect["state"], suspect["kind"], [] if is_trunk else [names[place] for place in suspect["places"]]])
        ratio = suspect["ratio"] if is_trunk else ratio
    return Trial(
        kind, seed, near, trunk_mbit, "" if slow is None else names[slow], suspects, ratio, round(time.monotonic() - began, 1),
        round(os.getloadavg()[0], 1), time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def wanted() -> list[tuple[str, int]]:
    """Return the kinds in turn, so that other work on the machine affects all alike."""
    return [(kind, seed) for seed in range(max(COUNTS.values())) for kind, count in COUNTS.items() if seed < count]


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README: the outcomes, with every wrong trial."""
    dates = sorted({trial.date for trial in trials})
    lines = [
        "# Faults between groups",
        "",
        "Made by `python -m tools.benchmarks.trials.groups FOLDER`: eight hosts (network namespaces) with links of 200 Mbit/s on two",
        "bridges, and a trunk between them; `collbench hunt --groups topology.conf` over plain TCP, 4 and 4 hosts or 3 and 5.",
        f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on a machine with 2 cores that other work used too.",
        "",
        "| fault | trials | exactly that was confirmed | nodes accused wrongly | trunk inconclusive | seconds each | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, what in WHAT.items():
        those = [trial for trial in trials if trial.kind == kind]
        accused = sum(
            len(places) == 1 and places != [trial.slow] and state == "confirmed" for trial in those for state, _, places in trial.suspects
        )
        cells = [
            what, len(those), sum(trial.right for trial in those), accused, sum(trial.doubts > 0 for trial in those),
            span([trial.seconds for trial in those]), span([trial.load for trial in those]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    wrong = [f"- {trial.kind}, seed {trial.seed}: {trial.suspects}" for trial in trials if not trial.right]
    return "\n".join([*lines, *([""] if wrong else []), *wrong, ""])


def main(folder: Path, seconds: float) -> None:
    """Run the missing trials, as many as begin in time."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    done = {(trial.kind, trial.seed) for trial in trials_in(folder, Trial)}
    with TwoLeaves() as hosts, SlurmBed(hosts) as bed:
        for kind, seed in (case for case in wanted() if case not in done):
            if time.monotonic() > until:
                break
            trial = run_trial(hosts, bed, kind, seed)
            keep(folder, trial, readme)
            print(f"{kind} {seed}: {'right' if trial.right else 'WRONG'} {trial.suspects} {trial.seconds} s", flush=True)
    print(readme(trials_in(folder, Trial)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
