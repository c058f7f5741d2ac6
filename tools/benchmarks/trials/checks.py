"""python -m tools.benchmarks.trials.checks FOLDER [options]   checks that `collbench check` says OK and SLOW only where it is true.

Conditions:
    quiet, busy-1, busy-2, busy-4   two ranks on this host, next to so many processes that keep cores busy. The machine is healthy
    half-link   two hosts (network namespaces) under a real Slurm. A link of 1 Gbit/s passes half of that
    slowed      two ranks on this host, over libraries that `--slowed` makes four times slower

"OK" is false over half a link and with a slowed library; "SLOW" is false everywhere else. INCONCLUSIVE is never false. Of the quiet runs
90 % must be OK: start those on an idle machine.

Writes to FOLDER trials.jsonl (a line per run), README.md (the counts) and the run folders of false verdicts. A run that has a line is not
repeated, so an interrupted series continues, and a series can be run in parts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import PROGRAM, busy, keep, shape, span, srun, trials_in

LOOPS = {"quiet": 0, "busy-1": 1, "busy-2": 2, "busy-4": 4}
HALF_LINK, SLOWED = "half-link", "slowed"
RUNS = {"quiet": 20, "busy-1": 36, "busy-2": 36, "busy-4": 36, HALF_LINK: 36, SLOWED: 36}  # 200 in all
RATE_MBIT = 1000
SLOWING = "by=300% operations=allreduce,p2p_bandwidth"  # a ping-pong of two slowed ranks would become slower by each iteration
LEAST_OK = 0.9  # of the quiet runs
_CODES = {0: "OK", 1: "SLOW", 3: "INCONCLUSIVE", 4: "BROKEN"}
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Trial:
    """A run of `check`, with its verdict and exit code.

    load      the machine's load average when it began
    evidence  the lines below the verdict: one for each backend, and each operation over it
    """

    condition: str
    number: int
    outcome: str
    code: int
    verdict: str
    seconds: float
    load: float
    evidence: tuple[str, ...] = ()

    @property
    def is_false(self) -> bool:
        """Whether the verdict is not true, or the exit code is not that of the verdict."""
        untrue = "OK" if self.condition in (HALF_LINK, SLOWED) else "SLOW"
        return self.outcome in (untrue, "BROKEN") or _CODES.get(self.code) != self.outcome


def play(condition: str, number: int, folder: Path, words: Sequence[str], bed: SlurmBed | None = None) -> Trial:
    """Run `check` once. The run folder is kept only if the verdict is false. Raises RuntimeError if it prints none."""
    run = folder / f"{condition}-{number}"
    shutil.rmtree(run, ignore_errors=True)
    line = ["check", *words, "--out", str(run)]
    load, began = os.getloadavg()[0], time.monotonic()
    with busy(LOOPS.get(condition, 0)):
        if bed is not None:
            done = srun(bed, ["-N2"], [*line, "--backend", "gloo"], codes=tuple(_CODES), timeout=_TIMEOUT_S)
        else:
            slowing = ["--slowed", SLOWING] if condition == SLOWED else []
            done = subprocess.run(
                ["timeout", str(_TIMEOUT_S), *PROGRAM, *line, "--ranks", "2", *slowing], capture_output=True, text=True, check=False
            )
    seconds = round(time.monotonic() - began, 1)
    printed = done.stdout.splitlines()
    verdict = next((text for text in printed if text.partition(":")[0] in _CODES.values()), None)
    if verdict is None:
        raise RuntimeError(f"{condition}: no verdict, exit code {done.returncode}: {done.stdout}{done.stderr}")
    evidence = tuple(text.strip() for text in printed if text.startswith("  ") and " over " in text)
    trial = Trial(condition, number, verdict.partition(":")[0], done.returncode, verdict, seconds, round(load, 1), evidence)
    if not trial.is_false:
        shutil.rmtree(run, ignore_errors=True)
    return trial


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes by condition as Markdown, and each false verdict."""
    head = ["condition", "runs", *(f"{outcome} ({code})" for code, outcome in _CODES.items()), "false", "seconds each", "load"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for condition in [name for name in RUNS if any(trial.condition == name for trial in trials)]:
        members = [trial for trial in trials if trial.condition == condition]
        outcomes = Counter(trial.outcome for trial in members)
        cells = [condition, len(members), *(outcomes[outcome] for outcome in _CODES.values()), sum(trial.is_false for trial in members)]
        spans = [span([round(trial.seconds) for trial in members]), span([trial.load for trial in members])]
        lines.append(f"| {' | '.join(map(str, [*cells, *spans]))} |")
    false = [f"- {trial.condition} {trial.number} (exit code {trial.code}): {trial.verdict}" for trial in trials if trial.is_false]
    if false:
        lines += ["", *false]
    return "\n".join(lines)


def missed_bounds(trials: Sequence[Trial]) -> list[str]:
    """Return which bounds of the series the runs miss."""
    missed = [f"{trial.condition} {trial.number} is {trial.outcome}" for trial in trials if trial.is_false]
    quiet = [trial for trial in trials if trial.condition == "quiet"]
    fine = sum(trial.outcome == "OK" for trial in quiet)
    if fine < LEAST_OK * len(quiet):
        missed.append(f"only {fine} of {len(quiet)} quiet runs are OK")
    return missed


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    today = datetime.now(UTC).date().isoformat()
    return f"""# Trials of check

Made by `python -m tools.benchmarks.trials.checks FOLDER` to {today} on {os.cpu_count()} cores. \
The head has the outcomes with their exit codes.

- quiet, busy: two ranks on this host, next to 0, 1, 2 or 4 processes that keep cores busy.
- half-link: two hosts, {RATE_MBIT} Mbit/s declared, half of that in fact.
- slowed: `--slowed {SLOWING}`.
- False: OK over half a link or with a slowed library, SLOW elsewhere, BROKEN.

{table(trials)}
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the missing trials, print each one, and print the table. Return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.trials.checks")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conditions", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--runs", type=int, help="of each condition")
    parser.add_argument("--total-time", help="seconds of each check (default: those of check itself)")
    asked = parser.parse_args(words)
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = {(trial.condition, trial.number) for trial in trials_in(folder, Trial)}
    most = {condition: asked.runs or RUNS[condition] for condition in asked.conditions}
    wanted = [(condition, number) for number in range(max(most.values())) for condition in asked.conditions if number < most[condition]]
    left = [key for key in wanted if key not in done]
    limit = ["--total-time", asked.total_time] if asked.total_time else []
    with ExitStack() as stack:
        bed = None
        if any(condition == HALF_LINK for condition, _ in left):
            hosts = stack.enter_context(Hosts(2, f"{RATE_MBIT}mbit"))
            bed = stack.enter_context(SlurmBed(hosts))
            for index in range(2):
                shape(hosts, index, RATE_MBIT // 2, RATE_MBIT)  # each host's own interface declares the whole rate
        for condition, number in left:
            trial = play(condition, number, folder, limit, bed if condition == HALF_LINK else None)
            keep(folder, trial, readme)
            print(condition, number, trial.code, trial.verdict, f"{trial.seconds} s, load {trial.load}", flush=True)
    trials = trials_in(folder, Trial)
    print(table(trials))
    missed = missed_bounds(trials)
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
