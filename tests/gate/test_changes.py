"""Announced changes: what a file may say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gate.changes import Expected, read_expected

GOOD = '[[change]]\nkind = "software"\nwhat = "nccl *"\nreason = "2.30 in week 47"\nreviewer = "ops"\nexpires = 2026-12-01\n'


def test_a_table_for_each_change(tmp_path: Path) -> None:
    (tmp_path / "changes.toml").write_text(GOOD + GOOD.replace("software", "*"))
    first, second = read_expected(tmp_path / "changes.toml")
    assert first == Expected("software", "nccl *", "2.30 in week 47", "ops", date(2026, 12, 1))
    assert second.kind == "*"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has to hold tables [[change]] and nothing else"),
        ("changes = 1", "it has to hold tables [[change]] and nothing else"),
        (GOOD + "more = 1\n", "it has to say kind, what, reason, reviewer, expires, and nothing else"),
        (GOOD.replace('reviewer = "ops"\n', ""), "change 1: it has to say kind, what, reason, reviewer, expires"),
        (GOOD.replace('"ops"', '" "'), "change 1: 'reviewer' is ' ', where words are wanted"),
        (GOOD.replace("2026-12-01", '"2026-12-01"'), "'expires' is 2026-12-01, where a day such as 2027-01-31"),
        (
            GOOD.replace("software", "sofware"),
            "no change is of kind 'sofware': choose from software, environment, topology",
        ),
        ("[[change]", "cannot be read"),
    ],
)
def test_nonsense_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "changes.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_expected(tmp_path / "changes.toml")
    assert told in str(caught.value)
