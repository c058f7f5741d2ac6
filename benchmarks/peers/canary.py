"""The state of the machine before and after a launch: how long a cache line takes between two cores and back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.launches import Missing, compiled, launch

WITHIN = 1.2


def read_canary() -> float:
    """Nanoseconds per round trip of a cache line between the first two cores this process may use. Raises Missing."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise Missing("the state probe needs two cores: allow this process a second one")
    if not shutil.which("cc"):
        raise Missing("the state probe needs a C compiler: apt install gcc libc6-dev")
    program = compiled("cc", Path(__file__).with_name("canary.c"), "-pthread")
    return float(launch([program, *map(str, cpus)]).out)


def agree(canaries_ns: Sequence[float]) -> bool:
    """Whether the largest is at most 20 % above the smallest: the machine did not change its state meanwhile."""
    return max(canaries_ns) <= WITHIN * min(canaries_ns)
