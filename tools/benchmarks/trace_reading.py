"""Reading a trace of a million operations: the time and the memory of `collbench.plugins.traces.reading.read_traces`, by format."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from collbench.units import plural
from tests.plugins.traces.torch_files import Call, Node, execution_trace, kineto_trace, protobuf_trace
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed
from tools.benchmarks.trace_files import WRITERS

OPERATIONS = 1_000_000
_FAST_ENOUGH_S = 10.0
_MOST_BYTES = 1e9
_PROGRAM = """
import re, sys, time
from pathlib import Path
from collbench.plugins.traces.matching import check_agreement, match
from collbench.plugins.traces.reading import read_traces
begin, busy = time.perf_counter(), time.process_time()
trace = read_traces([Path(sys.argv[1])])
read, work = time.perf_counter() - begin, time.process_time() - busy
check_agreement(trace, match(trace))
peak = 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(read, work, time.perf_counter() - begin - read, sum(len(rank.operations) for rank in trace.ranks), peak)
"""


def _chakra(folder: Path, operations: int, ranks: int) -> None:
    members = tuple(range(ranks))
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": members, "group_size": ranks}
    for rank in members:
        execution_trace(folder / f"rank{rank}.json", (Call(ranks=members, number=rank) for _ in range(operations)), [group])


def _kineto(folder: Path, operations: int, ranks: int) -> None:
    for rank in range(ranks):
        calls = (Call(ranks=tuple(range(ranks)), number=rank) for _ in range(operations))
        kineto_trace(folder / f"rank{rank}.json", calls, rank, ranks)


def _protobuf(folder: Path, operations: int, ranks: int) -> None:
    attributes = (("is_cpu_op", 0), ("comm_type", 0))
    for rank in range(ranks):
        nodes = (Node(k, 7, (k - 1,) if k else (), (*attributes, ("comm_size", 4 * k)), "AllReduce", k, 5) for k in range(operations))
        protobuf_trace(folder / f"trace.{rank}.et", nodes)


FORMATS = {**WRITERS, "Chakra, JSON of PyTorch": _chakra, "Chakra, protobuf (.et)": _protobuf, "Kineto": _kineto}


@dataclass(frozen=True)
class Reading:
    """One reading in its own process: wall and CPU seconds, seconds to match and compare, operations, and the peak of its memory."""

    wall_s: float
    cpu_s: float
    match_s: float
    operations: int
    peak_bytes: int


def read(folder: Path) -> Reading:
    """Read the traces of a folder."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchFailed(done.stderr.strip().splitlines()[-1])
    wall, cpu, match, operations, peak = done.stdout.split()
    return Reading(float(wall), float(cpu), float(match), int(operations), int(peak))


def measure(n: int = 5, operations: int = OPERATIONS, ranks: int = 1) -> Outcome:
    """n readings of each format."""
    figures: list[Figure] = []
    raw = []
    for name, write in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), operations // ranks, ranks)
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
            found = [read(Path(folder)) for _ in range(n)]
        figures.append(timed(f"{name}, {size / 1e6:.0f} MB", [each.wall_s for each in found], SECONDS, below=_FAST_ENOUGH_S))
        figures.append(timed(f"{name}: peak memory", [each.peak_bytes for each in found], MEBIBYTES, below=_MOST_BYTES))
        raw += [{"format": name, "bytes": size, "ranks": ranks, **vars(each)} for each in found]
    how = (
        f"{operations:,} operations of {plural(ranks, 'rank')} read with `read_traces`, matched and compared, in a new process each "
        "time. Reading is timed; the peak is that of the process with all libraries."
    )
    return Outcome("trace_reading", how, figures, raw)
