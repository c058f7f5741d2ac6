"""The phases of a case (set-up, warm-up, samples, verification): when each took place, and NVTX ranges around them (`--nvtx`).

A phase begins and ends outside the timed loop: it has all batches of samples and what rank 0 decides between them, so a sample has
neither a clock read nor a range inside it. Ranges cost nothing unless they are switched on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, NamedTuple

PhaseName = Literal["set-up", "warm-up", "samples", "verification"]


class Phase(NamedTuple):
    """A phase of a case on this process, with its begin and end in seconds on CLOCK_MONOTONIC."""

    name: PhaseName
    began_s: float
    ended_s: float


class Phases(list[Phase]):
    """The phases of a case in the order of time."""

    @contextmanager
    def record(self, name: PhaseName) -> Iterator[None]:
        """Record the block as a phase, in a range of this name. Directly after a phase of the same name, that one is extended."""
        began_s = time.monotonic()
        with nvtx_range(name):
            yield
        if self and self[-1].name == name:
            began_s = self.pop().began_s
        self.append(Phase(name, began_s, time.monotonic()))


# NVTX ranges, which Nsight Systems shows above the calls of CUDA and NCCL. NVTX is global in a process, and so is the switch.

_OFF: AbstractContextManager[None] = nullcontext()
_make_range: Callable[[str], AbstractContextManager[None]] | None = None


def nvtx_range(name: str) -> AbstractContextManager[None]:
    """Return a range of this name for a `with` block; without `switch_on_ranges` one that does nothing."""
    return _OFF if _make_range is None else _make_range(name)


def switch_on_ranges() -> str | None:
    """Switch on the ranges of this process. Return why that is not possible, with the remedy; None: they are on."""
    global _make_range  # noqa: PLW0603
    from collbench.device.nvtx import NvtxMissing, open_ranges

    try:
        _make_range = open_ranges()
    except NvtxMissing as missing:
        return str(missing)
    return None
