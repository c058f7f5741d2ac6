"""Which ranks an operation runs over: --split, pairs, and rounds of disjoint pairs in which every rank meets every other once."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.case import Split, parse_split
from collbench.operations.groups import circle_round, group_name, group_size, groups_of, schedule
from tests.helpers import make_case


@pytest.mark.parametrize(("n", "pairs"), [
    (1, ()), (2, ((0, 1),)), (3, ((0, 1),)), (4, ((0, 2), (1, 3))), (5, ((0, 2), (1, 3))), (8, ((0, 4), (1, 5), (2, 6), (3, 7))),
])  # fmt: skip
def test_a_rank_is_paired_with_the_one_half_of_all_further(n, pairs):
    case = make_case(redop=None)
    assert groups_of(P2P_BANDWIDTH, case, n) == pairs
    assert group_size(P2P_BANDWIDTH, case, n) == 2


def test_collectives_run_over_all_ranks_or_the_groups_of_a_split_which_have_names():
    whole, split = make_case(), make_case(split=Split("MOD", 2))
    assert groups_of(ALLREDUCE, whole, 4) == ((0, 1, 2, 3),) and group_size(ALLREDUCE, whole, 4) == 4
    assert groups_of(ALLREDUCE, split, 4) == ((0, 2), (1, 3)) and group_size(ALLREDUCE, split, 4) == 2
    case = make_case(split=Split("MOD", 2))
    assert group_name(ALLREDUCE, case, ((0, 2), (1, 3))) == "MOD 2"
    assert group_name(ALLREDUCE, make_case(split=Split("DIV", 8)), ((0, 1, 2, 3),)) == "all"
    names = [group_name(P2P_BANDWIDTH, make_case(), groups_of(P2P_BANDWIDTH, make_case(), n)) for n in (2, 4, 16, 18)]
    assert names == ["0-1", "0-2,1-3", "0-8,1-9,2-10,3-11,4-12,5-13,6-14,7-15", "0-9…8-17"]


WRITTEN = {
    "MOD 8": Split("MOD", 8), "mod8": Split("MOD", 8), " %  2 ": Split("MOD", 2), "%0b10": Split("MOD", 2),
    "DIV 8": Split("DIV", 8), "/ 0x8": Split("DIV", 8), "Div\t4": Split("DIV", 4),
    "AND 0x7": Split("AND", 7), "and0X7": Split("AND", 7), "&7": Split("AND", 7), "0x7": Split("AND", 7), "0b111": Split("AND", 7),
    "AND 0": Split("AND", 0), "OR 0x7": Split("OR", 7), "| 7": Split("OR", 7), "or 0B1": Split("OR", 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "split"), WRITTEN.items())
def test_nccl_tests_syntax(text, split):
    assert parse_split(text) == split


def test_a_split_prints_as_users_type_it_and_divides_by_one_at_least():
    for text in ("MOD 8", "DIV 2", "AND 0x7", "OR 0x3"):
        assert str(parse_split(text)) == text
    for text, groups in (("MOD 0", "0 groups"), ("DIV 0x0", "0 ranks in each group")):
        with pytest.raises(UsageError, match=f"asks for {groups}: write a number from 1 on"):
            parse_split(text)


@pytest.mark.parametrize("text", ["", "7", "MOD", "MOD -1", "MOD 8 9", "AND 010", "XOR 3", "MOD ٣", "AND 1_0", "0x", "MOD 8\n", "MOD 1e3"])
def test_what_is_no_split_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="not a valid split"):
        parse_split(text)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_split_or_one_sentence(text):
    try:
        split = parse_split(text)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert parse_split(str(split)) == split


GROUPS = {
    **dict.fromkeys([("MOD 2", 4), ("AND 0x1", 4), ("OR 0x2", 4)], ((0, 2), (1, 3))),
    **dict.fromkeys([("DIV 2", 4), ("OR 0x1", 4)], ((0, 1), (2, 3))), **dict.fromkeys([("AND 0x0", 3), ("DIV 8", 3)], ((0, 1, 2),)),
    ("MOD 3", 6): ((0, 3), (1, 4), (2, 5)), ("MOD 1", 2): ((0, 1),), ("OR 0x7", 8): (tuple(range(8)),),
}  # fmt: skip


@pytest.mark.parametrize(("text", "n"), GROUPS)
def test_ranks_of_one_colour_are_a_group(text, n):
    assert parse_split(text).groups(n) == GROUPS[text, n]


REFUSED = {
    ("MOD 8", 4): "--split 'MOD 8' of 4 ranks leaves 4 of 8 groups empty: choose MOD 2",
    ("AND 0xf", 8): "--split 'AND 0xf' of 8 ranks leaves 8 of 16 groups empty: choose AND 0x1 or AND 0x3",
    ("AND 0x8", 8): "--split 'AND 0x8' of 8 ranks leaves 1 of 2 groups empty: choose AND 0x1 or AND 0x3",
    ("DIV 3", 8): "--split 'DIV 3' of 8 ranks makes groups of 2 to 3 ranks, which cannot be compared: choose DIV 2 or DIV 4",
    ("OR 0x7", 12): "--split 'OR 0x7' of 12 ranks makes groups of 4 to 8 ranks, which cannot be compared: choose OR 0x1 or OR 0x3",
    ("AND 0x2", 6): "--split 'AND 0x2' of 6 ranks makes groups of 2 to 4 ranks, which cannot be compared: choose AND 0x1",
    ("DIV 1", 4): "--split 'DIV 1' of 4 ranks makes groups of one rank, which move nothing: choose DIV 2",
    ("MOD 4", 4): "--split 'MOD 4' of 4 ranks makes groups of one rank, which move nothing: choose MOD 2",
    ("MOD 5", 24): "--split 'MOD 5' of 24 ranks makes groups of 4 to 5 ranks, which cannot be compared: "
    "choose MOD 2 or MOD 12, for example",
    ("MOD 2", 3): "--split 'MOD 2' of 3 ranks makes groups of 1 to 2 ranks, which cannot be compared: "
    "3 ranks cannot be split evenly like this; leave --split out, or start more ranks",
}


@pytest.mark.parametrize(("text", "n"), REFUSED)
def test_what_cannot_be_measured_is_refused_with_splits_that_can(text, n):
    with pytest.raises(UsageError) as refused:
        parse_split(text).groups(n)
    assert str(refused.value) == REFUSED[text, n]


@given(st.sampled_from(["AND", "OR", "MOD", "DIV"]), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_groups_are_equal_and_hold_every_rank_once(word, number, n):
    try:
        groups = Split(word, number).groups(n)
    except UsageError as error:
        offered = [word for word in str(error).split("choose ")[1:] for word in word.removesuffix(", for example").split(" or ")]
        assert all(len(parse_split(text).groups(n)[0]) > 1 for text in offered)
    else:
        assert sorted(rank for group in groups for rank in group) == list(range(n))
        assert len({len(group) for group in groups}) == 1
        assert len(groups) == 1 or len(groups[0]) > 1


PLACES = st.integers(2, 60)


def disjoint(pairs):
    places = list(chain.from_iterable(pairs))
    return len(places) == len(set(places))


def met(plan):
    """How many partners each place has."""
    counts = Counter(chain.from_iterable(pair for one in plan.rounds() for pair in one))
    return [counts[place] for place in range(plan.n)]


def test_rounds_of_four_and_three_places_are_made_one_by_one_and_the_seed_alone_decides():
    assert [circle_round(4, number) for number in range(3)] == [((0, 3), (1, 2)), ((1, 3), (0, 2)), ((2, 3), (0, 1))]
    assert [circle_round(3, number) for number in range(3)] == [((1, 2),), ((0, 2),), ((0, 1),)]
    first, again, other = (schedule(40, partners=3, seed=seed).chosen for seed in (1, 1, 2))
    assert first == again != other
    rounds = schedule(100_000).rounds()
    assert len(next(rounds)) == 50_000


@pytest.mark.parametrize(("n", "number"), [(4, 3), (4, -1), (3, 3), (1, 0)])
def test_there_is_no_round_beyond_the_last(n, number):
    with pytest.raises(ValueError, match=f"{n} places have no round {number}"):
        circle_round(n, number)


@given(PLACES, st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_every_pair_meets_exactly_once_in_rounds_of_disjoint_pairs_and_of_an_odd_number_each_rests_once(n, seed):
    plan = schedule(n, seed=seed)
    rounds = list(plan.rounds())
    assert len(rounds) == plan.number == (n if n % 2 else n - 1)
    assert all(disjoint(one) and len(one) == n // 2 for one in rounds)
    assert sorted(chain.from_iterable(rounds)) == [(a, b) for a in range(n) for b in range(a + 1, n)]
    assert plan.pairs == plan.possible == n * (n - 1) // 2
    byes = Counter(place for one in rounds for place in set(range(n)) - set(chain.from_iterable(one)))
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
