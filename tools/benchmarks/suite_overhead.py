"""The overhead of a suite: 200 small cases over two MPI ranks, from the evidence of each row, in pairs of launches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.benchmarks.figures import Outcome, Unit, timed
from tools.benchmarks.launches import LaunchFailed, collbench, launch, pairs

_MILLISECONDS = Unit("ms", 1e3)
_SUITE = Path(__file__).with_name("suite_200.toml")


@dataclass(frozen=True)
class _Ran:
    """A launch: its cases, and what each took on average beside the timed loop and in it."""

    cases: int
    harness_s: float
    measured_s: float


def measure(n: int = 10, *options: str) -> Outcome:
    """n pairs; `options` replace the suite's values."""
    found = pairs(partial(_ran, "on", *options), partial(_ran, "off", *options), n)
    with_it, without = [on for on, _ in found], [off for _, off in found]
    return Outcome(
        "suite_overhead",
        f"`collbench run suite_200.toml --ranks 2`: {with_it[0].cases} cases of 8 B to 4 KiB with 20 samples each, --evidence on in pairs "
        "with --evidence off. Per case, on average over the rows' evidence.wall_s: seconds in the timed loop, warm-up included, and all "
        "the rest from row to row: buffers, trial and verifying calls, state probe, counters, control plane, statistics, two syncs, "
        "the row printed.",
        [
            timed("harness per case", (one.harness_s for one in with_it), _MILLISECONDS, below=0.005),
            timed("harness per case, without evidence", (one.harness_s for one in without), _MILLISECONDS),
            timed("difference within pairs", (on.harness_s - off.harness_s for on, off in found), _MILLISECONDS),
            timed("measured per case", (one.measured_s for one in with_it), _MILLISECONDS),
        ],
        [{"on_harness_s": on.harness_s, "off_harness_s": off.harness_s, "on_measured_s": on.measured_s} for on, off in found],
    )


def _ran(evidence: str, *options: str) -> _Ran:
    ended = launch(collbench("run", str(_SUITE), "--ranks", "2", "--evidence", evidence, "--format", "json", *options))
    rows = [json.loads(line) for line in ended.out.splitlines()]
    lacking = next((row["na"] for row in rows if row["na"] is not None), None)
    if lacking:
        raise LaunchFailed(f"a case was not measured: {lacking}")
    walls = [row["evidence"]["wall_s"] for row in rows]
    return _Ran(len(rows), _mean([wall["harness"] for wall in walls]), _mean([wall["measured"] for wall in walls]))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
