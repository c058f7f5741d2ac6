"""A rank of a contract run: measures what the JSON of its command line asks for, through the same runner as the command line's.

Started without a launch around it, it starts the ranks first.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collbench.backends.registry import backend_defaults
from collbench.backends.slowing import parse_slowing
from collbench.errors import CollbenchError
from collbench.measuring.request import Budget, Request
from collbench.operations.case import Case, parse_split
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import every_operation
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import Traffic, skewed


class Several(Sweep, frozen=True):
    parts: tuple[Sweep, ...] = ()

    def cases(self, backend: str, n: int) -> Iterator[Case]:
        for part in self.parts:
            yield from part.cases(backend, n)


def sweep_of(asked: dict[str, Any]) -> Sweep:
    """A sweep from JSON: names instead of operations, dtypes and a split, numbers instead of traffic: "skew", or "matrix"."""
    named = {
        "operations": tuple(every_operation()[name] for name in asked["operations"]),
        "dtypes": tuple(DTYPES[d] for d in asked["dtypes"]),
    }
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in asked.items() if key not in ("skew", "matrix", "split")}
    split = parse_split(asked["split"]) if "split" in asked else None
    return Sweep(**{**plain, **named}, traffic=traffic_of(asked), split=split, defaults=backend_defaults)


def traffic_of(asked: dict[str, Any]) -> Traffic | None:
    """What "skew" or "matrix" ask for; None for neither."""
    if "matrix" in asked:
        return Traffic("matrix", matrix=tuple(map(tuple, asked["matrix"])))
    return skewed(asked["skew"]) if "skew" in asked else None


def request_of(asked: dict[str, Any]) -> Request:
    parts = tuple(sweep_of(part) for part in asked["sweeps"])
    names = tuple({operation.name: operation for part in parts for operation in part.operations}.values())
    return Request(
        command="contract", sweep=Several(names, (), (), parts=parts), backends=(asked["backend"],),
        requested=frozenset([asked["backend"]]),
        budget=Budget(0.05, 1, 1), ranks=asked["ranks"] if asked["backend"] == "simulated" else None,
        check=asked.get("check", 1), timeout_s=30, out=Path(asked["out"]), slowed=parse_slowing(asked.get("slowed", [])),
    )  # fmt: skip


def take_part(asked: dict[str, Any], info: Any) -> int:
    """Joins, measures and returns the exit code."""
    from collbench.control.world import World
    from collbench.launch.spawn import record_exit
    from collbench.measuring.session import run_task
    from collbench.measuring.tasks.cases import CasesTask

    world = World(info, 30)
    try:
        return run_task(CasesTask(), request_of(asked), world, None, lambda code: record_exit(code, os.environ))
    except CollbenchError as error:
        world.abort(error)
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        world.close()


def main(argv: list[str]) -> int:
    from collbench.launch.detect import detect
    from collbench.launch.info import LaunchInfo
    from collbench.launch.spawn import find_mpiexec, start_local

    asked = json.loads(argv[1])
    if asked["backend"] == "simulated":
        return take_part(asked, LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"))
    info = detect(os.environ)
    if info is None:
        program = [sys.executable, __file__]
        mpiexec = find_mpiexec(os.environ) if asked["backend"] == "mpi" else None
        return start_local(argv[1:], asked["ranks"], env=os.environ, mpiexec=mpiexec, program=program)
    return take_part(asked, info)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
