"""Simulated histories: allocations by day, with cases that scatter by a fraction of a percent and steps chosen by a test."""

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from collbench.analysis.launches import case_of
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.results.row import CaseKey
from tests.results.rows import make_row

SIZES = (8, 64, 1024, 2 << 20, 16 << 20, 64 << 20, 256 << 20)
Factor = Callable[[int, str, int], float | None]


def case(size: int, backend: str = "mpi", **changes: Any) -> CaseKey:
    return case_of(make_row(size, backend=backend, **changes))


def nights(
    count: int, factor: Factor = lambda number, backend, size: 1.0, mpi: Sequence[str] = (), sizes: Sequence[int] = SIZES, seed: int = 1
) -> list[Allocation]:
    """night-1 … of 3 launches over Gloo and MPI; `factor` of (night from 0, backend, size) is that of its time; None: missing."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        cases = {}
        for backend in ("gloo", "mpi"):
            for size in sizes:
                slower, noise = factor(number, backend, size), np.exp(random.normal(0, 0.003) + random.normal(0, 0.003, 3))
                if slower is not None:
                    cases[case(size, backend)] = CaseTimes(tuple((1e-6 + size * 1e-9) * slower * float(each) for each in noise))
        facts = {"software": {"mpi version": mpi[number] if mpi else "4.3"}, "hosts": {"names": "node1, node2"}}
        began = f"{date(2026, 11, 1) + timedelta(days=number)}T03:00:00+00:00"
        found.append(Allocation(f"night-{number + 1}", began, 3, 0, (6e-8,) * 3, facts, cases))
    return found


def upgraded(count: int = 20, at: int = 10, by: float = 1.05) -> list[Allocation]:
    """MPI's large messages take `by` times as long from allocation `at` on, when its version changed."""
    versions = ["4.3" if number < at else "5.0" for number in range(count)]
    return nights(count, lambda number, backend, size: by if number >= at and backend == "mpi" and size > 1 << 20 else 1.0, versions)
