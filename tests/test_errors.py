"""An error stays readable with any text that it quotes."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from collbench.errors import Interrupted, PeerFailed, UsageError, code_of_signal


@pytest.mark.parametrize("make", [UsageError, PeerFailed])
def test_a_long_sentence_is_shortened_in_its_middle(make: type[Exception]) -> None:
    text = str(make(f"suite.toml: '{'no' * 200_000}' is unknown: choose from name, sizes"))
    assert len(text) == 8003
    assert text.startswith("suite.toml: 'nono") and text.endswith("choose from name, sizes") and " … " in text
    assert str(make("a short one")) == "a short one"


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143), (SIGHUP, 143)])
def test_the_exit_code_after_a_signal(number: int, code: int) -> None:
    assert (code_of_signal(number), Interrupted(number).exit_code) == (code, code)
