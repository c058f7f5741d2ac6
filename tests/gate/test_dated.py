"""The allocations of a history: a baseline, or runs in a folder, in the order of their start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.gate.baseline import add_all
from collbench.gate.history import dated_in
from tests.gate.allocations import launch, launches
from tests.gate.histories import nights


def began(run: Path, value: Any) -> Path:
    """Set the start of a run, and return it."""
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "started_utc": value}))
    return run


def test_a_baseline(tmp_path: Path) -> None:
    add_all(tmp_path / "base", nights(10))
    found, notes = dated_in(tmp_path / "base")
    assert [each.name for each in found] == [f"night-{number}" for number in range(1, 11)]
    assert notes == []


def test_another_state_of_the_machine_is_noted(tmp_path: Path) -> None:
    allocations = nights(6)
    add_all(tmp_path / "base", [*allocations[:5], replace(allocations[5], canary_s=(6e-8, 2.6e-7, 6e-8))])
    (note,) = dated_in(tmp_path / "base")[1]
    assert note.startswith("night-6: ") and "state probe" in note


def test_runs_and_folders_of_launches(tmp_path: Path) -> None:
    began(launch(tmp_path / "z", {8: 1e-6}, "first"), "2026-11-01T03:00:00+00:00")
    for run in sorted(launches(tmp_path / "a", "second", {8: 1e-6}, {8: 1e-6}).iterdir()):
        began(run, f"2026-11-02T0{run.name[-1]}:00:00+00:00")
    (tmp_path / "notes").mkdir()
    found, notes = dated_in(tmp_path)
    assert [(each.name, each.launches) for each in found] == [("first", 1), ("second", 2)]
    assert len(notes) == 1 and notes[0].startswith("2 allocations: ")
    assert [each.name for each in dated_in(tmp_path / "a")[0]] == ["second"]


def test_unreadable_runs_are_left_out_with_a_note(tmp_path: Path) -> None:
    launch(tmp_path / "good", {8: 1e-6}, "good")
    (launches(tmp_path / "torn", "torn", {8: 1e-6}) / "launch-2").mkdir()
    found, notes = dated_in(tmp_path)
    assert [each.name for each in found] == ["good"]
    assert notes[0].startswith("left out: ") and "launch-2" in notes[0]


def test_undated_and_wrong_runs_are_noted(tmp_path: Path) -> None:
    began(launch(tmp_path / "undated", {8: 1e-6}, "undated"), None)
    launch(tmp_path / "wrong", {8: 1e-6}, "wrong", wrong=3)
    found, notes = dated_in(tmp_path)
    assert [each.name for each in found] == ["wrong"]
    assert [note.split(": ")[0] for note in notes[:2]] == ["undated", "wrong"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: None, "there "),
        (lambda folder: folder.mkdir(), "neither"),
        (lambda folder: began(launch(folder, {8: 1e-6}), "soon"), "no allocation"),
        (lambda folder: (launches(folder, "torn", {8: 1e-6}) / "launch-2").mkdir(), "launch-2"),
    ],
)
def test_a_folder_without_a_history_is_rejected(tmp_path: Path, made: Any, words: str) -> None:
    made(tmp_path / "there")
    with pytest.raises(UsageError, match=words):
        dated_in(tmp_path / "there")
