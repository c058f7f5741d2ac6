"""gloo's own benchmark: how two processes of it are started and what they print."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from collbench.errors import UsageError
from tools.benchmarks.launches import LaunchFailed, environment_of_launch, launch
from tools.benchmarks.peers import ours
from tools.benchmarks.peers.contest import Contest, Target
from tools.benchmarks.peers.load import LOOPBACK, Load, huge_bytes, rows, sentence, wanted

_WITHIN = Target(1.15, 0.85)
_TARGETS = {16 << 20: _WITHIN, 64 << 20: _WITHIN}
_LOADS = (Load((8,), 1000, 100), Load((16 << 20,), 60, 10, huge=True), Load((64 << 20,), 20, 4, huge=True))
_FLOAT_BYTES = 4
_RING, _CHUNKED = "new_allreduce_ring", "allreduce_ring_chunked"
_LIKE = {
    _RING: "gloo's P50 at rank 0, iterations back to back; of collbench's samples (torch's all_reduce, a barrier before each) the median "
    "at rank 0. The same ring algorithm; gloo's benchmark has a buffer for the result and copies into it, torch works in place.",
    "pipelined": "gloo's P50 at rank 0 beside the median of collbench's batches of 20 calls back to back, at rank 0, per call.",
    _CHUNKED: "As above, but gloo's older algorithm, which works in place as torch does.",
}
_BOTH = '"$@" --rank 1 --shared-path "$PWD" >&2 & "$@" --rank 0 --shared-path "$PWD"; code=$?; wait; exit $code'


@dataclass(frozen=True)
class Gloo:
    """The program `benchmark` that gloo's build makes."""

    program: Path

    def command(self, algorithm: str, load: Load) -> list[str]:
        """Both ranks; they meet in the folder the launch runs in."""
        # Its check counts in floats and fails beyond 2^24 of them.
        counts = ["--iteration-count", str(load.iterations), "--warmup-iters", str(load.warmup), "--nanos", "--no-verify"]
        size = ["--size", "2", "--elements", str(load.sizes[0] // _FLOAT_BYTES)]
        over = ["--transport", "tcp", "--tcp-device", LOOPBACK]
        return [*load.environment(), "sh", "-c", _BOTH, "sh", str(self.program), algorithm, *size, *over, *counts]

    def measure(self, algorithm: str, load: Load) -> dict[int, float]:
        """Seconds by size. Raises LaunchFailed."""
        return wanted(times(launch(self.command(algorithm, load)).out), load.sizes, "gloo's benchmark")

    def seen_pages(self, algorithm: str, load: Load) -> str:
        """What pages its memory lies on."""
        held = huge_bytes(self.command(algorithm, load), self.program.name, environment_of_launch())
        return sentence(held, load.sizes[-1], load.huge, "gloo's benchmark")


def open_gloo(program: Path) -> Gloo:
    """Starts it once. Raises UsageError."""
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise UsageError(f"{program} is not a program: give --gloo the file `benchmark` that gloo's build makes with BUILD_BENCHMARK=ON")
    gloo = Gloo(program)
    try:
        gloo.measure(_RING, Load((8,), 10, 1))
    except LaunchFailed as why:
        raise UsageError(f"{program} is not gloo's benchmark ({why.briefly()})") from why
    return gloo


def times(out: str) -> dict[int, float]:
    """Seconds by size: the p50 column, fourth of eight, in the unit of its head."""
    unit = re.search(r"p50 \((us|ns)\)", out)
    if not unit:
        return {}
    return {int(numbers[0]): numbers[3] * (1e-6 if unit[1] == "us" else 1e-9) for numbers in rows(out) if len(numbers) == 8}


def contests(gloo: Gloo) -> list[Contest]:
    """All that is compared with gloo's benchmark."""
    found = [_contest(gloo, algorithm, load, "isolated") for algorithm in (_RING, _CHUNKED) for load in _LOADS]
    return [*found, _contest(gloo, _RING, _LOADS[0], "pipelined")]


def _contest(gloo: Gloo, algorithm: str, load: Load, mode: str) -> Contest:
    return Contest(
        f"gloo-{algorithm}-{load.sizes[0]}{'' if mode == 'isolated' else f'-{mode}'}",
        _LIKE[algorithm if mode == "isolated" else mode],
        partial(ours.measure, "allreduce", "gloo", load, ours.first_rank, ("--mode", mode)),
        partial(gloo.measure, algorithm, load),
        _TARGETS,
        partial(gloo.seen_pages, algorithm, load),
    )
