"""Intel MPI benchmarks (IMB-MPI1): how they are started and what they print.

They print only the mean of a size's iterations, no median and no samples. But a size may be listed repeatedly: each time it is measured
again in the same launch. So each size is measured in blocks, and the median of their means is taken, as of collbench's samples in blocks.

The wheel impi-rt has them built for Intel MPI, in the environment's bin, without a path to the library in its lib.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from collbench.errors import UsageError
from tools.benchmarks.launches import LaunchFailed, environment_of_launch, launch, mpiexec
from tools.benchmarks.peers import ours
from tools.benchmarks.peers.contest import Contest
from tools.benchmarks.peers.load import LARGE, SMALL, Load, huge_bytes, rows, sentence, wanted

_NAMES = {
    "allreduce": "Allreduce", "broadcast": "Bcast", "reduce": "Reduce", "allgather": "Allgather", "alltoall": "Alltoall",
    "reducescatter": "Reduce_scatter_block", "p2p_latency": "PingPong",
}  # fmt: skip
_RANKS = 2
_PARTS = {"allgather": _RANKS, "alltoall": _RANKS, "reducescatter": _RANKS}  # IMB's size is one part there; collbench's is all parts
_BLOCKS = 20
_LIKE = (
    f"Median of the means of {_BLOCKS} blocks of iterations (and ranks) on both sides, since IMB prints means only; "
    "IMB has a barrier after each iteration, collbench before each."
)


@dataclass(frozen=True)
class Imb:
    """The program IMB-MPI1."""

    program: Path

    def command(self, operation: str, load: Load, lengths: Path) -> list[str]:
        """mpiexec's command line; `lengths` is a file with a size per line, each as often as there are blocks."""
        flags = [
            "-npmin",
            "2",
            "-msglog",
            f"0:{_sizes(operation, load)[-1].bit_length() - 1}",
            "-msglen",
            str(lengths),
            "-iter",
            str(_of_block(load)),
            "-iter_policy",
            "off",
        ]
        kinds = ["-data_type", "float", "-red_data_type", "float"]
        return mpiexec(*load.environment(), *self.library(), str(self.program), _NAMES[operation], *flags, *kinds)

    def library(self) -> list[str]:
        """The word before the program with which it finds the library of its wheel; none for one that was built here."""
        folder = self.program.parent.parent / "lib"
        return [f"LD_LIBRARY_PATH={folder}"] if (folder / "libmpi.so.12").exists() else []

    def measure(self, operation: str, load: Load) -> dict[int, float]:
        """Seconds by size. Raises LaunchFailed."""
        with tempfile.TemporaryDirectory(prefix="benchmark-imb-") as folder:
            command = self.command(operation, load, _lengths(folder, _sizes(operation, load), load))
            printed = times(launch(command).out, _warming(load))
        found = {size * _PARTS.get(operation, 1): time_s for size, time_s in printed.items()}
        return wanted(found, load.sizes, "IMB-MPI1")

    def seen_pages(self, operation: str, load: Load) -> str:
        """What pages its memory lies on."""
        with tempfile.TemporaryDirectory(prefix="benchmark-imb-") as folder:
            command = self.command(operation, load, _lengths(folder, _sizes(operation, load), load))
            held = huge_bytes(command, self.program.name, environment_of_launch())
        return sentence(held, load.sizes[-1], load.huge, "IMB")


def _sizes(operation: str, load: Load) -> list[int]:
    """The load's sizes as IMB counts them."""
    return [size // _PARTS.get(operation, 1) for size in load.sizes]


def _of_block(load: Load) -> int:
    """Iterations of one block."""
    return max(1, load.iterations // _BLOCKS)


def _warming(load: Load) -> int:
    """How many blocks of a size only warm up; IMB's own warm-up is one call."""
    return load.warmup // _of_block(load)


def _lengths(folder: str, sizes: Sequence[int], load: Load) -> Path:
    path = Path(folder) / "lengths"
    path.write_text("".join(f"{size}\n" * (_warming(load) + _BLOCKS) for size in sizes))
    return path


def open_imb(program: Path) -> Imb:
    """Starts it once. Raises UsageError, Missing."""
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise UsageError(f"{program} is not a program: give --imb the file IMB-MPI1")
    imb = Imb(program)
    try:
        imb.measure("p2p_latency", Load((8,), 10, 0))
    except LaunchFailed as why:
        raise UsageError(f"{program} is not IMB-MPI1, or not built with the MPI that collbench uses ({why.briefly()})") from why
    return imb


def times(out: str, warming: int = 0) -> dict[int, float]:
    """Seconds by size: the median over a size's lines, without the first `warming`, of t_avg of collectives or t of ping-pong."""
    column = 4 if "t_avg[usec]" in out else 2
    found: dict[int, list[float]] = {}
    for numbers in rows(out) if "[usec]" in out else ():
        if len(numbers) > column:
            found.setdefault(int(numbers[0]), []).append(numbers[column] * 1e-6)
    return {size: median(lines[warming:]) for size, lines in found.items() if lines[warming:]}


def contests(imb: Imb) -> list[Contest]:
    """All that is compared with IMB; no figure of it is a target."""
    return [_contest(imb, operation, load) for operation in _NAMES for load in (SMALL, LARGE)]


def _contest(imb: Imb, operation: str, load: Load) -> Contest:
    options = ("--window", "1") if operation == "p2p_latency" else ()
    return Contest(
        f"imb-{operation}{'-large' if load.huge else ''}",
        _LIKE,
        partial(ours.measure, operation, "mpi", load, partial(ours.median_of_blocks, _BLOCKS), options),
        partial(imb.measure, operation, load),
        pages=partial(imb.seen_pages, operation, load),
    )
