"""What heartbeats cost at 8 B: the latency with one a second from every rank, a hundred times as many, and none, in pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

from tools.benchmarks.figures import MICROSECONDS, RATIO, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, launch, module, mpiexec, pairs

_CASE = (
    "allreduce",
    "--backend",
    "mpi",
    "--sizes",
    "8",
    "--warmup",
    "200",
    "--seed",
    "1",
    "--check",
    "0",
    "--evidence",
    "off",
    "--format",
    "json",
)
_USUAL_S, _OFTEN_S, _NEVER_S = 1.0, 0.01, 1e9


def measure(n: int = 20, iterations: int = 20_000) -> Outcome:
    """n pairs of each."""
    usual = pairs(partial(_p50_s, _USUAL_S, iterations), partial(_p50_s, _NEVER_S, iterations), n)
    often = pairs(partial(_p50_s, _OFTEN_S, iterations), partial(_p50_s, _NEVER_S, iterations), n)
    return Outcome(
        "heartbeat_8b",
        f"`collbench {' '.join(_CASE)}` of two ranks with {iterations:,} samples, in pairs with the same without "
        "heartbeats. On this machine of few cores the thread that beats shares them with the ranks.",
        [
            timed("p50 with a beat a second", (on for on, _ in usual), MICROSECONDS),
            timed("p50 without", (off for _, off in usual), MICROSECONDS),
            timed("ratio within pairs", (on / off for on, off in usual), RATIO, below=1.02),
            timed("ratio within pairs, a beat each 10 ms", (on / off for on, off in often), RATIO),
        ],
        [
            {"beat_s": beat_s, "on_p50_s": on, "off_p50_s": off}
            for beat_s, each in ((_USUAL_S, usual), (_OFTEN_S, often))
            for on, off in each
        ],
    )


def _p50_s(beat_s: float, iterations: int) -> float:
    ended = launch(mpiexec(*module("heartbeat_8b", str(beat_s), *_CASE, "--iterations", str(iterations))))
    rows = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    if len(rows) != 1:
        raise LaunchFailed(f"{len(rows)} rows where one was asked for: {ended.out[-200:]}")
    return float(rows[0]["time_s"]["p50"])


def _rank(beat_s: float, words: Sequence[str]) -> int:
    """One rank of the command line, with another time between its heartbeats."""
    from collbench.cli.main import run
    from collbench.control import client

    client._BEAT_S = beat_s
    return run(list(words))


if __name__ == "__main__":
    sys.exit(_rank(float(sys.argv[1]), sys.argv[2:]))
