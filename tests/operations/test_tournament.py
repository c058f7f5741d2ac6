"""Rounds of disjoint pairs: every rank meets every other once, and a sample omits none."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.operations.groups import circle_round, schedule

PLACES = st.integers(2, 60)


def disjoint(pairs):
    places = list(chain.from_iterable(pairs))
    return len(places) == len(set(places))


def met(plan):
    """How many partners each place has."""
    counts = Counter(chain.from_iterable(pair for one in plan.rounds() for pair in one))
    return [counts[place] for place in range(plan.n)]


def test_four_places_meet_in_three_rounds():
    assert [circle_round(4, number) for number in range(3)] == [((0, 3), (1, 2)), ((1, 3), (0, 2)), ((2, 3), (0, 1))]


def test_of_three_places_each_rests_once():
    assert [circle_round(3, number) for number in range(3)] == [((1, 2),), ((0, 2),), ((0, 1),)]


@pytest.mark.parametrize(("n", "number"), [(4, 3), (4, -1), (3, 3), (1, 0)])
def test_there_is_no_round_beyond_the_last(n, number):
    with pytest.raises(ValueError, match=f"{n} places have no round {number}"):
        circle_round(n, number)


@given(PLACES, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_every_pair_meets_exactly_once_in_rounds_of_disjoint_pairs(n, seed):
    plan = schedule(n, seed=seed)
    rounds = list(plan.rounds())
    assert len(rounds) == plan.number == (n if n % 2 else n - 1)
    assert all(disjoint(one) and len(one) == n // 2 for one in rounds)
    assert sorted(chain.from_iterable(rounds)) == [(a, b) for a in range(n) for b in range(a + 1, n)]
    assert plan.pairs == plan.possible == n * (n - 1) // 2


@given(PLACES)
def test_with_an_odd_number_every_rank_has_one_bye(n):
    byes = Counter(place for one in schedule(n).rounds() for place in set(range(n)) - set(chain.from_iterable(one)))
    assert byes == Counter(range(n) if n % 2 else ())


@given(PLACES, st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_no_more_pairs_run_at_once_than_allowed(n, at_once):
    plan = schedule(n, at_once=at_once)
    rounds = list(plan.rounds())
    assert len(rounds) == plan.number
    assert all(0 < len(one) <= at_once and disjoint(one) for one in rounds)
    assert sorted(chain.from_iterable(rounds)) == [(a, b) for a in range(n) for b in range(a + 1, n)]


@given(PLACES, st.data(), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_a_sample_gives_each_place_so_many_partners_or_one_more(n, data, seed):
    partners = data.draw(st.integers(1, n - 1))
    counts = met(schedule(n, partners=partners, seed=seed))
    assert min(counts) == partners if n % 2 == 0 else partners <= min(counts) <= max(counts) <= partners + 1


@given(PLACES, st.integers(0, 200), st.integers(1, 40), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_a_limit_is_kept_but_none_is_left_without_a_pair(n, most, at_once, seed):
    plan = schedule(n, most=most, at_once=at_once, seed=seed)
    assert min(met(plan)) >= 1
    assert plan.number <= max(most, plan.least * plan.parts)
    assert len(plan.chosen) == min(plan.whole_rounds, max(plan.least, most // plan.parts))


@given(PLACES, st.data())
@settings(max_examples=100, deadline=None)
def test_one_to_all_measures_one_place_with_each_other(n, data):
    center = data.draw(st.integers(0, n - 1))
    plan = schedule(n, center=center)
    assert sorted(plan.rounds()) == [((center, other),) for other in range(n) if other != center]
    assert plan.possible == plan.pairs == plan.number == n - 1
    assert schedule(n, center=center, partners=1).pairs == schedule(n, center=center, most=0).pairs == 1


def test_the_seed_alone_decides():
    first, again, other = (schedule(40, partners=3, seed=seed).chosen for seed in (1, 1, 2))
    assert first == again != other


def test_rounds_are_made_one_by_one():
    rounds = schedule(100_000).rounds()
    assert len(next(rounds)) == 50_000
