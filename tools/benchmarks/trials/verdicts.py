"""python -m tools.benchmarks.trials.verdicts FOLDER [options]   checks that `hunt`, `pairs` and `gate` report only what is slow.

Runs seeded hunts and pairs on four hosts joined by 1 Gbit/s, over plain TCP, under real Slurm (`srun -N4 collbench hunt|pairs`):
    healthy  all links are equal               -> nothing may be confirmed; "inconclusive" (exit 3) is counted separately
    half     one host's link has half the rate -> only that host must be confirmed (exit 1)
A gate is healthy only (tools.benchmarks.trials.gate has slow ones): two hosts, a baseline of six allocations of three launches for each
`--max-time` and machine, then a candidate allocation, with two more of the suspects, if any.
Each is run with every `--max-time`, on the machine as it is ("quiet") and next to processes that keep cores busy ("busy").

Writes to FOLDER trials.jsonl (a line per trial), README.md (the counts, with the date) and the runs of wrong trials. A trial that has a
line is not repeated, so an interrupted series continues.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.testbeds import Hosts, SlurmBed
from tests.testbeds.bed import Finished
from tools.benchmarks.trials.gate import Effort, Trials
from tools.benchmarks.trials.series import busy, keep, shape, span, srun, trials_in

HOSTS, RATE_MBIT = 4, 1000
COMMANDS, TRUTHS, LOADS = ("hunt", "pairs", "gate"), ("healthy", "half"), ("quiet", "busy")
_GATE = Effort(allocations=6, baseline_launches=3, launches=3)
_CODES = {"passed": 0, "regression": 1, "no verdict": 3, "wrong data": 4}
MAX_TIMES = ("0.02", "0.1", "1")
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Trial:
    """One command and its outcome.

    slow       the host with half the link rate; None: all are healthy
    confirmed, inconclusive  [kind, hosts…] of each suspect or finding
    load       the machine's load average at the end
    """

    command: str
    truth: str
    max_time: str
    load_kind: str
    seed: int
    slow: str | None
    code: int
    confirmed: list[list[str]]
    inconclusive: list[list[str]]
    seconds: float
    load: float

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Return the fields that identify a trial."""
        return self.command, self.truth, self.max_time, self.load_kind, self.seed

    @property
    def wrong(self) -> bool:
        """Whether something healthy was confirmed."""
        return any(places != [self.slow] for _, *places in self.confirmed)

    @property
    def found(self) -> bool:
        """Whether the slow host was confirmed, with exit code 1."""
        return self.slow is not None and self.code == 1 and any(places == [self.slow] for _, *places in self.confirmed)


def _shape_all(hosts: Hosts, slow: int | None) -> None:
    for index in range(HOSTS):
        rate = RATE_MBIT // 2 if index == slow else RATE_MBIT
        shape(hosts, index, rate, rate)


def play(hosts: Hosts, bed: SlurmBed, key: tuple[str, str, str, str, int], folder: Path) -> Trial:
    """Shape the links, run the command, and read its verdict. The run is kept only if the trial is wrong.

    Raises RuntimeError if the command does not end with a verdict.
    """
    command, truth, max_time, load_kind, seed = key
    slow = random.Random(f"{command} {seed}").randrange(HOSTS) if truth == "half" else None
    _shape_all(hosts, slow)
    run = folder / f"{command}-{truth}-{max_time}-{load_kind}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    words = ["--backend", "socket", "--max-time", max_time, "--seed", str(seed), "--out", str(run), "--format", "json", "--quiet"]
    began = time.monotonic()
    with busy(load_kind == "busy"):
        done = srun(bed, [f"-N{HOSTS}"], [command, *words], codes=(0, 1, 3), timeout=_TIMEOUT_S)
    seconds = round(time.monotonic() - began, 1)
    actual = json.loads((run / "run.json").read_text())[command]
    judged = actual["verdict"]["suspects"] if command == "hunt" else actual["judged"]
    names = actual["places"]
    confirmed = [_named(each, names) for each in judged if each["state"] == "confirmed"]
    inconclusive = [_named(each, names) for each in judged if each["state"] == "inconclusive"]
    if command == "pairs":  # a suspect of the matrix counts if the repetition confirmed it
        confirmed = [[one["kind"], *(names[place] for place in one["places"])] for one in json.loads(done.stdout)["findings"]]
    slow_name = hosts.names[slow] if slow is not None else None
    load = round(os.getloadavg()[0], 1)
    trial = Trial(command, truth, max_time, load_kind, seed, slow_name, done.returncode, confirmed, inconclusive, seconds, load)
    if not trial.wrong and (trial.found or slow is None):
        shutil.rmtree(run)
    return trial


