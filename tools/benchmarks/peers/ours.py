"""collbench's side of a pair: one launch, its rows, and of each the figure that the peer's is like."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tools.benchmarks.launches import LaunchFailed, collbench, launch
from tools.benchmarks.peers.load import Load

Figure = Callable[[Run, Row], float]


@dataclass(frozen=True)
class Ours:
    """Of one size, in seconds: the figure like the peer's, and collbench's headline (median of the slowest rank's samples)."""

    like_s: float
    headline_s: float | None = None
    page_bytes: int = 0
    thread_level: str = ""
    loop: str = ""


def rank_mean(run: Run, row: Row) -> float:
    """Median over the samples of the mean over ranks: what OSU's P50 is."""
    return float(np.median(run.array(row, "mean_s")))


def first_rank(run: Run, row: Row) -> float:
    """Median of the first timed rank's samples: what gloo's benchmark prints."""
    return float(run.array(row, "rank_p50_s")[0])


def mean(_: Run, row: Row) -> float:
    """Mean over samples and ranks: what OSU's Avg is."""
    if row.time_rank_mean_s is None:
        raise LaunchFailed(f"collbench's row of {row.size_bytes} bytes has no mean")
    return row.time_rank_mean_s


def median_of_blocks(blocks: int, run: Run, row: Row) -> float:
    """Median of the means of so many blocks of samples, in their order; the mean of a sample is over ranks."""
    samples = run.array(row, "mean_s")
    return float(np.median([np.mean(block) for block in np.array_split(samples, min(blocks, len(samples)))]))


def measure(operation: str, backend: str, load: Load, like: Figure, options: Sequence[str] = ()) -> dict[int, Ours]:
    """One launch of two ranks. `operation` is the rows' name; ping-pong and bandwidth are both in `collbench p2p`."""
    command = "p2p" if operation.startswith("p2p") else "multipair" if operation.startswith("multipair") else operation
    counts = ["--iterations", str(load.iterations), "--warmup", str(load.warmup), "--max-time", "60"]
    with tempfile.TemporaryDirectory(prefix="benchmark-peers-") as folder:
        out = Path(folder) / "run"
        sizes = ["--sizes", ",".join(map(str, load.sizes)), "--buffers", "fixed"]
        line = collbench(command, "--backend", backend, *sizes, *counts, *options, "--out", str(out), "--quiet")
        launch([*load.environment(), *line])
        run = read_run(out)
        found = {row.size_bytes: _one(run, row, like) for row in run.rows if row.operation == operation}
    if set(found) != set(load.sizes):
        raise LaunchFailed(f"collbench measured {sorted(found)} instead of {list(load.sizes)} bytes")
    return {size: found[size] for size in load.sizes}


def _one(run: Run, row: Row, like: Figure) -> Ours:
    evidence = row.evidence or {}
    if row.time_s is None or row.time_s.p50 is None:
        raise LaunchFailed(f"collbench measured no {row.operation} of {row.size_bytes} bytes: {row.na}")
    level = evidence.get("libraries", {}).get("mpi_thread_level", "")
    return Ours(like(run, row), row.time_s.p50, evidence.get("page_bytes", 0), level, evidence.get("loop", ""))
