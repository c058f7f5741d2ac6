"""collbench history, and collbench baseline diff: as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collbench.gate.baseline import add_all
from tests.cli.command import one_sentence, run_here
from tests.gate.allocations import launch
from tests.gate.histories import nights, upgraded


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A baseline of twelve allocations, upgraded in the middle."""
    add_all(tmp_path / "base", upgraded(12, 6, by=1.1))
    return tmp_path


def test_the_history_of_a_baseline(base: Path) -> None:
    done = run_here(base, "history", "base", "--only", "*MiB mpi")
    assert done.returncode == 0 and done.stderr == ""
    first, *rest = done.stdout.splitlines()
    assert first.startswith("base: 12 allocations ") and "2026-11-01" in first and "2026-11-12" in first
    assert sum("night-7, 2026-11-07" in line and "4.3 → 5.0" in line for line in rest) == 5
    assert done.stdout.isascii() is False and "\x1b" not in done.stdout and "█" not in done.stdout


def test_bars_with_colour_and_a_page(base: Path) -> None:
    done = run_here(base, "history", "base", "--only", "allreduce 64 MiB mpi", "--color", "always", "--html", "page.html")
    assert "█" in done.stdout and "\x1b[33m" in done.stdout
    assert (base / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_and_runs_in_a_folder(tmp_path: Path) -> None:
    for number in range(3):
        launch(tmp_path / "runs" / f"run-{number}", {8: 1e-6})
    lines = run_here(tmp_path, "history", "runs", "--format", "json").stdout.splitlines()
    assert [(each["name"], each["time_s"]) for each in map(json.loads, lines)] == [("allreduce 8 B nccl", pytest.approx([1e-6] * 3))]


def test_diff_of_allocations_and_of_baselines(base: Path) -> None:
    done = run_here(base, "baseline", "diff", "base", "night-6", "night-7")
    assert done.returncode == 0 and "4 slower, 0 faster, 10 no change" in done.stdout
    add_all(base / "other", nights(6))
    actual = json.loads(run_here(base, "baseline", "diff", "base", "other", "--format", "json").stdout)
    assert (actual["old"], actual["new"], len(actual["moved"])) == ("base", "other", 19)


def test_bad_input_is_one_sentence(base: Path) -> None:
    assert one_sentence(run_here(base, "history", "nowhere")).startswith("nowhere ")
    assert "'no such case'" in one_sentence(run_here(base, "history", "base", "--only", "no such case"))
    assert "--color 'blue'" in one_sentence(run_here(base, "history", "base", "--color", "blue"))
    assert "choose from night-1" in one_sentence(run_here(base, "baseline", "diff", "base", "night-1", "night-99"))
    assert one_sentence(run_here(base, "baseline", "diff", "base", "nowhere")).startswith("nowhere ")
    assert one_sentence(run_here(base, "baseline", "diff", "base", "a", "b", "c")).startswith("diff ")
