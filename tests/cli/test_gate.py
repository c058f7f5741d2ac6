"""collbench gate --self-test: the table, its formats, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import one_sentence, run_here


def test_the_table_has_a_line_for_each_thing_done(tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("336 cells; baseline: 6 allocations of 3 launches; candidate: three allocations of 5 launches")
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "nothing", "one cell of large messages slower by 5 %", "one cell of large messages slower by 10 %",
        "one group of large messages slower by 2 %", "one group of large messages slower by 5 %", "all cells slower by 2 %",
    ]  # fmt: skip
    assert "false alarms" in lines[2]


def test_json_has_the_counts(tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4", "--format", "json")
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["done"], first["wanted"], first["trials"]) == ("nothing", False, 4)
    assert first["percent"] == 25 * first["found"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--allocations", "3"], "--allocations 3: with fewer than 4 the gate gives no verdict; say 4 or more"),
        (["--trials", "99999999"], "at most 1,000,000 --trials"),
        (["--seed", "-1"], "a --seed from 0 on"),
        (["--noise", "nowhere.toml"], "--noise nowhere.toml cannot be read (No such file or directory): name a TOML file"),
    ],
)
def test_what_makes_no_trial_is_refused(tmp_path: Path, words: list[str], told: str) -> None:
    assert told in one_sentence(run_here(tmp_path, "gate", "--self-test", *words))
