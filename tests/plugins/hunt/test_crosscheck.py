"""Which pairs a round of the cross-check measures: partners, controls, leaves, and when it ends."""

import random
from math import log
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from collbench.plugins.hunt.candidates import Candidate, SweepResult
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.judging import PlaceCheck
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, PAIRS, GroupFigure, HuntLog, RoundResult
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE
from collbench.plugins.hunt.trials import RECEIVES, SENDS

WAYS = (SENDS, RECEIVES)


def candidate(*places):
    return Candidate(places, WAYS, log(2), -log(0.95), 0.01, 5.0, 0.01, ())


def check_of(n, places=(), paths=(), leaves=None):
    names = tuple(f"n{place}" for place in range(n))
    well = tuple(place for place in range(n) if place not in places)
    found = SweepResult(tuple(map(candidate, places)), tuple(candidate(*path) for path in paths), well, 1e9)
    return CrossCheck(HuntLog(names), found, names, leaves, random.Random(3))


def played(check, slow=(), slow_paths=(), room=40):
    """All asks, answered with half the speed for what is slow."""
    asks, drawn = [], random.Random(7)
    asking = check.run(room)
    try:
        ask = next(asking)
        while True:
            asks.append(ask)
            figures = []
            for a, b in ask.groups:
                speed = (0.5e9 if {a, b} & set(slow) or (a, b) in slow_paths else 1e9) * (1 + 0.01 * drawn.random())
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
    check = check_of(8, [0], [(0, 3), (4, 5)])
    assert [path.places for path in check._open_paths()] == [(4, 5)]


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


def test_partners_are_those_used_least_and_of_other_hosts_unless_it_is_about_its_own():
    check = check_of(8, [0])
    check._used.update({place: 1 for place in range(1, 8) if place != 4})
    assert check._partner(check.places[0], 0, range(1, 8)) == 4
    check = check_of(8, [0])
    check.hosts = [f"host{place // 4}" for place in range(8)]
    assert {check._partner(check.places[0], 0, [1, 2, 3, 5]) for _ in range(5)} == {5}
    assert check._partner(check.places[0], 0, [1, 2, 3]) is None
    inside = replace(check.places[0].candidate, inside=True)
    assert check._partner(PlaceCheck(inside), 0, [1, 5, 6, 7]) == 1


def test_slow_places_are_measured_with_each_other_and_a_healthy_suspect_with_healthy_places_alone():
    check = check_of(12, [0, 5, 9])
    asks = played(check, slow=[5, 9])
    assert [place.state() for place in check.places] == [CLEARED, CONFIRMED, CONFIRMED]
    pairs = [pair for ask in asks for pair in ask.groups]
    assert (5, 9) in pairs
    assert not {(0, 5), (0, 9)} & set(pairs)


def test_a_suspected_path_and_another_kind_of_path_are_not_controls():
    check = check_of(8, leaves=["a", "a", "a", "b", "b", "b", "b", "b"])
    assert check._control([1, 2, 3], None, {(1, 2)}) == (1, 3)
    assert check._control([0, 1, 3], check.path_kind(4, 5), set()) == (0, 1)
    assert check._control([0, 3, 4], check.path_kind(4, 5), set()) == (3, 4)
    assert check._control([0, 3, 4], check.path_kind(0, 5), set()) == (0, 3)
    assert check._control([0, 3], check.path_kind(4, 5), set()) is None


def test_a_place_that_is_slow_in_its_own_leaf_is_not_excused_by_a_part_of_the_network():
    check = check_of(8, [0, 2], leaves=["a", "b", "c", "c", "d", "e", "f", "g"])

    def case(place, partner, fast_with_peer):
        partners = {partner: "slow"}
        return SimpleNamespace(place=place, fast_with_peer=fast_with_peer, fast_again=None, partners=lambda: partners, in_a_part=False)

    check.places = [case(0, 1, True), case(2, 3, False), case(4, 5, False)]
    check._mark_parts()
    assert [each.in_a_part for each in check.places] == [True, False, True]
    check.places[0].fast_with_peer = False
    check._mark_parts()
    assert not any(each.in_a_part for each in check.places)
