"""The page of a full sweep and of a matrix of 1,024 ranks: how long `collbench report --html` takes, its memory, and the page's size."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np

from collbench.plugins.hunt import PAIRS_FILE
from collbench.results.folder import RunFolder
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, Unit, timed
from tools.benchmarks.full_sweep import BACKENDS, OPERATIONS, SIZES, write_sweep
from tools.benchmarks.launches import LaunchFailed
from tools.benchmarks.pairs_1024 import RANKS, SIZE, rounds, second_look, slow

SWEEP_S, SWEEP_BYTES = 3.0, 1_500_000
MATRIX_S, MATRIX_BYTES = 15.0, 10**9
_KILOBYTES = Unit("kB", 1e-3, 0)


@dataclass(frozen=True)
class Made:
    """A page: the wall time of its command in seconds, the most memory that took, and the page's size in bytes."""

    wall_s: float
    peak_bytes: int
    page_bytes: int


def measure(n: int = 6, ranks: int = RANKS, operations: Sequence[str] = OPERATIONS) -> Outcome:
    """n pages of each."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        sweep, matrix = Path(folder) / "sweep", Path(folder) / "pairs"
        maker = Process(target=write_both, args=(sweep, matrix, ranks, operations))  # apart: a child starts with its parent's peak memory
        maker.start()
        maker.join()
        sweeps, matrices = [_page(sweep) for _ in range(n)], [_page(matrix) for _ in range(n)]
    how = (
        f"`collbench report RUN --html page.html`, the whole command with Python's start and the text report. The sweep: {len(BACKENDS)} "
        f"backends × {len(operations)} operations × {len(SIZES)} sizes, made up, 16 ranks, 300 samples a case, with the arrays that a "
        f"run keeps. The matrix: all pairs of {ranks:,} made-up ranks, three of them slow. Making them up is not in the time."
    )
    raw = [{"what": what, **asdict(each)} for what, made in (("sweep", sweeps), ("matrix", matrices)) for each in made]
    return Outcome("report_html", how, [*_sweep_figures(sweeps), *_matrix_figures(matrices, ranks)], raw)


def _sweep_figures(made: Sequence[Made]) -> list[Figure]:
    return [
        timed("full sweep", (each.wall_s for each in made), SECONDS, below=SWEEP_S),
        _size("full sweep, its page", made, SWEEP_BYTES),
        timed("full sweep, peak memory", (each.peak_bytes for each in made), MEBIBYTES),
    ]


def _matrix_figures(made: Sequence[Made], ranks: int) -> list[Figure]:
    name = f"matrix of {ranks:,} ranks"
    return [
        timed(name, (each.wall_s for each in made), SECONDS, below=MATRIX_S),
        timed(f"{name}, peak memory", (each.peak_bytes for each in made), MEBIBYTES, below=MATRIX_BYTES),
        _size(f"{name}, its page", made, None),
    ]


def _size(what: str, made: Sequence[Made], most: int | None) -> Figure:
    """A size that is the same each time."""
    largest = max(each.page_bytes for each in made)
    target = "" if most is None else f"≤ {_KILOBYTES.show(most)} kB"
    return Figure(what, f"{_KILOBYTES.show(largest)} kB", "", target, None if most is None else largest <= most)


def write_both(sweep: Path, matrix: Path, ranks: int, operations: Sequence[str]) -> None:
    """Write the folders of both runs; of pairs all, and one repeated."""
    write_sweep(sweep, operations=operations)
    drawn = np.random.default_rng(0)
    about: dict[str, Any] = {"places": [f"rank {rank}" for rank in range(ranks)], "size_bytes": SIZE, "latency_size_bytes": 8}
    folder = RunFolder.create(matrix, "pairs", {"pairs": about})
    pair = (slow(ranks)[2][1], slow(ranks)[2][2])
    for one in [*rounds(ranks, drawn), *second_look([pair], ranks, drawn)]:
        folder.append_record(one.as_json(), PAIRS_FILE)
    folder.finish(exit_code=0)


def _page(run: Path) -> Made:
    page = run.with_suffix(".html")
    command = [sys.executable, "-m", "collbench", "report", str(run), "--html", str(page)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - start
    if process.returncode:
        raise LaunchFailed(said.decode(errors="replace")[-400:])
    return Made(wall_s, 1024 * used.ru_maxrss, page.stat().st_size)
