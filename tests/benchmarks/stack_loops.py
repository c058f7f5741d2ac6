"""Whether the harness adds less than 5 % to each stack's own minimal loop: all-reduce of 1 MiB through collbench and by itself."""

from __future__ import annotations

import ctypes
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from collbench.backends.clock import MonotonicClock
from collbench.operations.program import Program, PythonCall
from collbench.results.reader import read_run
from collbench.timing.loop import Loop, Timed
from tests.benchmarks.command import main
from tests.benchmarks.figures import MICROSECONDS, NANOSECONDS, RATIO, Figure, Outcome, timed
from tests.benchmarks.launches import LaunchFailed, Missing, launch, pairs
from tests.plugins.stack import ENVIRONMENTS, python_of

_ROOT = Path(__file__).parents[2]
_BYTES, _WARMUP, _BATCHES, _BATCH = 1 << 20, 100, 60, 20
_MOST = 1.05
# Both ranks; rank 1 says nothing on stdout, and both end before the line does.
_BOTH = 'RANK=1 "$@" >&2 & RANK=0 "$@"; code=$?; wait $! || code=$?; exit $code'
STACKS = ("gloo", *ENVIRONMENTS)  # the backends' names, and those of the files in stacks/


def measure(n: int = 10, stacks: Sequence[str] = STACKS) -> Outcome:
    """n pairs of each stack that is installed. Raises Missing where none is."""
    here = [stack for stack in stacks if _python(stack) and (_ROOT / f"tests/benchmarks/stacks/{stack}.py").exists()]
    if not here:
        raise Missing("no further stack is installed: make plugin-environments")
    empty = [around_nothing() for _ in range(n)]
    raw = [_pair(stack, ours, theirs) for stack in here for ours, theirs in pairs(partial(through, stack), partial(alone, stack), n)]
    return Outcome(
        "stack_loops",
        f"All-reduce of 1 MiB of float32, two ranks on one host, launches in pairs. Minimal loop: {_BATCHES} batches of {_BATCH} calls of "
        "the stack back to back, two clock readings per batch; collbench: `--mode pipelined`, which does the same. Rank 0's median. "
        "On a busy machine launches of a stack differ by more than 5 % among themselves: what the loop adds is then its share alone.",
        [
            timed("the harness's loop around a call that does nothing", empty, NANOSECONDS),
            *(
                figure
                for stack in here
                for figure in _figures(stack, [one for one in raw if one["stack"] == stack], statistics.median(empty))
            ),
        ],
        raw,
    )


def _pair(stack: str, ours: float, theirs: float) -> dict[str, Any]:
    return {"stack": stack, "collbench_p50_s": ours, "alone_p50_s": theirs}


def _python(stack: str) -> Path | None:
    """The Python of the stack: that of its environment, or for a stack of the project's own environment this one."""
    return python_of(stack) if stack in ENVIRONMENTS else Path(sys.executable)


def around_nothing(batches: int = 2000) -> float:
    """Seconds per call that the loop which times Python calls takes itself, in batches like the others."""
    nothing = Program(((PythonCall("nothing", lambda: None),),))
    loop = Loop(Timed(nothing, None, MonotonicClock(), ctypes.c_int64()))
    return float(statistics.median(loop.run(batches, _BATCH)[0])) / _BATCH


def through(stack: str, warmup: int = _WARMUP, batches: int = _BATCHES) -> float:
    """Seconds per call through collbench. Raises LaunchFailed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-stacks-") as folder:
        out = Path(folder) / "run"
        how = ["--mode", "pipelined", "--buffers", "fixed", "--dtype", "float32", "--ranks", "2", "--max-time", "60"]
        counts = ["--iterations", str(batches), "--warmup", str(warmup), "--out", str(out), "--quiet"]
        launch([str(_python(stack)), "-m", "collbench", "allreduce", "--backend", stack, "--sizes", str(_BYTES), *how, *counts])
        run = read_run(out)
        (row,) = run.rows
        if row.na or row.time_s is None:
            raise LaunchFailed(f"collbench measured nothing on {stack}: {row.na}")
        return float(run.array(row, "rank_p50_s")[0])


def alone(stack: str, warmup: int = _WARMUP, batches: int = _BATCHES) -> float:
    """Seconds per call of the stack's own loop. Raises LaunchFailed."""
    load = ",".join(map(str, (_BYTES, warmup, batches, _BATCH)))
    told = [f"PYTHONPATH={_ROOT}", "WORLD_SIZE=2", f"STACK_ADDRESSES={','.join(_addresses(2))}", f"STACK_LOAD={load}"]
    line = ["env", *told, "sh", "-c", _BOTH, "sh", str(_python(stack)), "-m", f"tests.benchmarks.stacks.{stack}"]
    return float(json.loads(launch(line).out.splitlines()[-1])["p50_s"])


def _addresses(n: int) -> list[str]:
    """n addresses on loopback whose ports were free a moment ago."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def _figures(stack: str, found: Iterable[dict[str, Any]], empty_s: float) -> list[Figure]:
    those = [(one["collbench_p50_s"], one["alone_p50_s"]) for one in found]
    return [
        timed(f"{stack}: collbench", (ours for ours, _ in those), MICROSECONDS),
        timed(f"{stack}: its own loop", (theirs for _, theirs in those), MICROSECONDS),
        timed(f"{stack}: ratio within pairs", (ours / theirs for ours, theirs in those), RATIO, below=_MOST),
        timed(f"{stack}: the harness's loop, as a share of its own", (empty_s / theirs for _, theirs in those), RATIO, below=_MOST - 1),
    ]


if __name__ == "__main__":
    main(measure)
