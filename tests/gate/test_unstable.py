"""Launches that lie too far apart: what counts as far, and how often chance alone does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from collbench.analysis.launches import case_of
from collbench.gate.allocation import Allocation, Case, CaseTimes
from collbench.gate.baseline import Figures, scheme_of, times_of
from collbench.gate.rule import learn
from collbench.gate.self_test import Cluster, Noise
from collbench.gate.state import launch_limits, unstable
from tests.results.rows import make_row

SIZES = [8 << number for number in range(28)]  # 12 small, 6 mid and 10 large ones
CELLS = [
    case_of(make_row(size, operation=operation, backend=backend))
    for operation in ("allreduce", "allgather", "reducescatter", "alltoall") for backend in ("nccl", "gloo", "mpi") for size in SIZES
]  # fmt: skip


def night(times: Figures, cases: Sequence[Case]) -> Allocation:
    """An allocation from [launches × cases] ln of time."""
    measured = {case: CaseTimes(tuple(map(float, each))) for case, each in zip(cases, 1e-3 * np.exp(times.T), strict=True)}
    return Allocation("night", "2026-11-20", len(times), 0, (None,) * len(times), {}, measured)


def found(good: Sequence[Figures], new: Figures, cases: Sequence[Case]) -> list[bool]:
    allocations = [night(each, cases) for each in good]
    limits = learn(times_of(allocations, cases), scheme_of(cases))
    return list(map(bool, unstable(night(new, cases), cases, launch_limits(allocations, cases, limits))))


def column(*by_launch: float) -> Figures:
    return np.log(np.array(by_launch))[:, None]


CALM = [column(1.0, 1.01, 0.99)] * 4


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ((1.0, 1.0, 1.0, 1.0, 2.0), False),  # one of them may lie anywhere
        ((1.0, 1.0, 1.0, 1.3, 1.3), True),
        ((1.0, 1.0, 1.0, 1.09, 1.09), False),  # less than 10 %
        ((1.0, 1.3), False),  # of two nothing is known
        ((1.0, 1.15, 1.3), True),
        ((1.0,) * 8 + (1.3,) * 2, False),  # of ten two may
        ((1.0,) * 7 + (1.3,) * 3, True),
    ],
)
def test_launches_far_apart_are_unstable(launches: tuple[float, ...], expected: bool) -> None:
    assert found(CALM, column(*launches), CELLS[:1]) == [expected]


def test_scatter_that_the_baseline_has_is_not_unstable() -> None:
    restless = [column(1.0, 1.0, 1.2), column(1.2, 1.0, 1.0), column(1.0, 1.01, 1.0), column(1.0, 1.2, 1.0)]
    assert found(restless, column(1.0, 1.0, 1.0, 1.2, 1.2), CELLS[:1]) == [False]
    assert found(restless, column(1.0, 1.0, 1.0, 1.5, 1.5), CELLS[:1]) == [True]


def test_scatter_that_similar_cases_have_is_not_unstable() -> None:
    """A case without scatter among noisy ones of the same backend and class may have a second mode that was not sampled."""
    by_case = [CALM, *[[column(1.0, 1.0, 1.2), column(1.2, 1.0, 1.0)] * 2] * 2]
    good = [np.hstack([each[number] for each in by_case]) for number in range(4)]
    new = np.hstack([column(1.0, 1.0, 1.0, 1.2, 1.2), *[column(1.0, 1.0, 1.0, 1.0, 1.0)] * 2])
    assert found(good, new, CELLS[:3]) == [False, False, False]
    others = [*CELLS[:1], *CELLS[28:30]]  # of another backend
    assert found(good, new, others) == [True, False, False]


def test_a_baseline_of_single_launches_knows_its_scatter_from_its_allocations() -> None:
    good = [column(1.0), column(1.2), column(1.0), column(1.2)]
    assert found(good, column(1.0, 1.0, 1.0, 1.2, 1.2), CELLS[:1]) == [False]


def rate(noise: Noise, allocations: int, trials: int, seed: int = 7) -> float:
    """The share of gates of 336 cases, where nothing changed, in which any case is unstable."""
    random, alarms = np.random.default_rng(seed), 0
    for _ in range(trials):
        cluster = Cluster.draw(noise, scheme_of(CELLS), random)
        good, new = cluster.launches(allocations, 3, random), cluster.launches(1, 5, random)[0]
        alarms += any(found(list(good), new, CELLS))
    return alarms / trials


def test_chance_alone_seldom_makes_a_case_unstable() -> None:
    assert rate(Noise(), 6, 12) <= 1 / 12


@pytest.mark.long
@pytest.mark.parametrize(("allocations", "most"), [(4, 0.07), (6, 0.03), (12, 0.02)])
def test_so_often_does_chance_make_a_case_unstable(allocations: int, most: float) -> None:
    assert rate(Noise(), allocations, 400) <= most
    assert rate(replace(Noise(), bimodal=0.3, slow_share=0.3, slow_by=0.2), allocations, 100) <= most
