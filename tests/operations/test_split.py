"""--split: nccl-tests' syntax, which groups it makes, and what cannot be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.case import Split, parse_split

WRITTEN = {
    "MOD 8": Split("MOD", 8), "mod8": Split("MOD", 8), " %  2 ": Split("MOD", 2), "%0b10": Split("MOD", 2),
    "DIV 8": Split("DIV", 8), "/ 0x8": Split("DIV", 8), "Div\t4": Split("DIV", 4),
    "AND 0x7": Split("AND", 7), "and0X7": Split("AND", 7), "&7": Split("AND", 7), "0x7": Split("AND", 7), "0b111": Split("AND", 7),
    "AND 0": Split("AND", 0), "OR 0x7": Split("OR", 7), "| 7": Split("OR", 7), "or 0B1": Split("OR", 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "split"), WRITTEN.items())
def test_nccl_tests_syntax(text, split):
    assert parse_split(text) == split


@pytest.mark.parametrize("text", ["MOD 8", "DIV 2", "AND 0x7", "OR 0x3"])
def test_a_split_prints_as_users_type_it(text):
    assert str(parse_split(text)) == text


@pytest.mark.parametrize("text", ["", "7", "MOD", "MOD -1", "MOD 8 9", "AND 010", "XOR 3", "MOD ٣", "AND 1_0", "0x", "MOD 8\n", "MOD 1e3"])
def test_what_is_no_split_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="not a valid split"):
        parse_split(text)


@pytest.mark.parametrize(("text", "what"), [("MOD 0", "0 groups"), ("DIV 0x0", "0 ranks in each group")])
def test_nothing_can_be_divided_by_zero(text, what):
    with pytest.raises(UsageError, match=f"asks for {what}: write a number from 1 on"):
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
    ("MOD 2", 4): ((0, 2), (1, 3)),
    ("AND 0x1", 4): ((0, 2), (1, 3)),
    ("DIV 2", 4): ((0, 1), (2, 3)),
    ("OR 0x1", 4): ((0, 1), (2, 3)),
    ("OR 0x2", 4): ((0, 2), (1, 3)),
    ("MOD 3", 6): ((0, 3), (1, 4), (2, 5)),
    ("AND 0x0", 3): ((0, 1, 2),),
    ("DIV 8", 3): ((0, 1, 2),),
    ("MOD 1", 2): ((0, 1),),
    ("OR 0x7", 8): (tuple(range(8)),),
}


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
