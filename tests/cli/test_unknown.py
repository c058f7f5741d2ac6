"""The remedy for an option that a command does not have."""

from __future__ import annotations

import argparse

import pytest

from collbench.cli.main import check_words
from collbench.errors import UsageError


def parsers() -> dict[str, argparse.ArgumentParser]:
    found = {name: argparse.ArgumentParser() for name in ("report", "compare", "gate")}
    found["report"].add_argument("--history")
    found["compare"].add_argument("--history")
    found["gate"].add_argument("--baseline")
    found["gate"].add_argument("--base")
    return found


@pytest.mark.parametrize(
    ("command", "word", "remedy"),
    [
        ("gate", "--histroy", "gate has no option --histroy (see"),
        ("report", "--hi", "did you mean --history?"),
        ("report", "--histroy=3", "report has no option --histroy: did you mean --history?"),
        ("gate", "--history", "gate has no option --history: compare and report have it"),
        ("report", "--baseline", "report has no option --baseline: gate has it"),
        ("gate", "basel", "'basel' is an unexpected argument"),
        ("gate", "-x8", "gate has no option -x (see"),
    ],
)
def test_what_may_have_been_meant(command: str, word: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_words(command, [word], parsers())
    assert remedy in str(caught.value)
