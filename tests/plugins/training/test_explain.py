"""`explain` has a page for every column of a training."""

import pytest

from collbench.plugins.training import text
from collbench.report.explain import page
from tests.report.test_explain import IDENTITIES

COLUMNS = [*text.step_columns("step"), *text.step_columns("round"), *text.WORKERS]


@pytest.mark.parametrize("word", sorted({column.title for column in COLUMNS} - IDENTITIES))
def test_columns_of_steps(word: str) -> None:
    assert page(word)
