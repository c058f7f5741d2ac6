"""Wrong data of an operation."""

from collbench.operations.data import Mismatch
from tests.helpers import SENTENCES, check_sentences

WORDS = {
    "wrong data": lambda: Mismatch(0, 1, 2, "3", "2").sentence(),
    "wrong data with a likely cause": lambda: Mismatch(1, 5, 17, "3.0", "2.0", "rank 0's share is missing").sentence(),
}


def test_the_words_of_messages():
    check_sentences(SENTENCES / "operations.txt", WORDS)
