"""What pairs and hunts share: the times of a round, the round of a hunt made of measured ones, and the exit code of pairs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.measuring.request import Request
from collbench.measuring.sampling import Measurement
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.data import Mismatch
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt.places import PairsRequest
from collbench.plugins.hunt.protocol import GroupFigure, RoundRequest, hunt_round
from collbench.plugins.hunt.records import PairRound
from collbench.plugins.hunt.round_runner import of_pairs, pair_times
from collbench.plugins.hunt.tasks import PairsTask
from tests.helpers import make_case

SWEEP = Sweep((), None, ())


def of_wrong(*wrong: int | None) -> PairRound:
    n = len(wrong)
    nothing, none = (None,) * n, ((None, None),) * n
    return PairRound(0, ((0, 1),) * n, nothing, none, nothing, none, nothing, none, wrong, nothing)


@pytest.mark.parametrize(
    ("wrong", "measured", "result", "code"),
    [
        ((0, 0), 2, "nobody", 0),
        ((None, None), 2, "nobody", 0),
        ((0, 0), 2, "confirmed", 1),
        ((0, 0), 2, "no verdict", 3),
        ((0, 5), 2, "nobody", 4),
        ((0, 5), 2, "confirmed", 4),
        ((None, None), 0, "nobody", 2),
    ],
)
def test_the_exit_code(wrong: tuple[int | None, ...], measured: int, result: str, code: int) -> None:
    rounds = of_wrong(*wrong)
    rounds = rounds if measured else rounds.replace(na=("no such pair",) * len(wrong))
    task = PairsTask(PairsRequest(Request("pairs", SWEEP, ("simulated",))), None, result=result)
    assert task.exit_code([rounds]) == code


GROUPS = ((0, 2), (1, 3), (4, 6), (5, 7))  # two pairs of nodes with two ranks each


def times(operation: Any, mismatches: tuple[Mismatch, ...] = ()) -> Any:
    """Every sample of the first pair takes 1 s and 2 s, of the second pair 3 s and 4 s; of windows of 10 messages."""
    seconds = np.zeros((8, 12))
    for rank, value in ((0, 1.0), (1, 2.0), (4, 3.0), (5, 4.0)):
        seconds[rank] = value + np.arange(12) * 1e-3
    measured = Measurement(seconds, 0.03)
    case = make_case(window=10, redop=None)
    ready: Any = SimpleNamespace(operation=operation, case=case, groups=GROUPS, fell_back=False)
    return pair_times(2, ready, measured, mismatches)


def test_of_a_pair_of_nodes_the_slowest_pair_of_ranks_counts_and_all_of_them_move_messages() -> None:
    found = times(P2P_BANDWIDTH)
    assert found.seconds == pytest.approx((2.0 / 20, 4.0 / 20), rel=0.01) and found.n == 12
    assert times(P2P_LATENCY).seconds == pytest.approx(
        (2.0 / P2P_LATENCY.moves(make_case()), 4.0 / P2P_LATENCY.moves(make_case())), rel=0.01
    )


@pytest.mark.parametrize(("rank", "wrong"), [(2, (5, 0)), (3, (5, 0)), (6, (0, 5)), (5, (0, 5))])
def test_wrong_data_belongs_to_the_pair_of_nodes_of_the_rank(rank: int, wrong: tuple[int, int]) -> None:
    found = times(P2P_BANDWIDTH, (Mismatch(rank, 5, 0, "1", "2"),))
    assert found.wrong == wrong
    assert [detail is not None for detail in found.wrong_detail] == [bool(each) for each in wrong]


SIZE = 1000
ASKED = RoundRequest("pairs", ((2, 3), (0, 1)), "again", "cross-check")


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
    found = hunt_round(4, ASKED, [GroupFigure(None, na="no such interface")] * 2)
    assert (found.speed_bytes_per_s, found.na, found.wrong) == ((None, None), ("no such interface",) * 2, (0, 0))
