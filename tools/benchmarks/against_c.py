"""The cost of the native loop compared with a dedicated C program: p50 of all-reduce through collbench and in C."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from collbench.units import parse_size
from tools.benchmarks.figures import MICROSECONDS, RATIO, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, c_program, collbench, launch, mpiexec, pairs

_WARMUP, _ITERATIONS = 300, 2000


def measure(n: int = 30, sizes: Sequence[str] = ("8", "64K"), iterations: int = _ITERATIONS) -> Outcome:
    """n pairs per size."""
    raw, figures = [], []
    for size in sizes:
        found = pairs(partial(_collbench, size, iterations), partial(_direct, size, iterations), n)
        raw += [{"size_bytes": parse_size(size), "collbench_p50_s": ours, "c_p50_s": theirs} for ours, theirs in found]
        figures += _figures(size, found)
    return Outcome(
        "against_c",
        f"p50 of {iterations} isolated samples (maximum over 2 ranks, fixed buffers of ordinary pages, thread level single, {_WARMUP} "
        "warm-up iterations) in pairs of launches. Where the clock moves in coarse steps (10 ns on some virtual machines) a smaller "
        "difference of medians shows as none or as a whole step.",
        figures,
        raw,
    )


def _collbench(size: str, iterations: int) -> float:
    counts = ("--iterations", str(iterations), "--warmup", str(_WARMUP))
    line = collbench("allreduce", "--backend", "mpi", "--sizes", size, "--mode", "isolated", "--buffers", "fixed", *counts)
    row = json.loads(launch([*line, "--format", "json"]).out.splitlines()[-1])
    if row["evidence"]["loop"] != "native" or row["n"] != iterations:
        raise LaunchFailed(f"not the native loop, or not {iterations} samples: {row['evidence']}")
    return float(row["time_s"]["p50"])


def _direct(size: str, iterations: int) -> float:
    return float(json.loads(launch(mpiexec(c_program(), str(parse_size(size)), str(_WARMUP), str(iterations))).out)["p50_s"])


def _figures(size: str, found: Sequence[tuple[float, float]]) -> list[Figure]:
    return [
        timed(f"{size}: collbench", (ours for ours, _ in found), MICROSECONDS),
        timed(f"{size}: C loop", (theirs for _, theirs in found), MICROSECONDS),
        timed(f"{size}: difference within pairs", (ours - theirs for ours, theirs in found), MICROSECONDS),
        timed(f"{size}: ratio within pairs", (ours / theirs for ours, theirs in found), RATIO),
    ]
