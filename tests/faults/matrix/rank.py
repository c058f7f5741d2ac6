"""python -m tests.faults.matrix.rank PLAN.json WORDS…   Run `collbench WORDS…` as a rank with an optional fault.

The plan has the rank, the fault, and its time: a phase of a case, or some seconds after the start. A process outside applies the faults
that this process cannot apply to itself: the file `struck` requests one, the file `done` answers. Rank 0 writes which cases it has stored.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.faults.matrix.plan import STRUCK, STRUCK_SIZE, Plan

_ANSWER_S = 20.0
_BREATH_S = 1.0
_WRONG_AT = 7
_MIB = 1 << 20


@dataclass
class Striker:
    """What happens to the victim.

    corrupting  what it receives is changed from now on
    begun       how many cases; looks: how often the loop of case STRUCK_SIZE has run; looking: it runs
    """

    plan: Plan
    corrupting: bool = False
    begun: int = 0
    looks: int = 0
    looking: bool = False

    def __post_init__(self) -> None:
        self._once = threading.Lock()
        self._hoard: list[ctypes.Array[ctypes.c_char]] = []

    def strike(self, breath_s: float = 0.0) -> None:
        """Apply it the first time, after a short wait in which earlier messages reach the others."""
        if not self._once.acquire(blocking=False):
            return
        time.sleep(breath_s)
        mark(self.plan.folder / STRUCK, {"at": time.monotonic(), "pid": os.getpid(), "rank": self.plan.victim})
        if self.plan.fault in ("killed", "stopped", "paused"):
            os.kill(os.getpid(), signal.SIGKILL if self.plan.fault == "killed" else signal.SIGSTOP)
        elif self.plan.fault == "early exit":
            os._exit(0)
        elif self.plan.fault == "memory":
            self._exhaust()
        elif self.plan.fault == "wrong data":
            self.corrupting = True
        else:
            self._wait()

    def strike_later(self) -> None:
        """Apply it after so many seconds, at any position of the main thread; the next allocation then fails."""
        time.sleep(self.plan.after_s)
        with suppress(MemoryError):
            self.strike()

    def _exhaust(self) -> NoReturn:
        """Allocate all memory that this process may have, and keep it."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        allowed = pages * resource.getpagesize() + 64 * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        while True:
            self._hoard.append(ctypes.create_string_buffer(_MIB))

    def _wait(self) -> None:
        """Wait until it has been done; at a random moment no rank waits."""
        end = time.monotonic() + _ANSWER_S
        while not (self.plan.folder / "done").exists() and time.monotonic() < end and self.plan.phase:
            time.sleep(0.002)


def mark(path: Path, facts: Mapping[str, Any]) -> None:
    """Leaves a file that is there as a whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(facts))
    draft.rename(path)


def arm(striker: Striker) -> None:
    """Puts the striker in the way of what the victim does."""
    _on_opening(striker)
    _on_cases(striker)
    _on_loops(striker)
    _on_gathering(striker)
    if not striker.plan.phase:  # the time runs once everything is loaded
        threading.Thread(target=striker.strike_later, daemon=True).start()


def _on_opening(striker: Striker) -> None:
    from collbench.measuring import open_backends

    opens = open_backends._try_open

    def try_open(backend: Any, world: Any, settings: Any) -> Any:
        if striker.plan.phase == "init":
            backend_opens = backend.open

            def opening_struck(*arguments: Any) -> None:
                striker.strike(_BREATH_S)
                backend_opens(*arguments)

            backend.open = opening_struck
        return opens(backend, world, settings)

    open_backends._try_open = try_open


def _on_cases(striker: Striker) -> None:
    from collbench.measuring import verification
    from collbench.measuring.tasks import cases as turn

    prepares, compares = turn.prepare, verification.mismatches_in

    def prepare(*arguments: Any) -> Any:
        striker.begun += 1
        return prepares(*arguments)

    def mismatches(ready: Any, slot: int) -> Any:
        for buffers in ready.buffers if striker.corrupting else ():
            buffers.recv(0, slot)[_WRONG_AT] += 1
        return compares(ready, slot)

    turn.prepare, verification.mismatches_in = prepare, mismatches


def _on_loops(striker: Striker) -> None:
    """Of the looks of a case the first two are its warm-up (one call, then the rest), the third is timed; the others are in it already."""
    from collbench.measuring.loop import Loop

    runs = Loop.run
    wanted = {"warm-up": 2, "timed": 3}.get(striker.plan.phase)

    def run(loop: Any, n: int, batch: int = 1, slot: int | None = None) -> Any:
        if striker.begun != STRUCK_SIZE or slot is not None or striker.looking:
            return runs(loop, n, batch, slot)
        striker.looks += 1
        striker.looking = True  # ranks meet by a loop, too
        try:
            if striker.looks == wanted:
                striker.strike(_BREATH_S)
            return runs(loop, n, batch, slot)
        finally:
            striker.looking = False

    Loop.run = run  # type: ignore[method-assign]


def _on_gathering(striker: Striker) -> None:
    from collbench.control.world import World

    gathers = World._gather

    def gather(world: Any, *arguments: Any) -> Any:
        if striker.plan.phase == "gather" and striker.looks == 3:
            striker.strike(_BREATH_S)
        return gathers(world, *arguments)

    World._gather = gather  # type: ignore[method-assign]


def write_down(folder: Path) -> None:
    """Make rank 0 write a line for each case that it has stored."""
    from collbench.results.folder import RunFolder

    appends = RunFolder.append

    def append(run: Any, row: Any, arrays: Any) -> Any:
        stored = appends(run, row, arrays)
        with (folder / "finished").open("a") as file:
            file.write(f"{row.size_bytes} {row.backend}\n")
        return stored

    RunFolder.append = append  # type: ignore[method-assign]


def own_rank(env: Mapping[str, str]) -> int:
    """Return this process's rank from the environment of its launcher."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return next(int(env[name]) for name in names if env.get(name))


def main() -> None:
    plan, rank = Plan.read(Path(sys.argv[1])), own_rank(os.environ)
    if "gloo" in sys.argv:
        import torch  # noqa: F401 (seconds on a busy machine, which would count against the deadline)
    if rank == 0:
        write_down(plan.folder)
    if rank == plan.victim:
        arm(Striker(plan))
    sys.argv[:] = ["collbench", *sys.argv[2:]]
    from collbench.cli.main import main as collbench

    collbench()


if __name__ == "__main__":
    main()
