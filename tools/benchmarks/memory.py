"""What an MPI rank needs beyond its buffers, since that is what a large job cannot give to the buffers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from collbench.units import parse_size
from tools.benchmarks.figures import MEBIBYTES, Figure, Outcome, timed
from tools.benchmarks.launches import c_program, launch, mpiexec
from tools.benchmarks.ranks import inspect

_LIMIT = 150 * 2**20


def measure(n: int = 10, sizes: Sequence[str] = ("8", "64M")) -> Outcome:
    """n launches per size."""
    raw, figures = [], []
    for size in sizes:
        found = [_one(size) for _ in range(n)]
        raw += found
        figures += _figures(size, found)
    return Outcome(
        "memory",
        "Peak resident memory (VmHWM) of the larger of two ranks less its buffers: send and receive, 2 × size. What MPI shares between "
        "the ranks counts in each. The verification and the reference copies of the memory are part of the run.",
        figures,
        raw,
    )


def _one(size: str) -> dict[str, int]:
    buffers = 2 * parse_size(size)
    ours = max(rank.peak_bytes for rank in inspect(("allreduce", "--backend", "mpi", "--sizes", size, "--max-time", "0.5")))
    theirs = int(json.loads(launch(mpiexec(c_program(), str(parse_size(size)), "2", "5")).out)["peak_bytes"])
    return {"size_bytes": buffers // 2, "buffers_bytes": buffers, "collbench_peak_bytes": ours, "c_peak_bytes": theirs}


def _figures(size: str, found: Sequence[dict[str, int]]) -> list[Figure]:
    return [
        timed(
            f"{size}: collbench beyond its buffers",
            (one["collbench_peak_bytes"] - one["buffers_bytes"] for one in found),
            MEBIBYTES,
            below=_LIMIT,
        ),
        timed(f"{size}: C program beyond its buffers", (one["c_peak_bytes"] - one["buffers_bytes"] for one in found), MEBIBYTES),
    ]
