"""python -m tests.plugins.kv.measure.kv_spoilt FAULT WORDS…   Run `collbench WORDS…` as a rank. The first rank that receives has the fault.

flipped    a bit of a received block changes in each transfer
misplaced  two received blocks are exchanged
killed     the rank is killed in its third transfer
unmade     the rank cannot make its calls; each rank writes the methods that it has freed to stderr
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count

from msgspec.structs import replace

from collbench.cli.main import main
from collbench.operations.program import Program, PythonCall
from collbench.plugins.kv.block_transfer import METHODS, TransferMethod

_KILLED_IN = 3


def fault_of(name: str, method: TransferMethod) -> Callable[[], None]:
    """What happens at the end of each transfer at a rank that receives."""
    places, turns = method.into[0].at_target, count(1)

    def run() -> None:
        if name == "flipped":
            method.pool[places[-1], 5] ^= 16
        elif name == "misplaced":
            method.pool[places[:2]] = method.pool[places[1::-1]]
        elif next(turns) == _KILLED_IN:
            os.kill(os.getpid(), signal.SIGKILL)

    return run


def spoil(kind: type[TransferMethod], name: str) -> None:
    bind = kind.bind

    def bound(self: TransferMethod) -> Program:
        program = bind(self)
        first = min(link.target for link in self.plan.links)
        if self.rank != first:
            return program
        if name == "unmade":
            raise RuntimeError("no calls")
        return replace(program, slots=tuple((*slot, PythonCall("fault", fault_of(name, self))) for slot in program.slots))

    kind.bind = bound  # type: ignore[method-assign]
    if name == "unmade":
        free = kind.free

        def freed(self: TransferMethod) -> None:
            free(self)
            sys.stderr.write(f"freed {kind.name} {self.rank}\n")

        kind.free = freed  # type: ignore[method-assign]


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    for method in METHODS.values():
        if "bind" in vars(method):
            spoil(method, fault)
    main()
