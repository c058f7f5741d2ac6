"""Cases of one process that drives fake GPUs: each runs in a fork of this program, which has imported everything already.

    python nccl_alone.py FOLDER < cases.json      one JSON object on stdout: by case what came of it

A case: `do` (a function below), `env` (variables of the case, read by the doubles at each use), `proves` (whether the checker is proven
at open), and what the function needs.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.backends.backend import Settings, Tuning
from collbench.backends.nccl.backend import NcclBackend
from collbench.backends.nccl.library import load_nccl
from collbench.backends.registry import backend_defaults
from collbench.control.world import World
from collbench.device import buffers
from collbench.errors import CollbenchError
from collbench.launch.info import LaunchInfo
from collbench.measuring.request import Budget, Request
from collbench.measuring.session import run_task
from collbench.measuring.tasks.cases import CasesTask
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.data import slots_checked, slots_for
from tests.contract.rank import Several, sweep_of
from tests.helpers import make_case

ALONE = LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone")
_AT_ONCE = 4  # those that wait for a deadline need no CPU


def load(case: dict[str, Any], _folder: Path) -> dict[str, Any]:
    library = load_nccl(os.environ)
    return {"path": library.path, "version": library.version, "explained": library.explain(5), "unknown": library.explain(77)}


def opened(case: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Opens the backend, makes a communicator of all ranks and one under a tuning, and frees them."""
    world, backend = World(ALONE, 5), NcclBackend()
    backend.open(world, Settings(timeout_s=5, gpus_per_process=case["k"]))
    whole = backend.group(range(backend.ranks))
    tuned = backend.group(range(backend.ranks), Tuning(*case.get("tuning", (None, None))))
    alive = len(backend.clock().comms)
    backend.release(tuned)
    facts = {"ranks": backend.ranks, "gpus": backend.gpus, "flags": backend.flags, "versions": dict(backend.versions())}
    facts |= {"free": backend.free_bytes(None), "driven": whole.driven, "comms": [alive, len(backend.clock().comms)]}
    facts["tuning left"] = [name for name in ("NCCL_ALGO", "NCCL_PROTO") if name in os.environ]
    backend.close()
    return facts | {"comms after": len(backend.clock().comms)}


def measured(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measures sweeps; their rows are read from the folder."""
    parts = tuple(sweep_of(part) for part in case["sweeps"])
    names = tuple({operation.name: operation for part in parts for operation in part.operations}.values())
    sweep = Several(names, (), (), parts=parts, defaults=backend_defaults)
    request = Request(
        command="contract", sweep=sweep, backends=("nccl",), requested=frozenset(["nccl"]), budget=Budget(0.02, 1, 1),
        gpus_per_process=case["k"], timeout_s=case.get("timeout", 20), out=folder / "run",
    )  # fmt: skip
    return {"code": run_task(CasesTask(), request, World(ALONE, request.timeout_s), None, lambda code: None)}


def captured(case: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Captures a chosen's graphs: how many are timed, and for which buffer slots there is one to verify by."""
    world, backend = World(ALONE, 5), NcclBackend()
    backend.open(world, Settings(timeout_s=5, gpus_per_process=1))
    chosen = replace(make_case(device="cuda", count=250), buffers="rotating", mode="graph")
    group = backend.group((0,))
    program = backend.bind(ALLREDUCE, chosen, group, backend.allocate(ALLREDUCE, chosen, group, slots_for(chosen)))
    launched = [place for place, slot in enumerate(program.once.slots) if [call.name for call in slot] == ["cuGraphLaunch"]]
    return {"timed": len(program.slots), "launched": launched, "checked": slots_checked(chosen), "slots": len(program.once.slots)}


_DO: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {"load": load, "open": opened, "measure": measured, "capture": captured}


def begin(case: dict[str, Any], folder: Path) -> int:
    """Starts a case in a process of its own that has the case's variables, and leaves what it came to in `folder`. Returns the process."""
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(case.get("env", {}))
    if not case.get("proves"):  # the checker's proof has tests of its own, and takes the double a while on every GPU
        buffers.prove = lambda gpu, stream: None
    said: dict[str, Any]
    try:
        said = _DO[case["do"]](case, folder)
    except CollbenchError as error:
        said = {"error": str(error), "code": error.exit_code}
    except BaseException as error:
        said = {"crash": f"{type(error).__name__}: {error}"}
    (folder / "answer.json").write_text(json.dumps(said))
    os._exit(0)


def answer(folder: Path) -> dict[str, Any]:
    file = folder / "answer.json"
    said: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"crash": "ended without an answer"}
    return said


def main(folder: Path) -> None:
    cases = json.load(sys.stdin)
    for number, (name, case) in enumerate(cases.items()):
        if number >= _AT_ONCE:
            os.wait()
        begin(case, folder / name)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    json.dump({name: answer(folder / name) for name in cases}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
