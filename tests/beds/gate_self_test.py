"""python -m tests.beds.gate_self_test FOLDER [TRIALS]: the tables of `collbench gate --self-test`, each in a file, and a README of them.

TRIALS are those of each line under harsher noise (default: 1000); the usual noise gets twice as many.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.gate.self_test import noises
from tests.cli.command import run

SEED = 8
_TRIALS = 1000
_LIMIT_S = 1800.0
_HEAD = """\
# How far the gate can be trusted

What `collbench gate --self-test` printed (files `*.jsonl`, an object a line) on {day}; each figure is a percentage of so many made-up
clusters of 336 cells, with its 95 % interval. *False alarms*: nothing was done to the candidate, and a regression was found all the same.
Made by `python -m tests.beds.gate_self_test reports/gate-self-test`; seed {seed}. The noise is that of `collbench/gate/self_test.py`, or of
a file in `collbench/gate/noises/`:

{noises}

*Paired* is an old and a new stack side by side; the others have a baseline of six allocations of three launches.
What drifts really is slower than its baseline, and what wanders is so for a while: those alarms say that a baseline has to be kept young,
and that whoever can, measures side by side.

"""


@dataclass(frozen=True)
class Table:
    """name of its file; what it is called; the command's words after `collbench gate --self-test`; its lines as JSON gives them."""

    name: str
    title: str
    words: tuple[str, ...]
    lines: list[dict[str, Any]]


def write_tables(folder: Path, trials: int = _TRIALS) -> None:
    """All tables, with the usual noise and with the harsher ones, by a baseline and paired."""
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
    told = "\n".join(f"- `{name}`: {_said(path)}" for name, path in noises().items())
    head = _HEAD.format(day=time.strftime("%Y-%m-%d", time.gmtime()), seed=SEED, noises=told)
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
    """The comment at the top of the file."""
    lines = noise.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else _TRIALS)
