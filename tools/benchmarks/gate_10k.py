"""`collbench gate` of 10,000 cases against a baseline of 50 allocations: its wall time, its memory, and what it imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from multiprocessing import Process
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collbench.analysis.launches import case_of
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.gating.baseline import Figures, add_all, scheme_of
from collbench.results.folder import CASES, RunFolder
from collbench.results.row import CaseKey, Row
from collbench.results.store import to_line
from tests.results.rows import make_row, make_times
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, counted, timed
from tools.benchmarks.launches import LaunchFailed

if TYPE_CHECKING:
    from collbench.plugins.selftest.self_test import Cluster

CELL_COUNT, ALLOCATIONS = 10_000, 50
_WALL_S, _BYTES = 10.0, 10**9
_BASELINE_LAUNCHES, _LAUNCHES = 3, 5
_PROBE_S = 6e-8
_HEAVY = ("torch", "mpi4py", "cupy")
_ENDED = {0: "passed", 1: "a regression", 3: "no verdict"}
_OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast")
_BACKENDS, _MODES, _DTYPES = ("nccl", "gloo", "mpi"), ("isolated", "pipelined"), ("float32", "bfloat16", "int8", "float64", "int32")
_SIZES = tuple(8 << power for power in range(28))
_PROGRAM = f"""
import re, sys
from pathlib import Path
from collbench.cli.main import run
code = run(sys.argv[1:])
peak = 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
print("peak", peak, *(name for name in {_HEAVY!r} if name in sys.modules))
sys.exit(code)
"""


@dataclass(frozen=True)
class Gated:
    """One gate: the wall time of its command in seconds, start included, its peak memory, and its exit code."""

    what: str
    wall_s: float
    peak_bytes: int
    result: str
    heavy: tuple[str, ...]


def measure(n: int = 6, cases: int = CELL_COUNT, allocations: int = ALLOCATIONS) -> Outcome:
    """n gates of one allocation, and n of three, each with all cases."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        maker = Process(target=write_all, args=(Path(folder), cases, allocations))  # apart: a child starts with its parent's peak memory
        maker.start()
        maker.join()
        runs = sorted(Path(folder).glob("new-*"))
        found = [_gated(what, Path(folder), some) for what, some in (("one", runs[:1]), ("three", runs)) for _ in range(n)]
    how = (
        f"`collbench gate --baseline DIR RUN… --out verdict.json --confirm-suite FILE` of {cases:,} cases, made up with the self-test's "
        f"noise, against {allocations} allocations of {_BASELINE_LAUNCHES} launches; one of the candidate has {_LAUNCHES}. "
        "The whole command with Python's start; making the runs up is not in the time."
    )
    heavy = {name for each in found for name in each.heavy}
    figures = [*_figures("one allocation", found[:n], _WALL_S), *_figures("three allocations, all cases", found[n:], None)]
    return Outcome("gate_10k", how, [*figures, counted(f"imported of {', '.join(_HEAVY)}", heavy)], [asdict(each) for each in found])


def _figures(what: str, gated: Sequence[Gated], below_s: float | None) -> list[Figure]:
    return [
        timed(f"{what} ({gated[0].result})", (each.wall_s for each in gated), SECONDS, below=below_s),
        timed(f"{what}, peak memory", (each.peak_bytes for each in gated), MEBIBYTES, below=_BYTES),
    ]


def write_all(folder: Path, cases: int, allocations: int) -> None:
    """A baseline in `base`, and three allocations of a candidate in new-1, new-2, new-3: a cluster that did not change."""
    from collbench.plugins.selftest.self_test import Cluster, Noise

    rows = list(_rows(cases))
    names = [case_of(row) for row in rows]
    random = np.random.default_rng(0)
    cluster = Cluster.draw(Noise(), scheme_of(names), random)
    usual = np.log([row.time_s.p50 for row in rows if row.time_s and row.time_s.p50])
    good = usual + _launches(cluster, allocations, _BASELINE_LAUNCHES, random)
    add_all(folder / "base", [_allocation(number, names, each) for number, each in enumerate(np.exp(good))])
    new = usual + _launches(cluster, 3, _LAUNCHES, random)
    for number, launches in enumerate(np.exp(new), 1):
        for launch, times_s in enumerate(launches, 1):
            _write_run(folder / f"new-{number}" / f"launch-{launch}", f"new-{number}", rows, times_s)


def _launches(cluster: Cluster, count: int, launches: int, random: np.random.Generator) -> Figures:
    between = random.normal(0, 1, (count, len(cluster.allocation))) * cluster.allocation
    times: Figures = cluster.launches(count, launches, random) + between[:, None, :]
    return times


def _rows(count: int) -> Iterator[Row]:
    """Cases with a time of 10 µs and 20 GB/s; as many roots as the number asks for."""
    series = [
        (operation, backend, mode, dtype) for operation in _OPERATIONS for backend in _BACKENDS for mode in _MODES for dtype in _DTYPES
    ]
    roots = range(ceil(count / (len(series) * len(_SIZES))))
    every = (
        make_row(size, operation=operation, backend=backend, mode=mode, dtype=dtype, root=root, time_s=make_times(1e-5 + size / 20e9))
        for root in roots for operation, backend, mode, dtype in series for size in _SIZES
    )  # fmt: skip
    yield from (row for row, _ in zip(every, range(count), strict=False))


def _allocation(number: int, names: Sequence[CaseKey], times_s: Figures) -> Allocation:
    launches = len(times_s)
    measured = {case: CaseTimes(tuple(map(float, each))) for case, each in zip(names, times_s.T, strict=True)}
    began = f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:00:00Z"
    facts = {"software": {"collbench": "0.1.0"}, "hosts": {"names": "node1, node2", "number": "2"}}
    return Allocation(f"good-{number:02d}", began, launches, 0, (_PROBE_S,) * launches, facts, measured)


def _write_run(path: Path, allocation: str, rows: Sequence[Row], times_s: Figures) -> None:
    """Written at once: the store syncs each row, as a measurement has to."""
    folder = RunFolder.create(path, "allreduce", {"allocation_id": allocation, "collbench": "0.1.0", "hosts": ["node1", "node2"]})
    folder.finish(exit_code=0)
    with (path / CASES).open("w", encoding="utf-8") as file:
        for row, time_s in zip(rows, times_s, strict=True):
            probe = {"before": _PROBE_S, "after": _PROBE_S}
            file.write(to_line({**row.as_json(), "time_s": msgspec.to_builtins(make_times(float(time_s))), "canary_s": probe}) + "\n")


def _gated(what: str, folder: Path, runs: Sequence[Path]) -> Gated:
    outputs = ("--out", str(folder / "verdict.json"), "--confirm-suite", str(folder / "suite.toml"))
    for name in outputs[1::2]:
        Path(name).unlink(missing_ok=True)
    command = [sys.executable, "-c", _PROGRAM, "gate", "--baseline", str(folder / "base"), *map(str, runs), *outputs]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    wall_s = time.perf_counter() - start
    actual = re.search(r"^peak (\d+)(.*)$", done.stdout, re.MULTILINE)
    if done.returncode not in _ENDED or actual is None:
        raise LaunchFailed(f"collbench gate ended with code {done.returncode}: {done.stderr[-400:]}")
    return Gated(what, wall_s, int(actual[1]), _ENDED[done.returncode], tuple(actual[2].split()))
