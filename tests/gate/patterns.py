"""Simulated clusters for the tests of causes: the verdict on cases of which some are slower."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collbench.analysis.launches import case_of
from collbench.gating.baseline import scheme_of
from collbench.gating.judge import group_states, suspicions_of
from collbench.gating.rule import exceed, learn
from collbench.gating.verdict import GroupState, Suspicion
from collbench.results.row import CaseKey
from tests.results.rows import make_row

LARGE = (2 << 20, 4 << 20, 8 << 20, 16 << 20)
MID = (64 << 10, 256 << 10, 1 << 20)
SMALL = (8, 64, 512, 4096)


def cases(
    backends: Sequence[str] = ("gloo", "mpi"), operations: Sequence[str] = ("allreduce",), sizes: Sequence[int] = LARGE, **changes: Any
) -> list[CaseKey]:
    """A case for each of them, over two nodes."""
    actual = {"nodes": 2, "device": "cpu", **changes}
    return [case_of(make_row(size, backend=name, operation=what, **actual)) for name in backends for what in operations for size in sizes]


@dataclass(frozen=True)
class Judged:
    """What the gate knows when it looks for a cause."""

    suspicions: list[Suspicion]
    groups: list[GroupState]
    cases: list[CaseKey]


def judged(listed: list[CaseKey], slower: Callable[[dict[str, Any]], float], seed: int = 0, noise: float = 0.006) -> Judged:
    """Six good allocations and three in which each case takes `slower(its columns)` times as long; ln of times with such noise."""
    random = np.random.default_rng(seed)
    spread = noise * np.where([case.size_bytes > 16 << 10 for case in listed], 1.0, 2.0)
    factors = np.log([slower(case._asdict()) for case in listed])
    limits = learn(random.normal(0.0, spread, (6, len(listed))), scheme_of(listed))
    excess = exceed(limits, factors + random.normal(0.0, spread, (3, len(listed))))
    suspicions = suspicions_of(limits, excess, listed)
    return Judged(suspicions, group_states(limits, excess, listed, suspicions), listed)
