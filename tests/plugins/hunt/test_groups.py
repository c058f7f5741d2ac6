"""A sweep by groups: about log N rounds, every faulty place is a candidate, and few others are."""

from __future__ import annotations

from itertools import combinations
from math import ceil, log2
from random import Random

import numpy as np
import pytest

from collbench.plugins.hunt.facts import GroupsNotMeasured
from collbench.plugins.hunt.protocol import GROUPS, GroupFigure, Options, RoundResult
from collbench.plugins.hunt.sweep import (
    LEAST_RATIO,
    SlowMember,
    group_size,
    log_ratios,
    partitions,
    rounds_groups,
    slow_members,
    sweep_groups,
)
from tests.plugins.hunt.made_up import MadeUp, Played, play

TRIALS = range(20)


def swept(made: MadeUp, seed: int = 0, options: Options | None = None) -> Played[list[SlowMember]]:
    return play(sweep_groups(made.log(), options or Options(), Random(seed)), made)


def candidates(made: MadeUp, seed: int) -> set[int]:
    return {each.place for each in swept(made, seed).result}


@pytest.mark.parametrize(("n", "sick"), [(16, 1), (64, 2), (64, 4)])
def test_every_faulty_place_is_a_candidate_and_at_most_one_other(n: int, sick: int) -> None:
    for seed in TRIALS:
        ill = set(Random(seed).sample(range(n), sick))
        made = MadeUp(n, seed)
        for place in ill:
            made.node(place, 0.5)
        found = candidates(made, seed)
        assert ill <= found, seed
        assert len(found - ill) <= 1, seed


def test_three_of_512_in_ten_rounds() -> None:
    made = MadeUp(512, 1).node(7, 0.5).node(300, 0.6).node(511, 0.7)
    played = swept(made, 1)
    assert [(each.place, round(each.ratio, 1)) for each in played.result] == [(7, 0.5), (300, 0.6), (511, 0.7)]
    assert len(played.asks) == rounds_groups(512, Options()) == 10
    assert {len(group) for ask in played.asks for group in ask.groups} == {16}


def test_a_place_that_lacks_an_eighth_is_found_in_nine_trials_of_ten() -> None:
    assert sum(5 in candidates(MadeUp(64, seed).node(5, 0.875), seed) for seed in TRIALS) >= 18


@pytest.mark.parametrize("n", [16, 64, 130])
def test_healthy_places_give_few_candidates(n: int) -> None:
    assert sum(len(candidates(MadeUp(n, seed), seed)) for seed in TRIALS) <= 1


def test_all_equally_slow_are_all_well() -> None:
    assert not candidates(MadeUp(64, 3).all_slow(0.4), 3)


@pytest.mark.parametrize("n", [8, 9, 16, 100, 512, 4096])
def test_rounds_are_promised_and_kept(n: int) -> None:
    assert rounds_groups(n, Options()) == ceil(log2(n)) + 1
    assert rounds_groups(n, Options(rounds=3)) == 3
    if n < 1000:
        asks = swept(MadeUp(n)).asks
        assert len(asks) == rounds_groups(n, Options())
        assert {ask.kind for ask in asks} == {GROUPS}
        assert {ask.stage for ask in asks} == {"sweep"}


def test_two_places_meet_as_seldom_as_they_can() -> None:
    meetings: dict[tuple[int, int], int] = {}
    for groups in partitions(64, 4, 7, Random(0)):
        assert sorted(place for group in groups for place in group) == list(range(64))
        for pair in (pair for group in groups for pair in combinations(group, 2)):
            meetings[pair] = meetings.get(pair, 0) + 1
    assert max(meetings.values()) <= 2
    assert sum(times == 2 for times in meetings.values()) < len(meetings) / 20


def test_the_remaining_places_rest_in_turn() -> None:
    resting = [set(range(18)) - {place for group in groups for place in group} for groups in partitions(18, 4, 9, Random(0))]
    assert all(len(rest) == 2 for rest in resting)
    assert set.union(*resting) == set(range(18))


def test_there_are_four_groups_for_each_faulty_place() -> None:
    assert [(n, group_size(n)) for n in (8, 16, 64, 128, 512, 4096)] == [(8, 2), (16, 4), (64, 4), (128, 4), (512, 16), (4096, 16)]


def test_a_place_that_has_died_is_a_candidate() -> None:
    found = swept(MadeUp(16, 2).dies(9, 0, "gone"), 2).result
    assert found == [SlowMember(9, LEAST_RATIO, GroupsNotMeasured(5, "node009: gone"))]


def test_a_backend_without_figures_gives_no_candidate() -> None:
    made = MadeUp(16)
    for place in range(16):
        made.dies(place)
    assert not candidates(made, 0)


def test_groups_are_compared_with_the_faster_ones_of_their_own_round() -> None:
    figures = tuple(GroupFigure(speed) for speed in (5e9, 10e9, 10e9, None, 10e9))
    ratios = log_ratios(RoundResult(figures))
    assert ratios[0] == pytest.approx(-0.693, abs=1e-3)
    assert list(ratios[[1, 2, 4]]) == [0, 0, 0]
    assert ratios[3] != ratios[3]


def test_too_few_places_make_no_groups() -> None:
    with pytest.raises(ValueError, match="7 places"):
        swept(MadeUp(7))


def test_the_requests_depend_on_the_seed() -> None:
    asked = [swept(MadeUp(32), seed).asks for seed in (4, 4, 5)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


@pytest.mark.parametrize(
    ("speeds", "ratios"),
    [
        ((1.0, 0.5), (1.0, 0.5)),
        ((1.0, 0.5, 0.5), (1.0, 0.5, 0.5)),
        ((1.0, 1.0, 1.0, 0.5), (1.0, 1.0, 1.0, 0.5)),
        ((2.0, 1.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.0, 1.0, 1.0)),
        ((None, 1.0), (None, 1.0)),
    ],
)
def test_a_group_is_compared_with_the_upper_quarter_or_of_few_with_the_fastest(speeds, ratios):
    found = np.exp(log_ratios(RoundResult(tuple(GroupFigure(speed) for speed in speeds))))
    assert found == pytest.approx([np.nan if each is None else each for each in ratios], nan_ok=True)


@pytest.mark.parametrize(
    ("figures", "named"), [([0.5] * 4, True), ([0.5] * 3 + [1.0], False), ([0.5] * 4 + [1.0], True), ([0.5] * 3 + [1.0] * 2, False)]
)
def test_one_of_five_groups_or_more_may_be_fast(figures: list[float], named: bool) -> None:
    found = slow_members(np.log(np.array([figures, *[[1.0] * len(figures)] * 9])).T, [[]] * 10)
    assert [(each.place, round(each.ratio, 9)) for each in found] == [(0, 0.5)] * named
