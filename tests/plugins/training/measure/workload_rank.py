"""A rank of a workload run: measures what the JSON of its command line asks for, through the same runner as the command line's.

Started without a launch around it, it starts the ranks first. "exchanges" makes a step by hand, with "timeline" one in which ranks
compute; else "regime" and "typed" ask for one.
"""

import json
import os
import sys
from pathlib import Path

from collbench.backends.registry import backend_defaults
from collbench.backends.slowing import parse_slowing
from collbench.errors import CollbenchError
from collbench.measuring.request import Budget, Request
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import Traffic
from collbench.plugins.training.step_task import Training
from collbench.plugins.training.task import WorkloadRequest
from collbench.plugins.training.workloads.step import Compute, Exchange, Regime, Shape, Start, Step, Wait

ACTIONS = {"start": Start, "wait": Wait, "compute": Compute}  # of a timeline, with one value each


def exchange_of(asked):
    """An exchange from JSON: lists for groups, "matrix" for traffic."""
    plain = {key: value for key, value in asked.items() if key not in ("groups", "matrix")}
    traffic = Traffic("by hand", matrix=tuple(map(tuple, asked["matrix"]))) if "matrix" in asked else None
    return Exchange(**{"what": asked["operation"], **plain}, groups=tuple(map(tuple, asked["groups"])), traffic=traffic)


def training_of(asked):
    """By hand, or a regime as it is."""
    if "regime" in asked:
        from collbench.plugins.training.workloads.registry import regime_named
        from collbench.plugins.training.workloads.shape import shape_of

        regime = regime_named(asked["regime"])
        typed = asked["typed"]
        return Training(regime, lambda hosts: shape_of(regime, typed, hosts), typed.get("model", ""), bool(asked.get("optional")))
    timeline = tuple(tuple(ACTIONS[name](value) for name, value in actions) for actions in asked.get("timeline", ()))
    step = Step(tuple(map(exchange_of, asked["exchanges"])), payload_bytes=asked.get("payload_bytes", 4096), timeline=timeline)
    regime = Regime("by-hand", "for tests", lambda shape: step, asynchronous=lambda shape: bool(asked.get("asynchronous")))
    return Training(regime, lambda hosts: Shape("by-hand", 1024, "float32", 4, 4096, hosts), optional=bool(asked.get("optional")))


def request_of(asked, slowed=None):
    """The request from JSON: backends, ranks, out, trainings, and what concerns the time."""
    names = tuple(asked["backends"])
    sweep = Sweep((), None, (DTYPES["float32"],), defaults=backend_defaults)
    launch = Request(
        "workload", sweep, names, frozenset(names), Budget(asked.get("max_time_s", 0.5), asked.get("iterations"), asked.get("warmup")),
        asked["ranks"] if names == ("simulated",) else None, asked.get("check", 1), timeout_s=asked.get("timeout_s", 30.0),
        out=Path(asked["out"]), evidence="off", slowed=parse_slowing(slowed or []), stop_on_wrong=bool(asked.get("stop_on_wrong")),
        order_seed=0, ceiling=asked.get("ceiling"),
    )  # fmt: skip
    return WorkloadRequest(launch, tuple(map(training_of, asked["trainings"])), asked.get("parts", True))


def take_part(asked, info):
    """Joins, measures and returns the exit code."""
    from collbench.control.world import World
    from collbench.launch.spawn import record_exit
    from collbench.measuring.session import run_task
    from collbench.plugins.training.task import WorkloadTask

    world = World(info, asked.get("timeout_s", 30.0))
    try:
        request = request_of(asked)
        return run_task(WorkloadTask(request), request.launch, world, None, lambda code: record_exit(code, os.environ))
    except CollbenchError as error:
        world.abort(error)
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        world.close()


def main(argv):
    from collbench.launch.detect import detect
    from collbench.launch.info import LaunchInfo
    from collbench.launch.spawn import find_mpiexec, start_local

    asked = json.loads(argv[1])
    if asked["backends"] == ["simulated"]:
        return take_part(asked, LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"))
    info = detect(os.environ)
    if info is None:
        program = [sys.executable, __file__]
        mpiexec = find_mpiexec(os.environ) if "mpi" in asked["backends"] else None
        return start_local(argv[1:], asked["ranks"], env=os.environ, mpiexec=mpiexec, program=program)
    return take_part(asked, info)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
