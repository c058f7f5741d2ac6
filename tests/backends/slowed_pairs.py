"""The same cases plain and slowed in one process, in turns: what the ratio of their times is. A rank of it, or the start of both.

One JSON object as argument: backend, operation, sizes, mode, spec, looks, samples, and whether "within": then each iteration that is
slowed is compared with its own time before the delay, as measured by Python calls, instead of with another iteration without a delay.
Rank 0 prints {size: ratio} as its last line.
"""

import ctypes
import json
import os
import sys
import time
from typing import Any

import numpy as np
from msgspec.structs import replace

from collbench.backends.backend import Settings
from collbench.backends.registry import backend_class
from collbench.backends.slowed import slowed
from collbench.backends.slowing import parse_slowing
from collbench.control.world import World
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.sync import host_sync
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import Program, PythonCall
from collbench.operations.registry import operations

_BATCH = 20
_QUICK = 0.05  # quantile: a hold is never shorter than asked for, but longer where others take the core


def ratios(asked: dict[str, Any], world: World) -> dict[str, float]:
    """By size slowed over plain: the quicker samples of each, which others that share the cores do not reach."""
    kind, operation = backend_class(asked["backend"]), operations()[asked["operation"]]
    backend = slowed(kind, parse_slowing([asked["spec"]]))()
    backend.open(world, Settings(timeout_s=30))
    whole, barrier = backend.group(range(backend.ranks)), host_sync(world)
    assert barrier
    sync = backend.sync(whole) or barrier.program()
    found: dict[str, float] = {}
    for size in asked["sizes"]:
        redop = "sum" if operation.reduces else None
        case = Case(
            operation.name, backend.name, DTYPES["float32"], size, redop=redop, mode=asked["mode"], in_place=asked["backend"] == "gloo"
        )
        if operation.pair:
            case = replace(case, in_place=None, window=1, streams=1)
        group = backend.pair(whole, range(2), case) if operation.pair else whole
        on = operation.on(backend.api, backend.passes_messages)
        loops, own_ns = [], list[int]()
        for bind in (kind.bind, type(backend).bind):
            program = bind(backend, on, case, group, backend.allocate(on, case, group, 1))
            program = _told(program, own_ns) if asked.get("within") and loops else program
            before, meeting = (None, sync) if asked["mode"] == "pipelined" else (sync, None)
            loops.append(Loop(Timed(program, before, backend.clock(), ctypes.c_int64(), meeting)))
        if asked.get("within"):
            held = loops[1].run(asked["looks"] * asked["samples"])[0]
            found[str(size)] = float(np.quantile(held / (np.array(own_ns) * 1e-9), _QUICK))
        else:
            found[str(size)] = _ratio(loops, asked, world, 1 if asked["mode"] == "isolated" else _BATCH)
        backend.release(group)
    backend.close()
    barrier.close()
    return found


def _told(program: Program, own_ns: list[int]) -> Program:
    """The same; it reports the duration of the iteration in nanoseconds before the delay."""
    hold = program.keep[1]  # type: ignore[index]

    def end() -> None:
        own_ns.append(time.monotonic_ns() - hold._began_ns)
        hold.end.function()

    return replace(program, slots=tuple((*slot[:-1], PythonCall("slowed end", end)) for slot in program.slots))


def _ratio(loops: list[Loop], asked: dict[str, Any], world: World, batch: int) -> float:
    taken: list[list[np.ndarray]] = [[], []]
    for _ in range(asked["looks"]):
        for loop, parts in zip(loops, taken, strict=True):
            arrays = world.gather_array(loop.run(asked["samples"], batch), "looking")
            parts.extend([np.concatenate(arrays).max(axis=0)] if arrays else [])
    if world.rank:
        return 1.0
    plain, slower = (float(np.quantile(np.concatenate(parts), _QUICK)) for parts in taken)
    return slower / plain


def main(argv: list[str]) -> int:
    from collbench.launch.detect import detect
    from collbench.launch.spawn import find_mpiexec, record_exit, start_local

    asked, info = json.loads(argv[1]), detect(os.environ)
    if info is None:
        program = [sys.executable, __file__]
        mpiexec = find_mpiexec(os.environ) if asked["backend"] == "mpi" else None
        return start_local(argv[1:], 2, env=os.environ, mpiexec=mpiexec, program=program)
    world = World(info, 30)
    found = ratios(asked, world)
    if world.rank == 0:
        print(json.dumps(found), flush=True)
    record_exit(0, os.environ)
    world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
