"""Doubts of one kind are few, and the rest is counted."""

from collbench.machine.readers.text import few, several


def test_a_few_doubts_stay_and_many_are_counted() -> None:
    assert few([]) == () and few(["a", "b"]) == ("a", "b")
    assert few([str(number) for number in range(100)])[7:] == (
        "7",
        "92 more doubts of this kind: the source is damaged, or not of one machine",
    )


def test_parts_that_share_a_doubt_are_named_up_to_four() -> None:
    assert several(["a"]) == "a"
    assert several(list("abcd")) == "a, b, c, d"
    assert several(list("abcdef")) == "a, b, c, d and 2 more"
