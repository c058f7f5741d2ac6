"""OSU's `osu_iallreduce` (latency and overlap) and `osu_mbw_mr` with several pairs, beside what is like them in collbench.

Definitions that agree: the time of MPI_Iallreduce and MPI_Wait alone; exposed time = both − computation; messages of all pairs per second.
They differ in this: OSU limits the overlap to 0 to 100 % and has one computation of about the communication's mean, measured before;
collbench interleaves the three states and does not limit. OSU prints means of iterations and ranks here, also with -z50.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from collbench.results.reader import Run
from collbench.results.row import Row
from tools.benchmarks.launches import LaunchFailed, launch, mpiexec
from tools.benchmarks.peers import ours
from tools.benchmarks.peers.contest import Contest, Target
from tools.benchmarks.peers.load import RATE, Load, rows, wanted
from tools.benchmarks.peers.osu import Osu, find, times
from tools.benchmarks.peers.ours import Ours

LATENCY_LOAD = Load((65536, 1 << 20), 400, 50)
OVERLAP_LOAD = Load((1 << 20,), 200, 20)
_CLOSE = Target(1.03, 0.97)
_PURE, _OVERLAP = 3, 4  # columns after the size, which is column 0
_MOST_PAIRS = 2
_LEAST_S = 1e-9  # an exposed time of 0 has no ratio
_OVERLAP_COLUMN = "Overlap(%)"


@dataclass(frozen=True)
class Nonblocking:
    """A line of osu_iallreduce: seconds of the communication alone, and its exposed time, by OSU's own overlap."""

    communication_s: float
    exposed_s: float


def read_nonblocking(out: str) -> dict[int, Nonblocking]:
    """Return the lines of osu_iallreduce by size; empty for a text without its overlap column."""
    if _OVERLAP_COLUMN not in out:
        return {}
    lines = {int(each[0]): (each[_PURE] * 1e-6, each[_OVERLAP]) for each in rows(out) if len(each) > _OVERLAP}
    return {size: Nonblocking(alone, alone * (1 - overlap / 100)) for size, (alone, overlap) in lines.items()}


def contests(osu: Osu) -> list[Contest]:
    """Return the contests. The options of collbench that they need are `--calls nonblocking`, `--overlap` and `multipair --pairs`."""
    version = ".".join(map(str, osu.version))
    latency = f"OSU {version} osu_iallreduce, column Pure Comm.: mean over iterations and ranks, beside collbench's mean over both."
    overlap = (
        f"OSU {version} osu_iallreduce: Pure Comm. times (1 - Overlap), limited to 0 to 100 % by OSU, beside collbench's exposed time, "
        "both less computation, at least 0. The computations differ, so there is no target."
    )
    rate = f"OSU {version} osu_mbw_mr, window 64: seconds per message of all pairs, beside the reciprocal of collbench's message rate."
    exposed = partial(_iallreduce, osu, OVERLAP_LOAD, exposed=True)
    alone = partial(_iallreduce, osu, LATENCY_LOAD, exposed=False)
    calls = partial(_collbench, LATENCY_LOAD, ("--calls", "nonblocking"))
    small = dict.fromkeys(RATE.sizes, _CLOSE)
    cores = len(os.sched_getaffinity(0))
    if cores < 2 * _MOST_PAIRS:
        print(f"osu-multipair-{_MOST_PAIRS}: not measured: {2 * _MOST_PAIRS} ranks need a core each, and {cores} are usable\n", flush=True)
    return [
        Contest("osu-iallreduce-latency", latency, calls, alone, dict.fromkeys(LATENCY_LOAD.sizes, _CLOSE)),
        Contest("osu-iallreduce-overlap", overlap, partial(_overlap, OVERLAP_LOAD), exposed),
        *(
            Contest(f"osu-multipair-{n}", rate, partial(_multipair, n), partial(_mbw_mr, osu, n), small)
            for n in (1, _MOST_PAIRS)
            if 2 * n <= cores
        ),
    ]


def _counts(load: Load) -> list[str]:
    return ["-m", f"{load.sizes[0]}:{load.sizes[-1]}", "-i", str(load.iterations), "-x", str(load.warmup)]


def _iallreduce(osu: Osu, load: Load, *, exposed: bool) -> dict[int, float]:
    program = str(find(osu.folder, "osu_iallreduce"))
    found = read_nonblocking(launch(mpiexec(*load.environment(), program, *_counts(load), "-T", "mpi_float")).out)
    values = {size: max(each.exposed_s, _LEAST_S) if exposed else each.communication_s for size, each in found.items()}
    return wanted(values, load.sizes, "osu_iallreduce")


def _mbw_mr(osu: Osu, pairs: int) -> dict[int, float]:
    program = str(find(osu.folder, "osu_mbw_mr"))
    flags = ["-z50"] if osu.percentiles else []
    out = launch(mpiexec(*RATE.environment(), program, *_counts(RATE), *flags, ranks=2 * pairs)).out
    return wanted(times(out), RATE.sizes, "osu_mbw_mr")


def _collbench(load: Load, options: tuple[str, ...]) -> dict[int, Ours]:
    return ours.measure("allreduce", "mpi", load, ours.mean, options)


def _overlap(load: Load) -> dict[int, Ours]:
    return ours.measure("allreduce", "mpi", load, _exposed, ("--overlap",))


def _exposed(_: Run, row: Row) -> float:
    found: Mapping[str, float] = getattr(row, "overlap", {}).get("exposed_s") or {}
    if "value" not in found:
        raise LaunchFailed(f"collbench's row of {row.size_bytes} bytes has no exposed time")
    return max(found["value"], _LEAST_S)


def _multipair(pairs: int) -> dict[int, Ours]:
    options = ("--ranks", str(2 * pairs), "--pairs", str(pairs), "--window", "64")
    return ours.measure("multipair_bandwidth", "mpi", RATE, _per_message, options)


def _per_message(_: Run, row: Row) -> float:
    rate: float | None = getattr(row, "message_rate", None)
    if not rate:
        raise LaunchFailed(f"collbench's row of {row.size_bytes} bytes has no message rate")
    return 1 / rate
