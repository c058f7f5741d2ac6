"""Which pairs a round of the cross-check measures: partners, controls, leaves, and when it ends."""

import random
from math import log

import pytest

from collbench.plugins.hunt.candidates import Candidate, SweepResult
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, PAIRS, GroupFigure, HuntLog, RoundResult
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE
from collbench.plugins.hunt.trials import RECEIVES, SENDS

WAYS = (SENDS, RECEIVES)


def candidate(*places, inside=False):
    return Candidate(places, WAYS, log(2), -log(0.95), 0.01, 5.0, 0.01, (), inside)


def check_of(n, places=(), paths=(), *, leaves=None, hosts=None, inside=False, seed=3):
    names = tuple(f"n{place}" for place in range(n))
    well = tuple(place for place in range(n) if place not in places)
    slow_places = tuple(candidate(place, inside=inside) for place in places)
    found = SweepResult(slow_places, tuple(candidate(*path) for path in paths), well, 1e9)
    return CrossCheck(HuntLog(names), found, hosts or names, leaves, random.Random(seed))


def played(check, slow=(), slow_paths=(), part=(), room=40):
    """All asks, answered with half the speed for what is slow, and between the places of a part of the network and the others."""
    asks, drawn = [], random.Random(7)
    asking = check.run(room)
    try:
        ask = next(asking)
        while True:
            asks.append(ask)
            figures = []
            for a, b in ask.groups:
                is_slow = {a, b} & set(slow) or (a, b) in slow_paths or (a in part) != (b in part)
                speed = (0.5e9 if is_slow else 1e9) * (1 + 0.01 * drawn.random())
                figures.append(GroupFigure(speed, speed, 1e-5, 0.99 * speed, 1.01 * speed))
            ask = asking.send(RoundResult(tuple(figures)))
    except StopIteration:
        return asks


@pytest.mark.parametrize(("n", "rounds"), [(4, 7), (8, 5), (16, 3), (40, 3)])
def test_a_slow_place_is_measured_in_so_many_rounds_each_with_controls(n, rounds):
    check = check_of(n, [0])
    asks = played(check, slow=[0])
    assert check.places[0].state() == CONFIRMED and len(asks) == rounds
    for ask in asks:
        assert ask.kind == PAIRS and ask.pause_s > 0
        assert sum(0 in pair for pair in ask.groups) == 1 and len(ask.groups) >= 2
    assert len({place for ask in asks for pair in ask.groups if 0 in pair for place in pair} - {0}) >= 2


def test_a_healthy_place_is_cleared_in_two_rounds_and_without_rounds_left_it_stays_undecided():
    check = check_of(8, [0])
    assert len(played(check)) == 2 and check.places[0].state() == CLEARED
    check = check_of(4, [0])
    assert len(played(check, slow=[0], room=3)) == 3
    assert check.places[0].state() == INCONCLUSIVE
    check = check_of(16, [0, 5, 9], [(2, 3)])
    assert {case.false_alarm_rate for case in (*check.places, *check.paths)} == {FALSE_ALARM_RATE / 4}


def test_a_slow_path_gets_rounds_of_its_own_and_its_ends_are_measured_with_others():
    check = check_of(6, paths=[(1, 4)])
    asks = played(check, slow_paths=[(1, 4)])
    assert check.paths[0].state() == CONFIRMED
    pairs = [pair for ask in asks for pair in ask.groups]
    assert pairs.count((1, 4)) >= 4
    assert all(any(end in pair and pair != (1, 4) for pair in pairs) for end in (1, 4))
    check = check_of(5, [1])
    played(check, slow_paths=[(1, 4)])
    assert check.places[0].state() == CLEARED
    assert [(case.places, case.state()) for case in check.paths] in ([], [((1, 4), CONFIRMED)])
    waiting, other = (0, 3), (4, 5)  # the path of a candidate waits for its result
    assert next(check_of(8, [0], [waiting, other]).run(1)).groups[0] == other


def test_partners_are_of_the_own_leaf_first_then_of_another_and_controls_of_the_same_kind_of_path():
    leaves = [str(place % 2) for place in range(12)]
    for seed in range(5):
        check = check_of(12, [0], leaves=leaves)
        check.random = random.Random(seed)
        first, second = (next(pair for pair in ask.groups if 0 in pair) for ask in played(check, slow=[0])[:2])
        assert [leaves[max(pair)] for pair in (first, second)] == ["0", "1"]
    for ask in played(check_of(12, [0], leaves=leaves), slow=[0]):
        (own,) = [pair for pair in ask.groups if 0 in pair]
        same = leaves[own[0]] == leaves[own[1]]
        assert all((leaves[a] == leaves[b]) == same for a, b in ask.groups)


def partners_of(place, asks):
    return [other for ask in asks for pair in ask.groups if place in pair for other in pair if other != place]


@pytest.mark.parametrize("seed", range(5))
def test_partners_are_those_used_least_and_of_other_hosts_unless_it_is_about_its_own(seed):
    suspects = (0, 5, 9)
    asks = played(check_of(12, suspects, seed=seed))
    used = [partner for place in suspects for partner in partners_of(place, asks)]
    assert len(used) == len(set(used)) == 6
    hosts = [f"host{place // 4}" for place in range(8)]
    assert min(partners_of(0, played(check_of(8, [0], hosts=hosts, seed=seed), slow=[0]))) >= 4
    assert max(partners_of(0, played(check_of(8, [0], hosts=hosts, inside=True, seed=seed), slow=[0]))) < 4
    assert played(check_of(4, [0], hosts=["host0"] * 4, seed=seed), slow=[0]) == []


def test_slow_places_are_measured_with_each_other_and_a_healthy_suspect_with_healthy_places_alone():
    check = check_of(12, [0, 5, 9])
    asks = played(check, slow=[5, 9])
    assert [place.state() for place in check.places] == [CLEARED, CONFIRMED, CONFIRMED]
    pairs = [pair for ask in asks for pair in ask.groups]
    assert (5, 9) in pairs
    assert not {(0, 5), (0, 9)} & set(pairs)


def test_a_suspected_path_is_not_a_control_and_another_kind_of_path_only_if_there_is_no_other():
    for seed in range(5):
        path = (1, 4)
        asks = played(check_of(6, [0], [path], seed=seed), slow=[0])
        assert [path in ask.groups for ask in asks] == [True, *[False] * (len(asks) - 1)]  # only to be judged itself
    of_one_leaf, of_two = next(check_of(5, [0], leaves=["a", "a", "b", "c", "d"]).run(1)).groups
    assert of_one_leaf == (0, 1) and len(of_two) == 2


def test_a_place_that_is_slow_in_its_own_leaf_is_not_excused_by_a_part_of_the_network():
    """Places 0 and 1 are fast with each other; 2 is slow with 3 of its own leaf, and 4 is alone on its leaf."""
    suspects = (0, 1, 2, 4)
    leaves = [f"leaf{3 if place == 2 else place}" for place in range(14)]
    check = check_of(14, suspects, leaves=leaves)
    played(check, slow=[2, 4], part=[0, 1])
    assert [place.state() for place in check.places] == [INCONCLUSIVE, INCONCLUSIVE, CONFIRMED, INCONCLUSIVE]
    check = check_of(14, suspects, leaves=leaves)
    played(check, slow=suspects)
    assert [place.state() for place in check.places] == [CONFIRMED] * 4
