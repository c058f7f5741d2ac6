"""What the native loop itself costs: an empty function called as a library's would be, without any library."""

from __future__ import annotations

import ctypes
import json
import time

import numpy as np

from collbench.backends.clock import MonotonicClock
from collbench.measuring.loop import Loop, Timed
from collbench.native.library import address, library
from collbench.operations.program import NativeCall, Program
from tools.benchmarks.figures import NANOSECONDS, Outcome, timed
from tools.benchmarks.launches import Missing, launch, module

_BATCH, _SAMPLES = 10_000, 200


def measure(n: int = 20) -> Outcome:
    """n launches."""
    if library() is None:
        raise Missing("the native loop was not built: install a C compiler (apt install gcc libc6-dev), then pip install -e . again")
    found = [json.loads(launch(module("loop_cost")).out) for _ in range(n)]
    return Outcome(
        "loop_cost",
        f"The native loop over an empty function with 12 words, one process. Per call: medians of {_SAMPLES} batches of {_BATCH:,}. Per "
        "isolated sample: two stamps around one call, as read by the stamps, and as it takes in all with what is stored.",
        [
            timed("per call", (one["call_s"] for one in found), NANOSECONDS, below=100e-9),
            timed("of it: the loop without a call", (one["empty_s"] for one in found), NANOSECONDS),
            timed("isolated sample, as read", (one["read_s"] for one in found), NANOSECONDS),
            timed("isolated sample, in all", (one["sample_s"] for one in found), NANOSECONDS),
        ],
        found,
    )


def one() -> dict[str, float]:
    """Seconds in one launch."""
    nothing = Program(((NativeCall("nothing", address("collbench_nothing"), tuple(range(12))),),))
    call, empty = _loop(nothing), _loop(Program(((),)))
    calls, empties = [], []
    for _ in range(_SAMPLES):
        calls.append(call.run(1, _BATCH)[0, 0] / _BATCH)
        empties.append(empty.run(1, _BATCH)[0, 0] / _BATCH)
    wholes, reads = [], []
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        reads.append(float(np.median(call.run(_BATCH))))
        wholes.append((time.perf_counter() - start) / _BATCH)
    series = {"call_s": calls, "empty_s": empties, "read_s": reads, "sample_s": wholes}
    return {name: float(np.median(values)) for name, values in series.items()}


def _loop(program: Program) -> Loop:
    return Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))


if __name__ == "__main__":
    print(json.dumps(one()))
