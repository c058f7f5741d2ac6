"""One measurement of all pairs of a round: messages per rank, and which pair of nodes wrong data belongs to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.measure.sampling import Measurement
from collbench.measure.tasks.round_runner import pair_times
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.data import Mismatch
from tests.helpers import make_case

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
