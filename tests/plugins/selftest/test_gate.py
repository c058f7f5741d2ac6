"""collbench gate --self-test: the table, side by side, under harsher noise, and with the noise of a baseline."""

import json
from pathlib import Path

import numpy as np
import pytest

from collbench.analysis.launches import case_of
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.gating.baseline import add_all
from tests.cli.command import Finished, one_sentence, run_here
from tests.results.rows import make_row


def test_the_table_and_json_have_each_simulated_change(tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("336 ") and "6 allocations of 3 launches" in lines[0]
    assert len(lines) == 2 + 8 and "false alarms" in lines[2]
    done = run_here(tmp_path, "gate", "--self-test", "--trials", "4", "--format", "json")
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["done"], first["wanted"], first["trials"]) == ("nothing", False, 4)
    assert first["percent"] == 25 * first["found"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a baseline of five allocations of two launches and three large cases; three have a fourth case."""
    random = np.random.default_rng(0)
    cases = [case_of(make_row(64 << 20 << power)) for power in range(4)]
    add_all(tmp_path / "good", [
        Allocation(
            f"good-{number}", f"2026-11-1{number}", 2, 0, (6e-8, 6e-8), {},
            {case: CaseTimes(tuple(1e-3 * random.normal(1, 0.003, 2))) for case in cases[: 3 if number < 2 else 4]},
        )
        for number in range(5)
    ])  # fmt: skip
    return tmp_path


def tried(folder: Path, *words: str) -> Finished:
    return run_here(folder, "gate", "--self-test", "--trials", "2", *words)


def test_side_by_side_and_harsher_noise(tmp_path: Path) -> None:
    lines = tried(tmp_path, "--paired").stdout.splitlines()
    assert lines[0].startswith("336 ") and "5 pairs" in lines[0]
    assert len(lines) == 10
    found = [json.loads(line) for line in tried(tmp_path, "--noise", "missing", "--format", "json").stdout.splitlines()]
    assert [each["trials"] for each in found] == [2] * 8


def test_the_noise_of_a_baseline(folder: Path) -> None:
    done = tried(folder, "--baseline", "good")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("3 ") and "5 allocations of 2 launches" in lines[0]
    assert lines[2].split()[:3] == ["nothing", "false", "alarms"]
    assert "10 launches of 5 recorded allocations" in lines[-2] and lines[-1].startswith("1 ")
    found = [json.loads(line) for line in tried(folder, "--baseline", "good", "--paired", "--format", "json").stdout.splitlines()]
    assert [each["wanted"] for each in found[:2]] == [False, True]
    (folder / "short").mkdir()
    (folder / "good" / "good-1.allocation.jsonl").rename(folder / "short" / "good-1.allocation.jsonl")
    assert "short has 1 " in one_sentence(tried(folder, "--baseline", "short"))
