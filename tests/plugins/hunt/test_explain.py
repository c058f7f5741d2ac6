"""`explain` has a page for every word of pairs and hunts."""

import pytest

from collbench.plugins.hunt import pairs_text
from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.recommendation import CODES
from collbench.plugins.hunt.text import SUSPECTS
from collbench.report.explain import page, pages, plain
from tests.report.test_explain import IDENTITIES


@pytest.mark.parametrize("word", sorted({*pairs_text.TITLES, *pairs_text._TITLES} - IDENTITIES))
def test_columns_of_pairs(word: str) -> None:
    assert page(word)


@pytest.mark.parametrize("word", [value.name for kind in (SUSPECTS, DIRECTED_PAIRS) for value in kind.values])
def test_columns_for_programs(word: str) -> None:
    assert page(word)


@pytest.mark.parametrize("word", [*CODES, CLEARED, CONFIRMED, INCONCLUSIVE])
def test_words_of_a_hunt(word: str) -> None:
    assert plain(word) in {plain(name) for each in pages() for name in (each.word, *each.names)}
