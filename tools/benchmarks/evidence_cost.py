"""What evidence costs: a sweep of short cases and the latency at 8 B with it and without it, in pairs; and one reading of the counters."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial

from collbench.measuring import instruments as counters
from tools.benchmarks.figures import MICROSECONDS, RATIO, Outcome, Unit, timed
from tools.benchmarks.launches import LaunchFailed, collbench, launch, pairs

_MILLISECONDS = Unit("ms", 1e3)
_CASES = ("allreduce", "--backend", "mpi", "--sizes")
_BRIEFLY = ("--warmup", "20", "--seed", "1", "--check", "0", "--format", "json")


@dataclass(frozen=True)
class _Ran:
    """A launch: its wall time by case, and the median at 8 B."""

    case_s: float
    p50_s: float


def measure(n: int = 20, sizes: str = "8-64K:x2", iterations: int = 500) -> Outcome:
    """n pairs."""
    found = pairs(partial(_ran, "on", sizes, iterations), partial(_ran, "off", sizes, iterations), n)
    readings = [_reading() for _ in range(max(n, 6))]
    return Outcome(
        "evidence_cost",
        f"`collbench {' '.join(_CASES)} {sizes}` with {iterations} samples a case, --evidence on in pairs with --evidence off. "
        "Time per case: wall time of the launch over its cases. The counters are read around a case, never while samples are taken.",
        [
            timed("p50 at 8 B, with", (on.p50_s for on, _ in found), MICROSECONDS),
            timed("p50 at 8 B, without", (off.p50_s for _, off in found), MICROSECONDS),
            timed("p50 at 8 B, ratio within pairs", (on.p50_s / off.p50_s for on, off in found), RATIO, below=1.05),
            timed("time per case, with", (on.case_s for on, _ in found), _MILLISECONDS),
            timed("time per case, difference within pairs", (on.case_s - off.case_s for on, off in found), _MILLISECONDS, below=0.01),
            timed(f"one reading, {len(counters.read().interfaces)} interfaces", readings, _MILLISECONDS, below=0.001),
        ],
        [{"on_p50_s": on.p50_s, "off_p50_s": off.p50_s, "on_cell_s": on.case_s, "off_cell_s": off.case_s} for on, off in found],
    )


def _ran(evidence: str, sizes: str, iterations: int) -> _Ran:
    ended = launch(collbench(*_CASES, sizes, *_BRIEFLY, "--iterations", str(iterations), "--evidence", evidence))
    rows = [json.loads(line) for line in ended.out.splitlines()]
    there = {"moved" in row["evidence"] for row in rows}
    if there != {evidence == "on"}:
        raise LaunchFailed(f"--evidence {evidence} left rows {'without' if evidence == 'on' else 'with'} counters")
    smallest = min(rows, key=lambda row: row["size_bytes"])
    return _Ran(ended.wall_s / len(rows), float(smallest["time_s"]["p50"]))


def _reading() -> float:
    began = time.perf_counter()
    counters.read()
    return time.perf_counter() - began
