"""collbench gate: verdicts as a user gets them; the self-test's table, its formats; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import one_sentence, run_here
from tests.gate.allocations import launch


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


def night(folder: Path, name: str, factor: float = 1.0) -> str:
    return str(launch(folder / name, {8: 1e-6, 64 << 20: 0.1 * factor}))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder with a baseline of six allocations."""
    assert run_here(tmp_path, "baseline", "add", "base", *(night(tmp_path, f"good-{n}") for n in range(6))).returncode == 0
    return tmp_path


def test_the_gates_whole_way(good: Path) -> None:
    done = run_here(good, "gate", "--baseline", "base", night(good, "same"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "passed")
    first = run_here(good, "gate", "--baseline", "base", "--confirm-suite", "confirm.toml", night(good, "new-1", 1.1))
    assert first.returncode == 3
    assert first.stdout.splitlines() == [
        "no verdict",
        "  suspected: 1; measure those again in 2 fresh allocations, and judge all together",
        "judged: new-1; baseline base: 6 allocations, 2 cells with a history",
        "suspected: allreduce 64 MiB nccl: time × 1.100; by chance up to × 1.020",
    ]
    assert "sizes = [67108864]" in (good / "confirm.toml").read_text()
    nights = ["new-1", night(good, "new-2", 1.09), night(good, "new-3", 1.11)]
    last = run_here(good, "gate", "--baseline", "base", "--out", "verdict.json", *nights)
    assert (last.returncode, last.stdout.splitlines()[0]) == (1, "regression: 1 confirmed")
    verdict = json.loads((good / "verdict.json").read_text())
    assert (verdict["schema"], verdict["result"], verdict["exit_code"]) == (1, "regression", 1)
    assert verdict["suspicions"][0]["cell"]["size_bytes"] == 64 << 20


def test_json_is_the_verdict(good: Path) -> None:
    done = run_here(good, "gate", "--baseline", "base", "--format", "json", night(good, "new"))
    assert json.loads(done.stdout)["candidates"] == ["new"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a baseline and runs (collbench gate --baseline DIR RUN…), --paired OLD… NEW…, --verdict FILE, or --self-test"),
        (["--baseline", "base"], "name a baseline and runs"),
        (["--baseline", "nowhere", "good-0"], "nowhere is not a baseline"),
        (["--baseline", "base", "good-0"], "allocation good-0 is in the baseline base: it cannot be judged by itself"),
        (["--self-test", "good-0"], "--self-test makes up what it judges: leave out --paired, --verdict and the runs"),
        (["--baseline", "base", "--expect", "none.toml", "good-0"], "--expect none.toml cannot be read"),
    ],
)
def test_what_cannot_be_judged_is_refused(good: Path, words: list[str], told: str) -> None:
    assert told in one_sentence(run_here(good, "gate", *words))
