"""`collbench import` of 100,000 lines: nccl-tests' tables in NCCL's log, one table again and again, and nothing but lines of one."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed

LINES = 100_000
_FAST_ENOUGH_S = 2.0
_RANKS = 16
_BETWEEN = 3500  # lines of NCCL's log before each table
_OF_ALLREDUCE = 2 * (_RANKS - 1) / _RANKS
_PROGRAM = """
import re, sys
from pathlib import Path
from collbench.cli.main import main
from collbench.plugins.importers import command
call = command.call_import
def call_and_report(arguments, argv):
    code = call(arguments, argv)
    print("peak", 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]))
    return code
command.call_import = call_and_report
sys.argv = ["collbench", "import", *sys.argv[1:]]
sys.exit(main())
"""


@dataclass(frozen=True)
class Imported:
    """One import: the wall time of its command, start included, the rows it stored, and the most memory it held."""

    what: str
    wall_s: float
    rows: int
    peak_bytes: int


def head() -> Iterator[str]:
    """What nccl-tests prints before its first table."""
    yield "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
    yield "# Using devices"
    yield from (
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} on node{rank // 8:04d} device {rank % 8:2d} [0x{rank % 8}b] NVIDIA H100"
        for rank in range(_RANKS)
    )


def table(sizes: Iterator[int]) -> Iterator[str]:
    """A table of an all-reduce with these sizes, out of place and in place."""
    yield "#                                                              out-of-place                       in-place"
    yield "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
    yield "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    for size in sizes:
        us = 20 + size / 200e3
        body = f"{us:7.2f}  {size / us / 1e3:6.2f}  {size / us / 1e3 * _OF_ALLREDUCE:6.2f}      0"
        yield f"{size:12d}  {size // 4:12d}     float     sum      -1  {body}  {body}"


def mixed() -> Iterator[str]:
    """A job with NCCL_DEBUG=INFO that measures again and again: 28 sizes each time, and thousands of lines of NCCL between them."""
    yield from head()
    while True:
        yield from (
            f"node0001:12345:12399 [{i % 8}] NCCL INFO Channel {i % 32:02d}/0 : 1[1] -> 9[1] [send] via NET/IB/{i % 8}/GDRDMA"
            for i in range(_BETWEEN)
        )
        yield from table(8 << power for power in range(28))


def again_and_again() -> Iterator[str]:
    """A job of every night, appended to one log: 28 sizes each time."""
    while True:
        yield from head()
        yield from table(8 << power for power in range(28))
        yield "# Avg bus bandwidth    : 73.5"


def figures_alone() -> Iterator[str]:
    """One table of as many sizes as there are lines."""
    return chain(head(), table(256 * (step + 1) for step in range(LINES)))


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "tables within NCCL's log": mixed,
    "a table again and again": again_and_again,
    "lines of a table alone": figures_alone,
}


def measure(n: int = 5, lines: int = LINES) -> Outcome:
    """n imports of each kind of log."""
    found = [_imported(what, make, lines) for what, make in KINDS.items() for _ in range(n)]
    figures = []
    for what in KINDS:
        of_kind = [each for each in found if each.what == what]
        target = _FAST_ENOUGH_S if what == next(iter(KINDS)) else None
        most = max(each.peak_bytes for each in of_kind)
        figures += [
            timed(f"{what} ({of_kind[0].rows:,} rows)", (each.wall_s for each in of_kind), SECONDS, below=target),
            Figure(f"{what}, peak memory", f"{MEBIBYTES.show(most)} MiB", "the most", "", None),
        ]
    how = (
        f"`collbench import LOG --out DIR` of {lines:,} lines, start included. Tables within NCCL's log: 28 sizes after each {_BETWEEN:,} "
        "lines of NCCL_DEBUG=INFO; the target is of these. A table again and again: each becomes a folder. Lines of a table alone: every "
        "line gives two rows, which no log of a job does."
    )
    return Outcome("import_log", how, figures, [vars(each) for each in found])


def _imported(what: str, make: Callable[[], Iterator[str]], lines: int) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text("\n".join([*islice(make(), lines), ""]))
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(log), "--out", str(Path(folder) / "run")],
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s = time.perf_counter() - began
    rows, peak = re.findall(r": (\d+) rows?$", done.stdout, re.MULTILINE), re.search(r"^peak (\d+)$", done.stdout, re.MULTILINE)
    if done.returncode or not rows or peak is None:
        raise LaunchFailed(f"collbench import ended with code {done.returncode}: {done.stderr[-500:]}")
    return Imported(what, wall_s, sum(map(int, rows)), int(peak[1]))
