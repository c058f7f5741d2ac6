"""Wrong data of an operation."""

import pytest

from collbench.operations.data import Mismatch
from tests.helpers import said

WORDS = {
    "wrong data": (lambda: Mismatch(0, 1, 2, "3", "2").sentence(), "rank 0: 1 wrong element, first at 2: wanted 3, got 2"),
    "wrong data with a likely cause": (lambda: Mismatch(1, 5, 17, "3.0", "2.0", "rank 0's share is missing").sentence(),
        "rank 1: 5 wrong elements, first at 17: wanted 3.0, got 2.0 (rank 0's share is missing)"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
