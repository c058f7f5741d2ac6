"""Which ranks an operation runs over."""

from __future__ import annotations

import pytest

from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.case import Split
from collbench.operations.groups import group_name, group_size, groups_of
from tests.helpers import make_case


@pytest.mark.parametrize(
    ("n", "pairs"), [(2, ((0, 1),)), (4, ((0, 2), (1, 3))), (5, ((0, 2), (1, 3))), (8, ((0, 4), (1, 5), (2, 6), (3, 7))), (1, ())]
)
def test_a_rank_is_paired_with_the_one_half_of_all_further(n: int, pairs: tuple[tuple[int, int], ...]) -> None:
    case = make_case(redop=None)
    assert groups_of(P2P_BANDWIDTH, case, n) == pairs
    assert group_size(P2P_BANDWIDTH, case, n) == 2


def test_collectives_run_over_all_ranks_or_the_groups_of_a_split() -> None:
    whole, split = make_case(), make_case(split=Split("MOD", 2))
    assert groups_of(ALLREDUCE, whole, 4) == ((0, 1, 2, 3),) and group_size(ALLREDUCE, whole, 4) == 4
    assert groups_of(ALLREDUCE, split, 4) == ((0, 2), (1, 3)) and group_size(ALLREDUCE, split, 4) == 2


def test_names_of_groups() -> None:
    case = make_case(split=Split("MOD", 2))
    assert group_name(ALLREDUCE, case, ((0, 2), (1, 3))) == "MOD 2"
    assert group_name(ALLREDUCE, make_case(split=Split("DIV", 8)), ((0, 1, 2, 3),)) == "all"
    names = [group_name(P2P_BANDWIDTH, make_case(), groups_of(P2P_BANDWIDTH, make_case(), n)) for n in (2, 4, 16, 18)]
    assert names == ["0-1", "0-2,1-3", "0-8,1-9,2-10,3-11,4-12,5-13,6-14,7-15", "0-9…8-17"]
