"""Whether collbench measures an all-reduce over UCC as UCC's own program, ucc_perftest, does: both in pairs of launches."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from collbench.plugins.libraries.ucc.library import CHOSEN, load_ucc, ucx_modules
from collbench.results.reader import read_run
from collbench.units import parse_size
from tools.benchmarks.figures import MICROSECONDS, RATIO, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, Missing, collbench, launch, mpiexec, pairs

_WARMUP, _ITERATIONS, _MOST = 200, 2000, 1.05
_LINE = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", re.MULTILINE)  # elements, bytes, average, least, most µs


def program() -> str:
    """The ucc_perftest of the UCC in COLLBENCH_UCC, else that in PATH. Raises Missing."""
    installed = Path(os.environ.get(CHOSEN, "")).parent.parent / "bin/ucc_perftest"
    found = str(installed) if CHOSEN in os.environ and installed.exists() else shutil.which("ucc_perftest")
    if CHOSEN not in os.environ or found is None:
        raise Missing(f"no UCC, or one without ucc_perftest: set {CHOSEN} to its libucc.so.1")
    return found


def measure(n: int = 20, sizes: Sequence[str] = ("8", "64K", "1M"), iterations: int = _ITERATIONS) -> Outcome:
    """n pairs per size. Raises Missing, LaunchFailed."""
    theirs = program()
    raw, figures = [], []
    for size in sizes:
        found = pairs(partial(through, size, iterations), partial(alone, theirs, size, iterations), n)
        raw += [{"size_bytes": parse_size(size), "collbench_s": ours, "perftest_s": own} for ours, own in found]
        figures += _figures(size, found)
    return Outcome(
        "ucc_perftest",
        f"All-reduce of float32 between two ranks on one host, {iterations} iterations after {_WARMUP}, in pairs of launches. Both make, "
        "start, test and free a request in each iteration, with UCC's barrier before it. "
        "The mean of the rank with the larger mean, as ucc_perftest prints it.",
        figures,
        raw,
    )


def through(size: str, iterations: int, warmup: int = _WARMUP) -> float:
    """The mean in seconds through collbench. Raises LaunchFailed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-ucc-") as folder:
        out = Path(folder) / "run"
        counts = ["--iterations", str(iterations), "--warmup", str(warmup), "--max-time", "60", "--out", str(out), "--quiet"]
        how = ["--backend", "ucc", "--dtype", "float32", "--mode", "isolated", "--buffers", "fixed"]
        launch(_bound(collbench("allreduce", "--sizes", size, *how, *counts)))
        run = read_run(out)
        (row,) = run.rows
        if row.na or row.evidence["loop"] != "native" or row.n != iterations:
            raise LaunchFailed(f"not the native loop, or not {iterations} samples: {row.na or row.evidence['loop']}")
        return float(run.array(row, "all_s").mean(axis=1).max())


def alone(perftest: str, size: str, iterations: int, warmup: int = _WARMUP) -> float:
    """The same from ucc_perftest. Raises LaunchFailed, Missing."""
    count = str(parse_size(size) // 4)
    how = ["-c", "allreduce", "-b", count, "-e", count, "-d", "float32", "-n", str(iterations), "-w", str(warmup), "-F"]
    load_ucc()
    modules = ucx_modules()  # the UCX that UCC loads, which that of an MPI would replace
    printed = launch(_bound(["env", *([f"LD_LIBRARY_PATH={modules.parent}"] if modules else []), perftest, *how])).out
    found = _LINE.search(printed)
    if found is None or int(found[2]) != parse_size(size):
        raise LaunchFailed(f"ucc_perftest printed no time: {printed[-300:]}")
    return float(found[5]) / 1e6


def _bound(program: Sequence[str]) -> list[str]:
    """Two ranks of a program with a core each, as MPICH's mpiexec binds them: both poll, and would wait for each other on one core."""
    first, *rest = mpiexec(*program)
    return [first, "-bind-to", "core", *rest]


def _figures(size: str, found: Sequence[tuple[float, float]]) -> list[Figure]:
    return [
        timed(f"{size}: collbench", (ours for ours, _ in found), MICROSECONDS),
        timed(f"{size}: ucc_perftest", (own for _, own in found), MICROSECONDS),
        timed(f"{size}: ratio within pairs", (ours / own for ours, own in found), RATIO, below=_MOST),
    ]
