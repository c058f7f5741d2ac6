"""python -m tools.benchmarks.trials.load FOLDER [TRIALS]   measures interference where the answer is known.

By default 100 trials of each kind. FOLDER gets trials.jsonl, a line for each row. Four hosts (network namespaces) have one rank each,
two at each end of one shaped link. Over it a victim sends messages to its peer, and two aggressors send to each other.
Three kinds of trials, each with its own seeds:

control   the aggressors send nothing (level 0): the intervals of the factor must contain 1 in at least 95 of 100 trials
shared    one queue for all: both senders get a fair share of the link, so the factor is about 2
isolated  the link gives each host half of its rate, whether the other uses it or not: the factor is 1

A series that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import collbench
from tests.cli.command import BIN, PROGRAM, environment
from tests.testbeds import Bottleneck

RATE_MBIT = 100
TRIALS = 100
OTHERS_EACH = 10  # one trial in ten also measures the two kinds with aggressors
BLOCKS, SECONDS = 8, 3
_OVER_THE_LINK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}


def measured(bed: Bottleneck, level: int, seed: int) -> dict[str, Any]:
    """Return the values of the row of one launch."""
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", "1", "-iface", "eth0"]
    passed = [word for name, value in _OVER_THE_LINK.items() for word in ("-genv", name, value)]
    what = ["--victim", "p2p_bandwidth", "--size", "64K", "--against", "ring", "--message", "64K", "--levels", str(level)]
    plan = ["--blocks", str(BLOCKS), "--max-time", str(SECONDS), "--seed", str(seed)]
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        line = [str(BIN / "mpiexec"), *reach, "-n", str(bed.count), *passed, *PROGRAM, "load", "--backend", "mpi"]
        done = bed.run(0, [*line, *what, *plan, "--out", str(run)], 120, environment())
        if done.returncode:
            raise RuntimeError(done.stderr)
        (row,) = collbench.read(run).load_rows()
    values: dict[str, Any] = msgspec.to_builtins(row)
    return values


def plan(trials: int) -> Iterator[tuple[str, int]]:
    """Yield the kind and the seed of each trial, in the order in which they run."""
    for seed in range(trials):
        yield "control", seed
        if seed % OTHERS_EACH == 0:
            yield from (("shared", seed), ("isolated", seed))


def main(folder: Path, trials: int = TRIALS) -> None:
    """Run all trials that the folder does not have, and append each to trials.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "trials.jsonl"
    known = {(each["kind"], each["seed"]) for each in map(json.loads, file.read_text("utf-8").splitlines())} if file.exists() else set()
    with ExitStack() as stack:
        beds = {isolated: stack.enter_context(Bottleneck(4, RATE_MBIT, isolated=isolated)) for isolated in (False, True)}
        for kind, seed in plan(trials):
            if (kind, seed) in known:
                continue
            row = measured(beds[kind == "isolated"], 0 if kind == "control" else 100, seed)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"kind": kind, "seed": seed, **row}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
