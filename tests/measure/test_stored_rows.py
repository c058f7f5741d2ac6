"""Which cases of a resumed run are stored already."""

from __future__ import annotations

from dataclasses import replace

from collbench.measure.resume import _by_place
from tests.results.rows import make_row


def test_a_stored_row_is_used_once() -> None:
    """A plan that has a case twice, of which one was measured before the run broke off."""
    row, other = make_row(8), make_row(64)
    planned = [(row, row), (other, other), (row, row)]
    assert _by_place([row], planned) == {0: row}
    second = replace(row, n=77)
    assert _by_place([row, second], planned) == {0: row, 2: second}
    assert _by_place([], planned) == {}


def test_a_case_is_found_by_either_of_its_names() -> None:
    """Until a backend is open it is not known whether a case is in place."""
    apart, in_place = make_row(8, in_place=False), make_row(8, in_place=True)
    assert _by_place([in_place], [(apart, in_place)]) == {0: in_place}
    assert _by_place([apart], [(apart, in_place)]) == {0: apart}
