"""What a history is made of: a baseline, or runs in a folder, in the order in which they began."""

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


def began(run: Path, told: Any) -> Path:
    """The run, with that start."""
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "started_utc": told}))
    return run


def test_a_baseline(tmp_path: Path) -> None:
    add_all(tmp_path / "base", nights(10))
    found, notes = dated_in(tmp_path / "base")
    assert [each.name for each in found] == [f"night-{number}" for number in range(1, 11)]
    assert notes == []


def test_another_state_of_the_machine_is_told(tmp_path: Path) -> None:
    allocations = nights(6)
    add_all(tmp_path / "base", [*allocations[:5], replace(allocations[5], canary_s=(6e-8, 2.6e-7, 6e-8))])
    (note,) = dated_in(tmp_path / "base")[1]
    assert note == "night-6: some launches ran in another machine state (state probe more than 20 % off the others')"


def test_runs_and_folders_of_launches(tmp_path: Path) -> None:
    began(launch(tmp_path / "z", {8: 1e-6}, "first"), "2026-11-01T03:00:00+00:00")
    for run in sorted(launches(tmp_path / "a", "second", {8: 1e-6}, {8: 1e-6}).iterdir()):
        began(run, f"2026-11-02T0{run.name[-1]}:00:00+00:00")
    (tmp_path / "notes").mkdir()
    found, notes = dated_in(tmp_path)
    assert [(each.name, each.launches) for each in found] == [("first", 1), ("second", 2)]
    assert notes == ["2 allocations: a change is detected with at least 6, 3 before it and 3 after"]
    assert [each.name for each in dated_in(tmp_path / "a")[0]] == ["second"]


def test_what_cannot_be_read_is_left_out_and_told(tmp_path: Path) -> None:
    launch(tmp_path / "good", {8: 1e-6}, "good")
    (launches(tmp_path / "torn", "torn", {8: 1e-6}) / "launch-2").mkdir()
    found, notes = dated_in(tmp_path)
    assert [each.name for each in found] == ["good"]
    assert notes[0].startswith("left out: ") and "launch-2 cannot be read" in notes[0]


def test_what_is_no_good_evidence_is_told(tmp_path: Path) -> None:
    began(launch(tmp_path / "undated", {8: 1e-6}, "undated"), None)
    launch(tmp_path / "wrong", {8: 1e-6}, "wrong", wrong=3)
    found, notes = dated_in(tmp_path)
    assert [each.name for each in found] == ["wrong"]
    assert notes[:2] == ["undated: no start time; left out", "wrong: wrong data"]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda folder: None, "cannot be read"),
        (lambda folder: folder.mkdir(), "holds neither allocations of a baseline nor runs"),
        (lambda folder: began(launch(folder, {8: 1e-6}), "soon"), "no allocation has a"),
        (lambda folder: (launches(folder, "torn", {8: 1e-6}) / "launch-2").mkdir(), "launch-2 cannot be read"),
    ],
)
def test_nothing_to_tell_is_one_sentence(tmp_path: Path, made: Any, told: str) -> None:
    made(tmp_path / "there")
    with pytest.raises(UsageError, match=told):
        dated_in(tmp_path / "there")
