"""Hunts by groups: about log N rounds, every faulty place is a candidate, and exactly these are confirmed in the end."""

from itertools import combinations
from math import ceil, log2
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.facts import FastWithout, GroupsNotMeasured, InsideHost, SlowAtScale, SlowInterfaces
from collbench.plugins.hunt.growing import measure_growing, most_rounds
from collbench.plugins.hunt.protocol import CONFIRMED, GROUPS, GroupFigure, Options, RoundResult
from collbench.plugins.hunt.strategy import hunt, promise
from collbench.plugins.hunt.sweep import (
    LEAST_PLACES,
    LEAST_RATIO,
    SlowMember,
    group_size,
    log_ratios,
    partitions,
    rounds_groups,
    slow_members,
    sweep_groups,
)
from tests.plugins.hunt.made_up import MadeUp, play

TRIALS = range(20)
BY_GROUPS = Options(method="groups")


def swept(made, seed=0, options=None):
    return play(sweep_groups(made.log(), options or Options(), Random(seed)), made)


def candidates(made, seed):
    return {each.place for each in swept(made, seed).result}


def test_three_faulty_places_of_512():
    made = MadeUp(512, 1).node(7, 0.5).node(300, 0.6).node(511, 0.7)
    played = swept(made, 1)
    assert [(each.place, round(each.ratio, 1)) for each in played.result] == [(7, 0.5), (300, 0.6), (511, 0.7)]
    assert len(played.asks) == rounds_groups(512, Options()) == 10
    assert {len(group) for ask in played.asks for group in ask.groups} == {16}
    made = MadeUp(512, 4).node(0, 0.5).node(200, 0.6).node(411, 0.5)
    played = hunted(made)
    assert confirmed(played) == {0, 200, 411}
    assert promise(512, BY_GROUPS) <= 40
    assert sum(ask.kind == GROUPS for ask in played.asks) == rounds_groups(512, BY_GROUPS)


def test_a_place_slower_by_an_eighth_is_a_candidate():
    assert sum(5 in candidates(MadeUp(64, seed).node(5, 0.875), seed) for seed in TRIALS) >= 18


@pytest.mark.parametrize("n", [16, 64, 130])
def test_healthy_places_give_few_candidates(n):
    assert sum(len(candidates(MadeUp(n, seed), seed)) for seed in TRIALS) <= 1


def test_equal_places_give_no_candidate_and_a_dead_place_is_one():
    assert not candidates(MadeUp(64, 3).all_slow(0.4), 3)
    made = MadeUp(16)
    for place in range(16):
        made.dies(place)
    assert not candidates(made, 0)
    found = swept(MadeUp(16, 2).dies(9, 0, "gone"), 2).result
    assert found == [SlowMember(9, LEAST_RATIO, GroupsNotMeasured(5, "node009: gone"))]


@pytest.mark.parametrize("n", [8, 9, 16, 100, 512, 4096])
def test_rounds_stay_within_the_estimate(n):
    assert rounds_groups(n, Options()) == ceil(log2(n)) + 1
    assert rounds_groups(n, Options(rounds=3)) == 3
    if n < 1000:
        asks = swept(MadeUp(n)).asks
        assert len(asks) == rounds_groups(n, Options())
        assert {ask.kind for ask in asks} == {GROUPS}
        assert {ask.stage for ask in asks} == {"sweep"}


def test_groups_of_successive_rounds_share_few_places():
    meetings = {}
    for groups in partitions(64, 4, 7, Random(0)):
        assert sorted(place for group in groups for place in group) == list(range(64))
        for pair in (pair for group in groups for pair in combinations(group, 2)):
            meetings[pair] = meetings.get(pair, 0) + 1
    assert max(meetings.values()) <= 2
    assert sum(times == 2 for times in meetings.values()) < len(meetings) / 20
    resting = [set(range(18)) - {place for group in groups for place in group} for groups in partitions(18, 4, 9, Random(0))]
    assert all(len(rest) == 2 for rest in resting)
    assert set.union(*resting) == set(range(18))


