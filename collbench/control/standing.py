"""Where a rank stands: what its keeper tells the coordinator now and then, and at once when it is asked."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from collbench.control.message import Malformed

_LONGEST = 300  # characters of a phase's name
_LARGEST = 2**53  # a number beyond it, or none at all (NaN), is no count and no time


@dataclass(frozen=True)
class Standing:
    """rank
    phase      what it is at ("allreduce 64 MiB on mpi: warm-up"), "" between phases
    waits      whether it waits there for the others over the control plane; else it works, or is inside a library
    iteration  of the timed loop that it is in, from 0 on; -1 where none is counted
    still_s    for how long nothing has moved
    step       of the control plane, how many it has begun
    paused_s   for how long, in all, the whole process was not allowed to run (stopped, swapped out, its machine asleep)
    held       whether SIGSTOP or a debugger holds it: then the first rank of its node says all this, as it last heard it
    """

    rank: int
    phase: str = ""
    waits: bool = False
    iteration: int = -1
    still_s: float = 0.0
    step: int = 0
    paused_s: float = 0.0
    held: bool = False

    def as_json(self) -> list[Any]:
        """As the wire carries it."""
        return list(astuple(self))

    @property
    def place(self) -> tuple[int, int]:
        """Where it is on the way that all ranks go; of two ranks the one whose place is smaller is behind."""
        return self.step, self.iteration


_TYPES: tuple[type | tuple[type, ...], ...] = (int, str, bool, int, (int, float), int, (int, float), bool)


def standings(body: Any, ranks: set[int]) -> list[Standing]:
    """What was told of these ranks. Raises Malformed for anything else."""
    if not isinstance(body, list):
        raise Malformed("no list of standings")
    return [_standing(one, ranks) for one in body]


def _standing(one: Any, ranks: set[int]) -> Standing:
    if not (isinstance(one, list) and len(one) == len(_TYPES)):
        raise Malformed("no standing")
    if not all(_is(value, wanted) for value, wanted in zip(one, _TYPES, strict=True)):
        raise Malformed("no standing")
    if one[0] not in ranks:
        raise Malformed("a standing of somebody else")
    return Standing(one[0], one[1][:_LONGEST], *one[2:])


def _is(value: Any, wanted: type | tuple[type, ...]) -> bool:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        return False
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) < _LARGEST)
