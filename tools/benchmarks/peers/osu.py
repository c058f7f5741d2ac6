"""OSU micro-benchmarks: where they lie, how they are started, and what they print."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collbench.errors import UsageError
from tools.benchmarks.launches import LaunchFailed, environment_of_launch, launch, mpiexec
from tools.benchmarks.peers import ours
from tools.benchmarks.peers.contest import Contest, Target
from tools.benchmarks.peers.load import LARGE, RATE, SMALL, Load, huge_bytes, rows, sentence, wanted
from tools.benchmarks.peers.ours import Ours

MEAN, MEDIAN = 1, -1  # columns after the size: the first, and with -z50 the last
_PERCENTILES_FROM = (7, 4)
_PROGRAMS = {
    "allreduce": "osu_allreduce", "broadcast": "osu_bcast", "allgather": "osu_allgather", "alltoall": "osu_alltoall",
    "reducescatter": "osu_reduce_scatter_block", "reduce": "osu_reduce", "p2p_latency": "osu_latency", "p2p_bandwidth": "osu_mbw_mr",
}  # fmt: skip
_RANKS = 2
_PARTS = {"allgather": _RANKS, "alltoall": _RANKS}  # OSU prints the bytes of one part there; collbench's size is all parts
_CLOSE = Target(1.02)
_TARGETS = {
    "MPICH": {8: Target(1.10, or_seconds=1e-7), 65536: _CLOSE, 1 << 20: _CLOSE, 16 << 20: Target(1.05)},
    "Open MPI": {8: Target(1.10, 0.90, or_seconds=1e-7)},
}
_RATE = {8: Target(1.10, 0.90)}


@dataclass(frozen=True)
class Osu:
    """The programs in a folder, at any depth, and their printed version."""

    folder: Path
    version: tuple[int, ...]

    @property
    def percentiles(self) -> bool:
        """Whether -z50 is there: the median beside the mean."""
        return self.version >= _PERCENTILES_FROM

    def program(self, operation: str) -> Path:
        """The program that measures an operation. Raises UsageError."""
        return find(self.folder, _PROGRAMS[operation])

    def command(self, operation: str, load: Load, kind: str = "mpi_float") -> list[str]:
        """mpiexec's command line. Elements are floats in collectives, as collbench's are; -m takes all powers of two between."""
        parts = _PARTS.get(operation, 1)
        flags = ["-m", f"{load.sizes[0] // parts}:{load.sizes[-1] // parts}", "-i", str(load.iterations), "-x", str(load.warmup)]
        flags += ["-z50"] if self.percentiles else []
        flags += ["-T", kind] if self.version >= (7,) and not operation.startswith("p2p") else []
        return mpiexec(*load.environment(), str(self.program(operation)), *flags)

    def measure(self, operation: str, load: Load, kind: str = "mpi_float", column: int = MEDIAN) -> dict[int, float]:
        """Seconds by collbench's size; the median where this version has it. Raises LaunchFailed."""
        printed = times(launch(self.command(operation, load, kind)).out, column)
        found = {size * _PARTS.get(operation, 1): time_s for size, time_s in printed.items()}
        return wanted(found, load.sizes, _PROGRAMS[operation])

    def seen_pages(self, operation: str, load: Load) -> str:
        """What pages its memory lies on."""
        command = self.command(operation, load)
        held = huge_bytes(command, self.program(operation).name, environment_of_launch())
        return sentence(held, load.sizes[-1], load.huge, "OSU")


def find(folder: Path, name: str) -> Path:
    """The program of that name, built or installed below the folder; libtool's scripts are as good. Raises UsageError."""
    for path in sorted(folder.rglob(name)):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise UsageError(f"no program {name} in {folder}: give --osu the folder in which OSU's micro-benchmarks were built or installed")


def open_osu(folder: Path) -> Osu:
    """Looks for all programs and starts one for its version. Raises UsageError, Missing."""
    for name in _PROGRAMS.values():
        find(folder, name)
    program = find(folder, "osu_latency")
    try:
        out = launch(mpiexec(str(program), "-m", "8:8", "-i", "10", "-x", "1")).out
    except LaunchFailed as why:
        raise UsageError(f"{program} does not run here ({why.briefly()}): build it with the mpicc of the MPI that collbench uses") from why
    version = version_of(out)
    if version is None or 8 not in times(out):
        raise UsageError(f"{program} printed no table of OSU's: give --osu the folder in which OSU's micro-benchmarks were built")
    return Osu(folder, version)


