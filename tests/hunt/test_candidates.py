"""Which candidates of a sweep are measured again."""

from __future__ import annotations

import pytest

from collbench.analysis.hunt.judging import BANDWIDTH_WAYS, Candidate, _bandwidth_first, _fewer, _once
from collbench.analysis.hunt.significance import LATENCY


def candidate(place: int, depth: float = 0.7, *, doubtful: bool = False, ways: tuple[str, ...] = BANDWIDTH_WAYS) -> Candidate:
    return Candidate((place,), ways, depth, 0.05, 5.0, 4.0, 0.01, 0.01, "slow", doubtful=doubtful)


@pytest.mark.parametrize(
    ("n", "sure", "doubtful", "kept"),
    [
        (8, [0], [1, 2, 3, 4], [0, 1, 2]),
        (9, [0], [1, 2, 3, 4], [0, 1, 2, 3]),
        (4, [0, 1], [2], [0, 1]),
        (8, [], [5, 6, 7, 4], [5, 6, 7]),
    ],
)
def test_doubtful_candidates_leave_a_majority_of_healthy_places(n: int, sure: list[int], doubtful: list[int], kept: list[int]) -> None:
    found = _fewer([*(candidate(place) for place in sure), *(candidate(place, doubtful=True) for place in doubtful)], n)
    assert [each.places[0] for each in found] == kept


def test_places_slow_for_small_messages_alone_wait_where_few_healthy_ones_are_left() -> None:
    slow, late, barely = candidate(0), candidate(1, ways=(LATENCY,)), candidate(2, 0.06)
    first, later = _bandwidth_first((slow, late, barely), 5)
    assert ([each.places for each in first], [each.places for each in later]) == ([(0,)], [(1,), (2,)])
    assert _bandwidth_first((slow, late, barely), 6) == ((slow, late, barely), ())
    assert _bandwidth_first((late,), 3) == ((late,), ())


def test_a_place_has_one_candidate_for_its_bandwidth_and_one_for_its_latency() -> None:
    found = _once([candidate(0, 0.3), candidate(0, 0.7), candidate(0, 0.2, ways=(LATENCY,)), candidate(1, 0.5)])
    assert sorted((each.places[0], each.depth, LATENCY in each.ways) for each in found) == [
        (0, 0.2, True),
        (0, 0.7, False),
        (1, 0.5, False),
    ]