def test_sizes_and_requests_of_groups():
    assert [(n, group_size(n)) for n in (8, 16, 64, 128, 512, 4096)] == [(8, 2), (16, 4), (64, 4), (128, 4), (512, 16), (4096, 16)]
    with pytest.raises(ValueError, match="7 places"):
        swept(MadeUp(7))
    asked = [swept(MadeUp(32), seed).asks for seed in (4, 4, 5)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


@pytest.mark.parametrize(("speeds", "ratios"), [
    ((1.0, 0.5), (1.0, 0.5)), ((1.0, 0.5, 0.5), (1.0, 0.5, 0.5)), ((1.0, 1.0, 1.0, 0.5), (1.0, 1.0, 1.0, 0.5)),
    ((2.0, 1.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.0, 1.0, 1.0)), ((None, 1.0), (None, 1.0)),
    ((5.0, 10.0, 10.0, None, 10.0), (0.5, 1.0, 1.0, None, 1.0)),
])  # fmt: skip
def test_reference_of_a_group(speeds, ratios):
    found = np.exp(log_ratios(RoundResult(tuple(GroupFigure(speed) for speed in speeds))))
    assert found == pytest.approx([np.nan if each is None else each for each in ratios], nan_ok=True)


@pytest.mark.parametrize(
    ("figures", "named"), [([0.5] * 4, True), ([0.5] * 3 + [1.0], False), ([0.5] * 4 + [1.0], True), ([0.5] * 3 + [1.0] * 2, False)]
)
def test_one_fast_group_is_ignored(figures, named):
    found = slow_members(np.log(np.array([figures, *[[1.0] * len(figures)] * 9])).T, [[]] * 10)
    assert [(each.place, round(each.ratio, 9)) for each in found] == [(0, 0.5)] * named


def hunted(made, options=BY_GROUPS):
    played = play(hunt(made.names, options), made)
    assert len(played.asks) <= promise(made.n, options)
    return played


def confirmed(played):
    return {suspect.places[0] for suspect in played.result.of(CONFIRMED)}


@pytest.mark.parametrize(("n", "faulty"), [(16, 1), (64, 2), (64, 4)])
def test_exactly_the_faulty_places_are_confirmed_of_few_candidates(n, faulty):
    for seed in TRIALS:
        slow_places = set(Random(seed).sample(range(n), faulty))
        made = MadeUp(n, seed)
        for place in slow_places:
            made.node(place, 0.5)
        played = hunted(made)
        assert confirmed(played) == slow_places, seed
        assert len({suspect.places for suspect in played.result.suspects}) <= faulty + 1, seed


def test_healthy_places_give_no_suspect_in_50_trials():
    for seed in range(50):
        assert hunted(MadeUp(32, seed)).result.result == "nobody", seed


def test_faults_of_a_host_and_of_an_interface_are_found():
    (found,) = hunted(MadeUp(64, 3).scale(17, 12, 0.5)).result.suspects
    assert (found.kind, found.places, found.state) == ("scale", (17,), CONFIRMED)
    slow, without = found.evidence
    assert isinstance(slow, SlowAtScale) and isinstance(without, FastWithout) and slow.groups == 3
    (found,) = hunted(MadeUp(32, 3).slow_inside(9, 0.5), Options(method="pairs", can_inside=True)).result.of(CONFIRMED)
    assert (found.kind, found.places, found.part) == ("inside", (9,), InsideHost())
    made = MadeUp(16, 2).rails("eth0", "eth1").slow_nic(6, "eth1", 0.4)
    (found,) = hunted(made, Options(method="groups", can_inside=True, nics=("eth0", "eth1"))).result.suspects
    assert (found.places, found.part) == ((6,), SlowInterfaces(("eth1",)))


@st.composite
def clusters(draw):
    """Of any size, with some dead, some slow in groups of any size, some slow paths."""
    n = draw(st.integers(1, 70))
    made = MadeUp(n, draw(st.integers(0, 1000)), draw(st.sampled_from([0.0, 0.015, 0.1])))
    place = st.integers(0, n - 1)
    for each in draw(st.lists(place, max_size=6)):
        made.scale(each, draw(st.integers(2, n + 2)), draw(st.sampled_from([0.1, 0.5, 0.8])))
    for each in draw(st.lists(place, max_size=3)):
        made.dies(each, draw(st.integers(0, 12)))
    for a, b in draw(st.lists(st.tuples(place, place), max_size=3)):
        made.path(a, b)
    return made


@given(clusters(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_any_results_stay_within_the_estimated_rounds(made, seed):
    log = made.log()
    grown = play(measure_growing(log, range(made.n), Options(), Random(seed)), made)
    assert len(grown.asks) <= most_rounds(made.n, Options())
    assert len({each.places for each in grown.result}) == len(grown.result)
    assert all(len(ask.groups) == 1 or len({len(group) for group in ask.groups}) == 1 for ask in grown.asks)  # groups are compared
    assert all("\n" not in note.render() for note in log.notes)
    if made.n >= LEAST_PLACES:
        assert len(play(sweep_groups(made.log(), Options(), Random(seed)), made).asks) == rounds_groups(made.n, Options())