def version_of(out: str) -> tuple[int, ...] | None:
    """(7, 4) of "# OSU MPI Latency Test v7.4"."""
    found = re.search(r"^# OSU MPI.*\bv(\d{1,4}(?:\.\d{1,4})*)", out, re.MULTILINE | re.ASCII)
    return tuple(map(int, found[1].split("."))) if found else None


def times(out: str, column: int = MEDIAN) -> dict[int, float]:
    """Seconds by size: the median if it was printed and is asked for, else the mean. Of a rate, seconds per message."""
    rate = "Messages/s" in out
    column = column if "P50" in out else MEAN
    found = {}
    for numbers in rows(out):
        size, value = int(numbers[0]), numbers[column]
        found[size] = size / (value * 1e6) if rate and value > 0 else 0.0 if rate else value * 1e-6
    return found


def contests(osu: Osu, family: str) -> list[Contest]:
    """All that is compared with OSU."""
    found = []
    for operation in _PROGRAMS:
        if operation == "p2p_bandwidth":
            continue
        options = ("--window", "1") if operation == "p2p_latency" else ()
        targets = _TARGETS.get(family, {})
        found += [_contest(osu, operation, load, targets, options) for load in (SMALL, LARGE)]
    return [*found, _contest(osu, "p2p_bandwidth", RATE, _RATE, ("--window", "64"))]


def _contest(osu: Osu, operation: str, load: Load, targets: dict[int, Target], options: Sequence[str]) -> Contest:
    return Contest(
        f"osu-{operation}{'-large' if load.huge else ''}",
        _like(osu, operation),
        partial(ours.measure, operation, "mpi", load, ours.rank_mean if osu.percentiles else ours.mean, options),
        partial(osu.measure, operation, load),
        targets,
        partial(osu.seen_pages, operation, load),
    )


def _like(osu: Osu, operation: str) -> str:
    version = ".".join(map(str, osu.version))
    if not osu.percentiles:
        return f"OSU {version} has no -z50: its mean over ranks and iterations beside collbench's mean over ranks and samples."
    if operation == "p2p_bandwidth":
        return f"OSU {version} -z50, window 64: median of windows' bandwidth as time per message, beside collbench's median per message."
    if operation == "p2p_latency":
        return f"OSU {version} -z50: median of half round trips at rank 0, no barrier between them; collbench's likewise."
    return f"OSU {version} -z50: median over iterations of the mean over ranks; of collbench's samples the same figure."


# Why OSU's figures differ between users: OSU compared with itself, with one change. This explains the 12 % by which OSU reads slower
# than collbench on Open MPI at 64 KiB to 1 MiB.

_AS_COMPARED = "Beside it OSU as it is compared with collbench: P50, floats, ordinary pages."


def contests_with_itself(osu: Osu) -> list[Contest]:
    """The mean instead of the median, characters instead of floats, huge pages instead of ordinary ones. Needs percentiles."""
    if not osu.percentiles:
        return []
    changed = partial(_changed, osu)
    return [
        _itself(osu, "mean", partial(changed, SMALL, "mpi_float", MEAN), "The mean, OSU's first column, which one interruption spoils."),
        _itself(osu, "chars", partial(changed, SMALL, "mpi_char", MEDIAN), "Sums of characters, which OSU takes without -T."),
        _itself(osu, "huge-pages", partial(changed, replace(SMALL, huge=True), "mpi_float", MEDIAN), "Buffers on huge pages."),
    ]


def _itself(osu: Osu, name: str, changed: partial[dict[int, Ours]], how: str) -> Contest:
    compared = partial(osu.measure, "allreduce", SMALL)
    return Contest(f"why-{name}", f"{how} {_AS_COMPARED}", changed, compared, sides=(f"OSU, {name}", "OSU"))


def _changed(osu: Osu, load: Load, kind: str, column: int) -> dict[int, Ours]:
    return {size: Ours(time_s) for size, time_s in osu.measure("allreduce", load, kind, column).items()}
