"""Whether the harness adds less than 5 % to each stack's own minimal loop: 1 MiB through collbench and by itself."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from collbench.backends.clock import MonotonicClock
from collbench.measuring.loop import Loop, Timed
from collbench.operations.program import Program, PythonCall
from collbench.plugins.libraries.ucc.library import CHOSEN as CHOSEN_UCC
from collbench.results.reader import read_run
from tests.plugins.libraries.stack import ENVIRONMENTS, python_of
from tools.benchmarks.figures import MICROSECONDS, NANOSECONDS, RATIO, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed, Missing, launch, pairs
from tools.benchmarks.stacks.loop import operation_of

_ROOT = Path(__file__).parents[2]
_BYTES, _WARMUP, _BATCHES, _BATCH = 1 << 20, 100, 60, 20
_MOST = 1.05
_IN_TURN = 3  # launches in which both take turns, for each pair of launches: they are quick, and more precise
# Two ranks with torchrun's variables, a processor each, as collbench binds them; rank 1 prints nothing to stdout.
_BOTH = (
    "MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT WORLD_SIZE=2 LOCAL_WORLD_SIZE=2; export MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE; "
    'RANK=1 LOCAL_RANK=1 taskset -c $SECOND "$@" >&2 & RANK=0 LOCAL_RANK=0 taskset -c $FIRST "$@"; code=$?; wait $! || code=$?; exit $code'
)
# oneCCL without its worker thread: each rank has one processor here, which the rank and a busy thread would share.
_SETTINGS = {"oneccl": ["CCL_WORKER_OFFLOAD=0"]}
WITHIN = "within"  # the module that has both in one launch
# The backends' names, and those of the files in stacks/.
STACKS = ("gloo", "zmq", "ucc", *(stack for stack in ENVIRONMENTS if (_ROOT / f"tools/benchmarks/stacks/{stack}.py").exists()))


def measure(n: int = 10, stacks: Sequence[str] = STACKS) -> Outcome:
    """n pairs of each stack that is installed. Raises Missing where none is."""
    here = [stack for stack in stacks if _python(stack)]
    if not here:
        raise Missing("no further stack is installed: make plugin-environments")
    raw: list[dict[str, Any]] = [{"nothing_s": around_nothing()} for _ in range(n)]
    raw += [_pair(stack, ours, theirs) for stack in here for ours, theirs in pairs(partial(through, stack), partial(alone, stack), n)]
    raw += [{"stack": stack, **in_turn(stack)} for stack in here for _ in range(_IN_TURN * n)]
    return outcome_of(raw)


def outcome_of(raw: Sequence[dict[str, Any]]) -> Outcome:
    """What launches, each a dictionary of its figures, come to."""
    empty = [one["nothing_s"] for one in raw if "nothing_s" in one]
    by_stack: dict[str, list[dict[str, Any]]] = {}
    for one in raw:
        if "stack" in one:
            by_stack.setdefault(one["stack"], []).append(one)
    return Outcome(
        "stack_loops",
        f"1 MiB of float32 between two ranks on one host, each on a processor of its own: all-reduce, or ZeroMQ's ping-pong. "
        f"Minimal loop: {_BATCHES} batches of {_BATCH} calls of the stack back to back, two clock readings per batch; collbench: "
        "`--mode pipelined`, which does the same. Rank 0's median. Launches of collbench and of the loop alone are paired; if launches "
        "of one stack differ by more than 5 %, these pairs are not precise enough. So further launches interleave batches of both on the "
        "stack as collbench opened it. oneCCL runs with CCL_WORKER_OFFLOAD=0.",
        [
            timed("the harness's loop around a call that does nothing", empty, NANOSECONDS),
            *(figure for stack, found in by_stack.items() for figure in _figures(stack, found, statistics.median(empty))),
        ],
        raw,
    )


def _pair(stack: str, ours: float, theirs: float) -> dict[str, Any]:
    return {"stack": stack, "collbench_p50_s": ours, "alone_p50_s": theirs}


def _python(stack: str) -> Path | None:
    """The Python of the stack: that of its environment, or for a stack of the project's own environment this one. None if it is missing."""
    if stack == "ucc" and CHOSEN_UCC not in os.environ:
        return None
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
        how = ["--mode", "pipelined", "--buffers", "fixed", "--dtype", "float32", "--max-time", "60"]
        counts = ["--iterations", str(batches), "--warmup", str(warmup), "--out", str(out), "--quiet"]
        how += ["--window", "1"] if operation_of(stack) == "p2p_latency" else []  # bandwidth, which p2p measures, too, takes long else
        _launched(stack, "collbench", operation_of(stack).partition("_")[0], "--backend", stack, "--sizes", str(_BYTES), *how, *counts)
        run = read_run(out)
        (row,) = (row for row in run.rows if row.operation == operation_of(stack))
        if row.na or row.time_s is None:
            raise LaunchFailed(f"collbench measured nothing on {stack}: {row.na}")
        return float(run.array(row, "rank_p50_s")[0]) * (2 if operation_of(stack) == "p2p_latency" else 1)  # there and back


