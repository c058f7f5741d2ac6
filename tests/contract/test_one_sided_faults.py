"""What never reaches a window, reaches it in part or at another place, or is added twice, is found; so are a neighbour's wrong parts."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collbench.operations.builtin.neighbors import NEIGHBOR_ALLTOALL
from tests.contract.launch import launch
from tests.helpers import make_place, sent

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.long  # a launch of its own
COUNT = 60
FAULTY = (
    "silent_put", "half_put", "shifted_put", "silent_get", "silent_accumulate", "twice_accumulated", "silent_neighbors", "turned_neighbors",
)  # fmt: skip
RIGHT = ("put_latency", "get_latency", "accumulate", "neighbor_allgather", "neighbor_alltoall")


@cache
def launched():
    sweep = {"operations": [*FAULTY, *RIGHT], "sizes": [4 * COUNT], "dtypes": ["float32"], "buffers": "fixed"}
    with TemporaryDirectory() as folder:
        return launch(Path(folder), "mpi", 2, [sweep])


def row(name):
    return next(row for row in launched().rows if row.operation == name)


def test_wrong_data_ends_with_4_and_what_is_right_stays_right():
    assert launched().code == 4, launched().stderr
    assert {name: (row(name).na, row(name).checked, row(name).wrong) for name in RIGHT} == dict.fromkeys(RIGHT, (None, 1, 0))


@pytest.mark.parametrize(("name", "wrong", "detail"), [
    ("silent_put", COUNT, rf"rank 1: {COUNT} wrong elements, first at 0: .*\(nothing arrived there\)"),
    ("half_put", COUNT // 2, rf"rank 1: {COUNT // 2} wrong elements, first at {COUNT // 2}: .*\(nothing arrived there\)"),
    ("silent_get", COUNT, rf"rank 0: {COUNT} wrong elements, first at 0: .*\(nothing arrived there\)"),
    ("silent_accumulate", COUNT, r".*share is missing\)"),
    ("twice_accumulated", COUNT, r".*"),
    ("silent_neighbors", 2 * COUNT, r".*\(nothing arrived there\).*\(nothing arrived there\).*"),
])  # fmt: skip
def test_what_never_arrived_or_came_twice_is_found_where_it_should_have(name, wrong, detail):
    assert row(name).wrong == wrong
    assert re.fullmatch(detail, row(name).wrong_detail)


def test_a_put_to_another_place_is_found():
    digits = sent(NEIGHBOR_ALLTOALL, make_place(0, 2, COUNT // 2, redop=None))
    assert row("shifted_put").wrong == 1 + np.count_nonzero(digits[1:] != digits[:-1])  # the last element never came


def test_the_wrong_part_of_a_neighbours_is_found():
    """The first part, which is for the rank before, came to the next one, too."""
    parts = [sent(NEIGHBOR_ALLTOALL, make_place(rank, 2, COUNT // 2, redop=None)).reshape(2, -1) for rank in (0, 1)]
    assert row("turned_neighbors").wrong == sum(np.count_nonzero(first != second) for first, second in parts) > 0
