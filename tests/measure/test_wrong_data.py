"""Data that arrived wrong: between two places, inside one, among many; of many groups the first."""

from __future__ import annotations

from collbench.measure.prepared_case import MoreWrongData, WrongDataFound, wrong_data

NAMES = tuple("abcdef")


def test_the_notes_depend_on_their_number() -> None:
    met = [((0, 1), 7, "first at 3"), ((2,), 1, None), ((0, 1, 2, 3, 4, 5), 2, None), ((3, 4), 0, None), ((4, 5), None, None)]
    assert wrong_data(NAMES, met, "group") == [
        WrongDataFound(("a", "b"), 2, 7, "first at 3"),
        WrongDataFound(("c",), 1, 1),
        WrongDataFound(("a", "b", "c", "d"), 6, 2),
    ]


def test_of_many_the_first_are_reported_and_the_others_counted() -> None:
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 4, "pair")[4:] == []
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 6, "pair")[4:] == [MoreWrongData(2, "pair")]
