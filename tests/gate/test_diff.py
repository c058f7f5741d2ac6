"""What is between two allocations, and between two baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gate.baseline import Baseline
from collbench.gate.diff import BaselineDiff, between_allocations, between_baselines
from tests.gate.histories import case, nights, upgraded

BASE = Baseline(Path("base"), upgraded(12, 6, by=1.1))
SLOWER = {"allreduce on mpi, large messages", *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256))}


def beyond(moves: BaselineDiff) -> set[str]:
    """The names of what moved further than chance explains."""
    return {each.about.name for each in moves.moved if each.beyond}


def test_two_allocations_around_an_upgrade() -> None:
    moves = between_allocations(BASE, "night-6", "night-7")
    assert beyond(moves) == SLOWER
    assert [each.sentence() for each in moves.changes] == ["software mpi version: 4.3 → 5.0"]
    slow = next(each for each in moves.moved if each.about.case == case(64 << 20))
    assert slow.factor == pytest.approx(1.1, abs=0.02)
    assert slow.limit == pytest.approx(1.02, abs=0.02)


def test_two_allocations_of_one_state_and_faster_is_told_too() -> None:
    assert beyond(between_allocations(BASE, "night-1", "night-6")) == set()
    assert beyond(between_allocations(BASE, "night-7", "night-6")) == SLOWER


def test_two_baselines_learn_chance_within_each() -> None:
    before, after = Baseline(Path("a"), BASE.allocations[:6]), Baseline(Path("b"), BASE.allocations[6:])
    moves = between_baselines(before, after)
    assert beyond(moves) == SLOWER
    assert [len(side) for side in moves.sides] == [6, 6]
    halves = [Baseline(Path(name), nights(6, seed=seed)) for name, seed in (("a", 1), ("b", 2))]
    assert beyond(between_baselines(*halves)) == set()


def test_of_two_single_allocations_nothing_is_known_of_chance() -> None:
    old, new = (Baseline(Path(each.name), [each]) for each in BASE.allocations[5:7])
    moves = between_baselines(old, new)
    assert {each.limit for each in moves.moved} == {None}
    assert beyond(moves) == set()


def test_cases_that_one_side_lacks() -> None:
    first, second = nights(2)
    del second.cases[case(8)], first.cases[case(64)]
    moves = between_allocations(Baseline(Path("base"), [first, replace(second)]), "night-1", "night-2")
    assert [each.name for each in moves.only_old] == ["allreduce 8 B mpi"]
    assert [each.name for each in moves.only_new] == ["allreduce 64 B mpi"]
    assert not {"allreduce 8 B mpi", "allreduce 64 B mpi"} & {each.about.name for each in moves.moved}


def test_bad_names() -> None:
    with pytest.raises(UsageError, match="allocation nobody is not in base: choose from night-1, night-2"):
        between_allocations(BASE, "night-1", "nobody")
    with pytest.raises(UsageError, match="allocation night-1 is named twice"):
        between_allocations(BASE, "night-1", "night-1")
    with pytest.raises(UsageError, match="base is named twice"):
        between_baselines(BASE, BASE)
