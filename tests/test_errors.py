"""A sentence stays one that can be read, whatever it quotes."""

from __future__ import annotations

import pytest

from collbench.errors import PeerFailed, UsageError


@pytest.mark.parametrize("make", [UsageError, PeerFailed])
def test_of_a_sentence_that_quotes_too_much_the_middle_is_left_out(make: type[Exception]) -> None:
    text = str(make(f"suite.toml: '{'no' * 200_000}' is unknown: choose from name, sizes"))
    assert len(text) == 8003
    assert text.startswith("suite.toml: 'nono") and text.endswith("nono' is unknown: choose from name, sizes") and " … " in text
    assert str(make("a short one")) == "a short one"