@dataclass(frozen=True)
class TwoHosts:
    """Where a gate is measured: messages over plain TCP between two hosts of the bed (a Place of tools.benchmarks.trials.gate)."""

    bed: SlurmBed
    name: str
    max_time: str

    suite = (
        'schema = 1\ntitle = "healthy gates"\n\n[[sweeps]]\noperations = ["p2p_bandwidth", "p2p_latency"]\n'
        'backends = ["socket"]\nsizes = ["64K", "1M"]\n'
    )

    @property
    def options(self) -> Sequence[str]:
        """Return the options that keep a launch short."""
        return ("--max-time", self.max_time)

    def launch(self, words: Sequence[str]) -> Finished:
        """Start both ranks once."""
        return srun(self.bed, ["-N2"], words, timeout=_TIMEOUT_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Leave the links as they are."""


def play_gate(hosts: Hosts, bed: SlurmBed, key: tuple[str, str, str, str, int], folder: Path) -> Trial:
    """Measure the baseline, if it is missing, and one candidate; run the gate. The runs are kept only if the trial is wrong."""
    command, truth, max_time, load_kind, seed = key
    _shape_all(hosts, None)
    place = folder / f"gate-{max_time}-{load_kind}"
    place.mkdir(exist_ok=True)
    trials = Trials(TwoHosts(bed, f"gate-{max_time}-{load_kind}", max_time), place, _GATE)
    with busy(load_kind == "busy"):
        trials.learn()
        found = trials.play("same", seed)
    inconclusive = [["gate", reason] for reason in found.reasons] if found.result == "no verdict" else []
    trial = Trial(
        command, truth, max_time, load_kind, seed, None, _CODES[found.result], [["gate", name] for name in found.confirmed], inconclusive,
        found.seconds, found.load,
    )  # fmt: skip
    if not trial.wrong:
        shutil.rmtree(place / f"same-{seed}")
    return trial


def _named(suspect: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [suspect["kind"], *(names[place] for place in suspect["places"])]


def table(trials: Sequence[Trial]) -> str:
    """Return the counts as Markdown, and each trial with a wrong confirmation."""
    lines = [
        "| command | truth | --max-time | machine | trials | false confirmations | slow host confirmed | exit 3 | seconds each |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in sorted({trial.key[:4] for trial in trials}):
        those = [trial for trial in trials if trial.key[:4] == group]
        found = str(sum(trial.found for trial in those)) if group[1] == "half" else "–"
        spans = span([round(trial.seconds) for trial in those])
        counts = [str(len(those)), str(sum(trial.wrong for trial in those)), found, str(sum(trial.code == 3 for trial in those)), spans]
        lines.append(f"| {' | '.join([*group, *counts])} |")
    wrong = [f"- {'-'.join(map(str, trial.key))}: confirmed {trial.confirmed}" for trial in trials if trial.wrong]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    today = datetime.now(UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores: {HOSTS} hosts, {RATE_MBIT} Mbit/s"
    how = f"Made by `python -m tools.benchmarks.trials.verdicts FOLDER` to {today} on {machine}."
    busy_words = '"busy": one more process keeps a core busy. The hosts share this machine\'s cores, so other work disturbs all of them.'
    return f"# Trials of hunt, pairs and gate\n\n{how}\n{busy_words}\n\n{table(trials)}\n"


def main() -> None:
    """Run the missing trials, print each one, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.trials.verdicts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200, help="healthy trials of each command, spread over --max-time and machine")
    parser.add_argument("--half", type=int, default=20, help="trials with a slow host, of each command, --max-time and machine")
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    parser.add_argument("--max-times", nargs="+", default=MAX_TIMES)
    parser.add_argument("--loads", nargs="+", default=LOADS, choices=LOADS)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = {trial.key for trial in trials_in(folder, Trial)}
    kinds = [(command, max_time, load) for command in asked.commands for max_time in asked.max_times for load in asked.loads]
    each = -(-asked.count // (len(asked.max_times) * len(asked.loads)))
    wanted = [
        (command, truth, max_time, load, seed)
        for seed in range(max(each, asked.half))
        for truth, most in (("healthy", each), ("half", asked.half))
        for command, max_time, load in kinds
        if seed < most and (command, truth) != ("gate", "half")
    ]
    with Hosts(HOSTS, f"{RATE_MBIT}mbit") as hosts, SlurmBed(hosts) as bed:
        for key in wanted:
            if key in done:
                continue
            trial = (play_gate if key[0] == "gate" else play)(hosts, bed, key, folder)
            keep(folder, trial, readme)
            print(*key, trial.code, trial.slow, trial.confirmed, trial.inconclusive, f"{trial.seconds} s", flush=True)
    print(table(trials_in(folder, Trial)))


if __name__ == "__main__":
    main()
