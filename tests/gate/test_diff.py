"""Differences between two allocations, and between two baselines."""

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gating.baseline import Baseline
from collbench.gating.history import BaselineDiff, between_allocations, between_baselines
from tests.gate.histories import case, nights, upgraded

BASE = Baseline(Path("base"), upgraded(12, 6, by=1.1))
SLOWER = {"allreduce on mpi, large messages", *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256))}


def beyond(moves: BaselineDiff) -> set[str]:
    return {each.about.name for each in moves.moved if each.beyond}


def test_two_allocations_around_an_upgrade() -> None:
    moves = between_allocations(BASE, "night-6", "night-7")
    assert beyond(moves) == SLOWER
    assert [(each.a, each.b) for each in moves.changes] == [("4.3", "5.0")]
    slow = next(each for each in moves.moved if each.about.case == case(64 << 20))
    assert slow.factor == pytest.approx(1.1, abs=0.02)
    assert slow.limit == pytest.approx(1.02, abs=0.02)


def test_equal_allocations_and_cases_that_one_side_lacks() -> None:
    assert beyond(between_allocations(BASE, "night-1", "night-6")) == set()
    assert beyond(between_allocations(BASE, "night-7", "night-6")) == SLOWER
    first, second = nights(2)
    del second.cases[case(8)], first.cases[case(64)]
    moves = between_allocations(Baseline(Path("base"), [first, replace(second)]), "night-1", "night-2")
    assert [each.name for each in moves.only_old] == ["allreduce 8 B mpi"]
    assert [each.name for each in moves.only_new] == ["allreduce 64 B mpi"]
    assert not {"allreduce 8 B mpi", "allreduce 64 B mpi"} & {each.about.name for each in moves.moved}


def test_the_noise_limit_of_two_baselines_follows_from_each_and_single_allocations_have_none() -> None:
    before, after = Baseline(Path("a"), BASE.allocations[:6]), Baseline(Path("b"), BASE.allocations[6:])
    moves = between_baselines(before, after)
    assert beyond(moves) == SLOWER
    assert [len(side) for side in moves.sides] == [6, 6]
    halves = [Baseline(Path(name), nights(6, seed=seed)) for name, seed in (("a", 1), ("b", 2))]
    assert beyond(between_baselines(*halves)) == set()
    old, new = (Baseline(Path(each.name), [each]) for each in BASE.allocations[5:7])
    moves = between_baselines(old, new)
    assert {each.limit for each in moves.moved} == {None}
    assert beyond(moves) == set()


def test_bad_names() -> None:
    with pytest.raises(UsageError, match="night-1, night-2"):
        between_allocations(BASE, "night-1", "night-99")
    with pytest.raises(UsageError, match=r"night-1 .*twice"):
        between_allocations(BASE, "night-1", "night-1")
    with pytest.raises(UsageError, match=r"base .*twice"):
        between_baselines(BASE, BASE)
