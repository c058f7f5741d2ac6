"""python -m tools.benchmarks.stacks.within STACK   a rank: the stack's own call and collbench's, in turn on what collbench opened.

Launches of one stack differ by more than what is asked of the harness; batches a few milliseconds apart in one launch do not.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from collbench.backends.backend import Settings
from collbench.backends.registry import backend_class, backend_defaults
from collbench.control.world import World
from collbench.launch.detect import detect
from collbench.measuring.loop import Loop
from collbench.measuring.prepared_case import BackendContext, make_groups, placed, prepare
from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from tools.benchmarks.launches import pairs
from tools.benchmarks.stacks.loop import Place, operation_of, seconds_of

_TIMEOUT_S = 60
Both = tuple[Callable[[int], float], Callable[[int], float]]


@contextmanager
def opened(stack: str, place: Place) -> Iterator[Both]:
    """What times n calls of (collbench's loop, the stack's own), in seconds per call."""
    info = detect(os.environ)
    assert info is not None, "started with RANK and WORLD_SIZE"
    world, backend = World(info, _TIMEOUT_S), backend_class(stack)()
    backend.open(world, Settings(timeout_s=_TIMEOUT_S))
    try:
        loop = _loop(stack, place, world, backend)
        own = import_module(f"tools.benchmarks.stacks.{stack}").ready(place)
        yield lambda n: float(loop.run(1, n)[0, 0]) / n, lambda n: seconds_of(own, n)
        world.allgather(None, "ending")
    finally:
        backend.close()
        world.close()


def _loop(stack: str, place: Place, world: World, backend: Any) -> Loop:
    """The loop that `collbench OPERATION --mode pipelined --buffers fixed` runs."""
    operation = operations()[operation_of(stack)]
    sweep = Sweep((operation,), (place.n_bytes,), (dtype_named("float32"),), mode="pipelined", buffers="fixed", defaults=backend_defaults)
    (case,) = sweep.cases(stack, place.ranks)
    stage = BackendContext(backend, make_groups(backend, [(operation, case)], world), None)
    ready = prepare(operation, placed(case, operation, backend), stage, world)
    assert not isinstance(ready, str), ready
    return ready.loop


def main(stack: str, place: Place) -> None:
    """Warms both up, then a batch of each in turn, either first as often. Rank 0 prints the medians of both, in seconds per call."""
    with opened(stack, place) as (ours, theirs):
        for each in (ours, theirs):
            each(place.warmup)
        found = pairs(partial(ours, place.batch), partial(theirs, place.batch), place.batches)
    if place.rank == 0:
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        print(json.dumps(dict(zip(("collbench_s", "own_s"), medians, strict=True))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Place.from_environment(os.environ))