def alone(stack: str, warmup: int = _WARMUP, batches: int = _BATCHES) -> float:
    """Seconds per call of the stack's own loop. Raises LaunchFailed."""
    return float(_told(stack, f"tools.benchmarks.stacks.{stack}", warmup=warmup, batches=batches)["p50_s"])


def in_turn(stack: str, warmup: int = _WARMUP, batches: int = _BATCHES) -> dict[str, float]:
    """Seconds per call of both within one launch, "collbench_s" and "own_s". Raises LaunchFailed."""
    return _told(stack, f"tools.benchmarks.stacks.{WITHIN}", stack, warmup=warmup, batches=batches)


def _told(stack: str, module: str, *arguments: str, warmup: int, batches: int) -> dict[str, Any]:
    """What rank 0 of this module's program printed."""
    load = ",".join(map(str, (_BYTES, warmup, batches, _BATCH)))
    said = _launched(stack, module, *arguments, variables=[f"STACK_ADDRESSES={','.join(_addresses(2))}", f"STACK_LOAD={load}"])
    return dict(json.loads(said.splitlines()[-1]))


def _launched(stack: str, module: str, *arguments: str, variables: Sequence[str] = ()) -> str:
    """Both ranks of a module as a program of the stack's Python, to their end; what rank 0 printed."""
    cpus = sorted(os.sched_getaffinity(0))
    port = _addresses(1)[0].rpartition(":")[2]
    place = [f"PYTHONPATH={_ROOT}", f"PORT={port}", f"FIRST={cpus[0]}", f"SECOND={cpus[-1]}"]
    return launch(
        ["env", *place, *_SETTINGS.get(stack, []), *variables, "sh", "-c", _BOTH, "sh", str(_python(stack)), "-m", module, *arguments]
    ).out


def _addresses(n: int) -> list[str]:
    """Return n addresses on loopback with ports that were just free."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def _figures(stack: str, found: Sequence[dict[str, Any]], empty_s: float) -> list[Figure]:
    apart = [(one["collbench_p50_s"], one["alone_p50_s"]) for one in found if "alone_p50_s" in one]
    within = [one["collbench_s"] / one["own_s"] for one in found if "own_s" in one]
    return [
        timed(f"{stack}: collbench", (ours for ours, _ in apart), MICROSECONDS),
        timed(f"{stack}: its own loop", (theirs for _, theirs in apart), MICROSECONDS),
        timed(f"{stack}: ratio within pairs of launches", (ours / theirs for ours, theirs in apart), RATIO, below=_MOST),
        timed(f"{stack}: ratio in turn within a launch", within, RATIO, below=_MOST),
        timed(f"{stack}: the harness's loop, as a share of its own", (empty_s / theirs for _, theirs in apart), RATIO, below=_MOST - 1),
    ]
