"""A complete hunt with a sweep by groups, growing groups and isolation: confirmed places and the number of rounds."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.facts import FastWithout, InsideHost, SlowAtScale, SlowInterfaces
from collbench.plugins.hunt.growing import measure_growing, most_rounds
from collbench.plugins.hunt.protocol import CONFIRMED, GROUPS, HuntVerdict, Options
from collbench.plugins.hunt.strategy import hunt, promise
from collbench.plugins.hunt.sweep import LEAST_PLACES, rounds_groups, sweep_groups
from tests.plugins.hunt.made_up import MadeUp, Played, play

BY_GROUPS = Options(method="groups")


def hunted(made: MadeUp, options: Options = BY_GROUPS) -> Played[HuntVerdict]:
    played = play(hunt(made.names, options), made)
    assert len(played.asks) <= promise(made.n, options)
    return played


def confirmed(played: Played[HuntVerdict]) -> set[int]:
    return {suspect.places[0] for suspect in played.result.of(CONFIRMED)}


@pytest.mark.parametrize(("n", "sick"), [(16, 1), (64, 2)])
def test_exactly_the_faulty_places_are_confirmed(n: int, sick: int) -> None:
    for seed in range(20):
        ill = set(Random(seed).sample(range(n), sick))
        made = MadeUp(n, seed)
        for place in ill:
            made.node(place, 0.5)
        assert confirmed(hunted(made)) == ill, seed


def test_three_of_512_within_forty_rounds() -> None:
    made = MadeUp(512, 4).node(0, 0.5).node(200, 0.6).node(411, 0.5)
    played = hunted(made)
    assert confirmed(played) == {0, 200, 411}
    assert promise(512, BY_GROUPS) <= 40
    assert sum(ask.kind == GROUPS for ask in played.asks) == rounds_groups(512, BY_GROUPS)


def test_healthy_places_give_no_suspect_in_50_trials() -> None:
    for seed in range(50):
        assert hunted(MadeUp(32, seed)).result.result == "nobody", seed


def test_a_fault_at_scale_alone_is_confirmed_after_a_sweep_that_saw_nothing() -> None:
    (found,) = hunted(MadeUp(64, 3).scale(17, 12, 0.5)).result.suspects
    assert (found.kind, found.places, found.state) == ("scale", (17,), CONFIRMED)
    slow, without = found.evidence
    assert isinstance(slow, SlowAtScale) and isinstance(without, FastWithout) and slow.groups == 3


def test_a_fault_inside_a_host_is_found_by_groups() -> None:
    (found,) = hunted(MadeUp(32, 3).slow_inside(9, 0.5), Options(method="pairs", can_inside=True)).result.of(CONFIRMED)
    assert (found.kind, found.places, found.part) == ("inside", (9,), InsideHost())


def test_the_slow_interface_of_a_confirmed_node_is_found() -> None:
    made = MadeUp(16, 2).rails("eth0", "eth1").slow_nic(6, "eth1", 0.4)
    (found,) = hunted(made, Options(method="groups", can_inside=True, nics=("eth0", "eth1"))).result.suspects
    assert (found.places, found.part) == ((6,), SlowInterfaces(("eth1",)))


@st.composite
def clusters(draw: st.DrawFn) -> MadeUp:
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
def test_for_any_results_the_estimated_rounds_are_not_exceeded(made: MadeUp, seed: int) -> None:
    log = made.log()
    grown = play(measure_growing(log, range(made.n), Options(), Random(seed)), made)
    assert len(grown.asks) <= most_rounds(made.n, Options())
    assert len({each.places for each in grown.result}) == len(grown.result)
    assert all(len(ask.groups) == 1 or len({len(group) for group in ask.groups}) == 1 for ask in grown.asks)  # groups are compared
    assert all("\n" not in note.render() for note in log.notes)
    if made.n >= LEAST_PLACES:
        assert len(play(sweep_groups(made.log(), Options(), Random(seed)), made).asks) == rounds_groups(made.n, Options())
