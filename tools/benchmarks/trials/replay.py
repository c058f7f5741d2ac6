"""python -m tools.benchmarks.trials.replay FOLDER   judges the raw data of a series of trials again, and prints the table of its README.

FOLDER holds README.md, trials.jsonl (a line per trial) and raw.tar.xz (the runs of all trials):
    reports/pairs-trials    the findings of `collbench report` about each stored matrix
    reports/gate-trials     the verdict of `collbench gate` on the last allocations of each trial, with the series' own baseline

Trials that today's version judges in another way are listed below the table, and the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.cli.command import run
from tools.benchmarks.trials import gate, pairs
from tools.benchmarks.trials.series import trials_in, unpacked

JOBS = 2  # commands at a time


@dataclass(frozen=True)
class Replay:
    """A trial as judged today, and what was stored and is found today."""

    trial: Any
    stored: Any
    today: Any

    @property
    def is_equal(self) -> bool:
        """Whether today's version judges as it was judged then."""
        return bool(self.stored == self.today)


def replayed_pairs(raw: Path, trial: pairs.Trial) -> Replay:
    """Read the findings of a stored matrix again."""
    done = run(raw, "report", f"{trial.kind}-{trial.seed}", "--format", "json")
    actual = json.loads(done.stdout)
    named = [[one["kind"], *(actual["places"][place] for place in one["places"])] for one in actual["findings"]]
    return Replay(replace(trial, named=named), trial.named, named)


def replayed_gate(raw: Path, trial: gate.Trial) -> Replay:
    """Judge the last allocations of a trial again."""
    target = raw / f"{trial.kind}-{trial.seed}"
    place = "memory" if trial.kind in gate.ON_MEMORY else "link"
    expect = ["--expect", "expected.toml"] if (target / "expected.toml").exists() else []
    runs = [each.name for each in sorted(target.iterdir()) if each.is_dir() and each.name[0].isdigit()]
    done = run(target, "gate", "--baseline", f"../baseline-{place}", "--out", "today.json", *expect, *runs)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"{target.name} ended with {done.returncode}: {done.stderr}")
    last = json.loads((target / "today.json").read_text())
    names, cause = [each["name"] for each in gate.confirmed(last)], last["cause"] and last["cause"]["kind"]
    before = [name.replace("all cells", "all cases") for name in trial.confirmed]  # a case was called a cell
    stored, today = [trial.result, sorted(before), trial.cause], [last["result"], sorted(names), cause]
    return Replay(replace(trial, result=last["result"], confirmed=names, cause=cause, right=trial.right and stored == today), stored, today)


def replayed(folder: Path, wanted: Sequence[str] = ()) -> Iterator[Replay]:
    """Yield each trial of a series as judged today; `wanted`: names such as host-3, all by default."""
    is_pairs = folder.name.startswith("pairs")
    kind: Any = pairs.Trial if is_pairs else gate.Trial
    chosen = [trial for trial in trials_in(folder, kind) if not wanted or f"{trial.kind}-{trial.seed}" in wanted]
    with unpacked(folder) as raw, ThreadPoolExecutor(JOBS) as pool:
        judge: Any = replayed_pairs if is_pairs else replayed_gate
        yield from pool.map(partial(judge, raw), chosen)


def main(folder: Path, wanted: Sequence[str]) -> int:
    """Print the table, and the trials that are judged in another way. Return the exit code."""
    found = list(replayed(folder, wanted))
    table: Any = pairs.table if folder.name.startswith("pairs") else gate.table
    print(table([each.trial for each in found]))
    for each in found:
        if not each.is_equal:
            print(f"- {each.trial.kind} {each.trial.seed}: stored {each.stored}, today {each.today}")
    return int(not all(each.is_equal for each in found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
