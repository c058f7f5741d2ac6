"""collbench gate --self-test: side by side, under harsher noise, and on what a baseline recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from collbench.analysis.launches import case_of
from collbench.gate.allocation import Allocation, CaseTimes
from collbench.gate.baseline import add_all
from tests.cli.command import Finished, one_sentence, run_here
from tests.results.rows import make_row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a baseline of five allocations with two launches of three large cases, and one of the five lacks a fourth."""
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


def test_side_by_side(tmp_path: Path) -> None:
    lines = tried(tmp_path, "--paired").stdout.splitlines()
    assert lines[0].startswith("336 cases; an old and a new stack interleaved, 5 pairs of launches in each of two allocations; only what")
    assert len(lines) == 10


def test_harsher_noise_by_name(tmp_path: Path) -> None:
    found = [json.loads(line) for line in tried(tmp_path, "--noise", "missing", "--format", "json").stdout.splitlines()]
    assert [each["trials"] for each in found] == [2] * 8


def test_of_what_a_baseline_recorded(folder: Path) -> None:
    done = tried(folder, "--baseline", "good")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("3 cases; baseline: 5 allocations of 2 launches; candidate: three allocations of 5 launches")
    assert lines[2].split()[:3] == ["nothing", "false", "alarms"]
    assert lines[-2:] == [
        "drawn from 10 launches of 5 recorded allocations: what is rarer than one of 10 launches is not in it, nor whether the cluster "
        "drifts; few allocations overstate false alarms",
        "1 case left out: fewer than four allocations have it",
    ]


def test_of_what_a_baseline_recorded_as_json_side_by_side(folder: Path) -> None:
    found = [json.loads(line) for line in tried(folder, "--baseline", "good", "--paired", "--format", "json").stdout.splitlines()]
    assert [each["done"] for each in found[:2]] == ["nothing", "one case of large messages slower by 5 %"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--baseline", "good", "--noise", "drift"], "omit one of them"),
        (["--paired", "--allocations", "6"], "--self-test --paired uses no baseline: omit --allocations"),
        (["--format", "github"], "--self-test does not support --format github: choose table or json"),
        (["--baseline", "nowhere"], "nowhere is not a baseline"),
        (["--baseline", "short"], "short has 1 allocation of 2 launches or more: 4 are needed to see how they scatter"),
        (["good"], "--self-test simulates its runs: omit --verdict and the runs"),
        (["--noise", "calm"], "name a TOML file, or one of bimodal, drift, harsh, missing, wander"),
    ],
)
def test_what_makes_no_trial_is_refused(folder: Path, words: list[str], told: str) -> None:
    (folder / "short").mkdir()
    (folder / "good" / "good-1.allocation.jsonl").rename(folder / "short" / "good-1.allocation.jsonl")
    assert told in one_sentence(tried(folder, *words))
