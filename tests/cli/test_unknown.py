"""The remedy for an option that a command does not have."""

from __future__ import annotations

import pytest

from collbench.cli.main import check_words
from collbench.cli.parser import Parser
from collbench.errors import UsageError


def parsers() -> dict[str, Parser]:
    found = {name: Parser() for name in ("report", "compare", "gate")}
    found["report"].add_argument("--history")
    found["compare"].add_argument("--history")
    found["gate"].add_argument("--baseline")
    found["gate"].add_argument("--base")
    return found


@pytest.mark.parametrize(("command", "word", "remedy"), [
    ("gate", "--histroy", "--histroy (see"), ("report", "--hi", "did you mean --history?"),
    ("report", "--histroy=3", "did you mean --history?"), ("gate", "--history", "--history: compare and report "),
    ("report", "--baseline", "--baseline: gate "), ("gate", "basel", "'basel'"), ("gate", "-x8", "-x (see"),
])  # fmt: skip
def test_the_error_has_the_similar_option_or_the_command_that_has_it(command: str, word: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_words(command, [word], parsers())
    assert remedy in str(caught.value)
