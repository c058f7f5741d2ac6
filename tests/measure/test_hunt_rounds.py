"""A hunt's round of pairs, made of the rounds that were measured."""

from __future__ import annotations

import pytest

from collbench.measure.tasks.places import RoundOrder
from collbench.measure.tasks.round_runner import GroupResult, hunt_round, of_pairs
from collbench.results.rounds import PairRound

SIZE = 1000
ASKED = RoundOrder("pairs", ((2, 3), (0, 1)), "again", "cross-check")


def measured(pairs: tuple[tuple[int, int], ...], forward: float, backward: float, **changes: object) -> PairRound:
    """Every pair takes so many seconds each way, 10 % more or less."""
    n = len(pairs)
    interval = lambda seconds: ((seconds * 0.9, seconds * 1.1),) * n  # noqa: E731
    actual = {
        "round": 0, "pairs": pairs, "latency_s": (1e-6,) * n, "latency_ci_s": interval(1e-6), "forward_s": (forward,) * n,
        "forward_ci_s": interval(forward), "backward_s": (backward,) * n, "backward_ci_s": interval(backward), "wrong": (0,) * n,
        "na": (None,) * n,
    }  # fmt: skip
    return PairRound(**{**actual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_interval_is_that_of_the_slower_direction_lower_end_first(forward: float, backward: float) -> None:
    found = of_pairs(4, ASKED, [measured(((0, 1), (2, 3)), forward, backward)], SIZE)
    assert found.speed_bytes_per_s == pytest.approx((SIZE / forward,) * 2) and found.backward_bytes_per_s == pytest.approx(
        (SIZE / backward,) * 2
    )
    assert found.low_bytes_per_s == pytest.approx((SIZE / 2.2,) * 2) and found.high_bytes_per_s == pytest.approx((SIZE / 1.8,) * 2)


def test_figures_are_in_the_order_of_the_groups_and_come_from_several_rounds() -> None:
    rounds = [
        measured(((0, 1),), 1.0, 1.0, flags=("few_samples",), cpu_wait=(0.25,), flipped=(True,)),
        measured(((2, 3),), 4.0, 4.0, wrong=(7,), wrong_detail=("rank 3: 7 wrong elements",)),
    ]
    found = of_pairs(4, ASKED, rounds, SIZE)
    assert found.speed_bytes_per_s == pytest.approx((250.0, 1000.0))
    assert (found.wrong, found.flags, found.cpu_wait, found.flipped) == ((7, 0), ("few_samples",), (0.0, 0.25), (False, True))
    assert found.wrong_detail == ("rank 3: 7 wrong elements", None)


def test_a_round_that_cannot_be_measured_gives_the_reason_for_every_group() -> None:
    found = hunt_round(4, ASKED, [GroupResult(na="no such interface")] * 2)
    assert (found.speed_bytes_per_s, found.na, found.wrong) == ((None, None), ("no such interface",) * 2, (0, 0))
