"""python -m tools.benchmarks.trials.gate_self_test FOLDER [TRIALS]: writes the tables of `collbench gate --self-test` and a README.

TRIALS is the number per line under harsher noise (default: 1000); the usual noise gets twice as many.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.plugins.selftest.self_test import noises
from tests.cli.command import run

SEED = 8
_TRIALS = 1000
_LIMIT_S = 1800.0
_HEAD = """\
# How reliable the gate is

Output of `collbench gate --self-test` (files `*.jsonl`, one object per line) on {day}. Each figure is a percentage of the simulated
clusters of 336 cases, with its 95 % interval. *False alarms*: a regression was reported, although the candidate was not slowed.
Made by `python -m tools.benchmarks.trials.gate_self_test reports/gate-self-test`; seed {seed}. The noise is that of
`collbench/plugins/selftest/self_test.py`, or of a file in `collbench/plugins/selftest/noises/`:

{noises}

*Paired* compares an old and a new stack, interleaved; the others have a baseline of six allocations of three launches.
A drifting cluster is slower than its baseline, and a wandering one is slower for a while, so their alarms are not errors of the rule.
Keep baselines recent, and use `--paired` where you can.

"""


@dataclass(frozen=True)
class Table:
    """A table: its file name, its title, the arguments after `collbench gate --self-test`, and its lines from JSON."""

    name: str
    title: str
    words: tuple[str, ...]
    lines: list[dict[str, Any]]


def write_tables(folder: Path, trials: int = _TRIALS) -> None:
    """Write all tables: usual and harsher noise, with a baseline and paired."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [_made(folder, noise, paired, trials) for noise in (None, *noises()) for paired in (False, True)]
    (folder / "README.md").write_text(_page(tables), encoding="utf-8")


def _made(folder: Path, noise: str | None, paired: bool, trials: int) -> Table:
    count = trials if noise else 2 * trials
    words = (*(("--noise", noise) if noise else ()), *(("--paired",) if paired else ()), "--trials", str(count), "--seed", str(SEED))
    done = run(folder, "gate", "--self-test", *words, "--format", "json", timeout=_LIMIT_S)
    if done.returncode:
        sys.exit(f"collbench gate --self-test {' '.join(words)} ended with code {done.returncode}: {done.stderr}")
    name = f"{noise or 'usual'}{'-paired' if paired else ''}"
    (folder / f"{name}.jsonl").write_text(done.stdout, encoding="utf-8")
    print(name, flush=True)
    return Table(name, f"{noise or 'usual'}{', paired' if paired else ''}", words, [json.loads(line) for line in done.stdout.splitlines()])


def _page(tables: list[Table]) -> str:
    actual = "\n".join(f"- `{name}`: {_said(path)}" for name, path in noises().items())
    head = _HEAD.format(day=time.strftime("%Y-%m-%d", time.gmtime()), seed=SEED, noises=actual)
    done = [line["done"] for line in tables[0].lines]
    rows = [
        "| noise | trials | " + " | ".join("false alarms" if each == "nothing" else each for each in done) + " |",
        "|---" * (len(done) + 2) + "|",
    ]
    for table in tables:
        cells = [f"{line['percent']:.1f} ({line['percent_low']:.1f}–{line['percent_high']:.1f})" for line in table.lines]
        rows.append(f"| [{table.title}]({table.name}.jsonl) | {table.lines[0]['trials']} | " + " | ".join(cells) + " |")
    commands = "\n".join(f"collbench gate --self-test {' '.join(table.words)}" for table in tables)
    return head + "\n".join(rows) + f"\n\n```sh\n{commands}\n```\n"


def _said(noise: Path) -> str:
    """Return the comment at the top of the file."""
    lines = noise.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else _TRIALS)
