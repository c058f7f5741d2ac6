"""For the tests on Slurm: a baseline made of one real measurement repeated as several nights; doubles of commands."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import BIN, ROOT, environment, run_here
from tests.testbeds import SlurmBed
from tests.testbeds.bed import Finished

SLURM = ROOT / "slurm"
NIGHTS = 6
SLOWER = {"COLLBENCH_SLOWED": "by=30%"}
# This machine's network is also that of the other tests' beds, which come and go meanwhile.
ANNOUNCED = """\
[[change]]
kind = "topology"
what = "machines * nics *"
reason = "other beds on this machine"
reviewer = "A. Reviewer"
expires = 2100-01-01
"""
_SPREAD = 0.004  # from night to night: what the rule's floors hide


@dataclass(frozen=True)
class Cluster:
    """A Slurm, the baseline of what is measured on it, the suite, and what is announced."""

    bed: SlurmBed
    good: Path
    suite: Path
    announced: Path


def suite(folder: Path, run: str = "") -> Path:
    path = folder / "small.toml"
    sweep = '[[sweeps]]\noperations = ["allreduce"]\nbackends = ["simulated"]\nsizes = ["1K", "4K", "16K"]\n'
    path.write_text(f"schema = 1\n[run]\n{run}\n{sweep}")
    return path


def settings(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which the scripts find collbench; samples enough for the simulated link's median."""
    own = environment({"COLLBENCH_ITERATIONS": "200", "COLLBENCH_WARMUP": "1", **(more or {})})
    return {**own, "PATH": f"{BIN}:{own['PATH']}"}


def baseline(folder: Path, run: Path) -> Path:
    """The run as so many nights of this year, a little apart."""
    added = run_here(folder.parent, "baseline", "add", str(folder), str(run))
    assert added.returncode == 0, said(added)
    (real,) = folder.iterdir()
    head, *cases = real.read_text().splitlines()
    real.unlink()
    draw = random.Random(8)
    for night in range(1, NIGHTS + 1):
        actual = {**json.loads(head), "name": f"night-{night}", "began_utc": f"2026-01-{night:02d}T00:00:00+00:00", "launches": 3}
        actual["canary_s"] = [None] * 3  # the machine's state is not what these tests are about, and a busy one changes it
        lines = [_again(json.loads(case), draw.gauss(1, _SPREAD)) for case in cases]
        (folder / f"night-{night}.allocation.jsonl").write_text("\n".join([json.dumps(actual), *map(json.dumps, lines), ""]))
    return folder


def _again(case: list[object], times: float) -> list[object]:
    *named, medians, wrong, na = case
    assert isinstance(medians, list)
    return [*named, [medians[0] * times] * 3, wrong, na]


def doubles(folder: Path, **scripts: str) -> str:
    """Return a PATH with a first folder of these commands, each given as the lines of a bash script."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    for name, lines in scripts.items():
        (commands / name).write_text(f"#!/bin/bash\n{lines}\n")
        (commands / name).chmod(0o755)
    return f"{commands}:{environment()['PATH']}"


def said(done: Finished) -> str:
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
