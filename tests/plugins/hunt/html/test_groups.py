"""Which places share a row of the picture, where there are too many for one each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.pairs_page import MOST_ROWS, grouped
from tests.plugins.hunt.html.matrices import cell_classes, drawn, even, slowed, texts_in


def test_of_few_places_each_has_its_own_row() -> None:
    found = grouped(["b", "a", "c"])
    assert (found.by, found.order, found.starts, found.labels) == ("place", (0, 1, 2), (0, 1, 2), ("b", "a", "c"))


def test_ranks_of_a_host_are_adjacent_even_if_placed_round_robin() -> None:
    hosts = [f"n{rank % 10}" for rank in range(80)]
    found = grouped([f"rank {rank} ({host})" for rank, host in enumerate(hosts)], hosts)
    assert (found.by, found.labels[:2], found.starts[:2]) == ("host", ("n0", "n1"), (0, 8))
    assert found.order[:9] == (0, 10, 20, 30, 40, 50, 60, 70, 1)


@pytest.mark.parametrize(
    ("pattern", "label"),
    [("r{:02}n{:02}", "r00n*"), ("rack{}-node{}.dc1", "rack0-node*.dc1"), ("10.1.{}.{}", "10.1.0.*")],
)
def test_hosts_whose_names_differ_in_the_last_number_are_adjacent(pattern: str, label: str) -> None:
    found = grouped([pattern.format(number // 10, number % 10) for number in range(100)])
    assert (found.by, found.labels[0], len(found.labels)) == ("name", label, 10)


def test_without_numbers_in_names_neighbours_are_adjacent() -> None:
    found = grouped([f"node{number:04}" for number in range(1024)])
    assert (found.by, len(found.labels), found.labels[1], found.starts[1]) == ("neighbours", MOST_ROWS, "node0016 …", 16)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=200), st.integers(1, 20))
def test_every_place_is_in_one_group_for_any_names(names: list[str], most: int) -> None:
    found = grouped(names, most=most)
    assert sorted(found.order) == list(range(len(names)))
    assert len(found.labels) == len(found.starts) <= max(most, 1)
    assert found.starts[0] == 0
    assert all(np.diff(found.starts) > 0)
    assert max(found.rows.values()) == len(found.starts) - 1


def test_a_cell_of_groups_shows_their_slowest_pair() -> None:
    names = [f"r{number // 10}n{number % 10}" for number in range(100)]
    bandwidth, _ = drawn(slowed(even(100, names), 37, 52), again=[(37, 52)])
    assert np.argwhere(cell_classes(bandwidth.drawing, 10) == 4).tolist() == [[3, 5]]
    assert "r3n7 to r5n2: 50 %" in texts_in(bandwidth.drawing)
    assert texts_in(bandwidth.drawing)[2:4] == ["r0n*", "r0n*"]
    assert bandwidth.data is not None
    assert bandwidth.data["starts"] == tuple(range(0, 100, 10))
