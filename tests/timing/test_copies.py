"""Copies of memory by bound threads: what they move is counted and compared."""

from __future__ import annotations

import os

import numpy as np
import pytest

from collbench.measure.references import bound, copy_memory, repetitions

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("cpus", [CPUS[:1], CPUS])
def test_every_thread_copies_its_share(cpus: list[int]) -> None:
    copied = copy_memory(cpus, 4 * 2**20, 0.05, 20)
    assert copied.n_bytes == 4 * 2**20 // len(cpus) * len(cpus)
    assert copied.wrong is None
    assert len(copied.seconds) >= 1 and np.all(copied.seconds > 0)


def test_a_cpu_that_is_not_ours_is_an_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="Invalid argument"):
        copy_memory([CPUS[0], 4095], 2**20, 0.05, 20)
    assert os.sched_getaffinity(0) == before


def test_a_thread_bound_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == {CPUS[0]}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("once_s", "seconds", "n"),
    [(0.01, 1.0, 100), (1e-6, 1.0, 300), (0.3, 1.0, 6), (0.6, 1.0, 1), (5.0, 1.0, 1), (0.0, 1.0, 300)],
)
def test_repetitions_fit_the_time_or_make_an_interval(once_s: float, seconds: float, n: int) -> None:
    assert repetitions(once_s, seconds) == n
