"""Sentences on data that arrived wrong: between two, inside one, among many, of many groups the first."""

from __future__ import annotations

from collbench.measure.prepared_cell import wrong_data

NAMES = tuple("abcdef")


def test_who_is_told_by_how_many_there_are() -> None:
    met = [((0, 1), 7, "first at 3"), ((2,), 1, None), ((0, 1, 2, 3, 4, 5), 2, None), ((3, 4), 0, None), ((4, 5), None, None)]
    assert wrong_data(NAMES, met, "groups") == [
        "wrong data between a and b: 7 elements are not what was sent (first at 3)",
        "wrong data inside c: 1 elements are not what was sent",
        "wrong data among a, b, c, d and 2 more: 2 elements are not what was sent",
    ]


def test_of_many_the_first_are_told_and_the_others_counted() -> None:
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 4, "pairs")[4:] == []
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 6, "pairs")[4:] == ["wrong data in 2 more pairs"]
