"""Folders of launches of two stacks, read as pairs."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gate.paired import judge_paired, side_by_side
from tests.results.rows import make_row, make_times, store

SIZE = 64 << 20


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing to the disk: it takes nearly all of the time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


def launches(folder: Path, allocation: str, slower: float = 1.0) -> tuple[Path, Path]:
    """Store five interleaved launches of an old and of a new stack."""
    for number in range(5):
        for second, (stack, factor) in enumerate((("old", 1.0), ("new", slower))):
            store(
                folder / allocation / stack / f"launch-{number + 1}",
                [make_row(SIZE, time_s=make_times(1e-3 * (1 + number) * factor))],
                allocation_id=allocation, collbench="0.1.0", backends={"nccl": {"version": stack}},
                started_utc=f"2026-11-20T10:{2 * number + second:02d}:00Z",
            )  # fmt: skip
    return folder / allocation / "old", folder / allocation / "new"


def edit(run: Path, **changes: object) -> None:
    info = {**json.loads((run / "run.json").read_text()), **changes}
    (run / "run.json").write_text(json.dumps(info))


def test_folders_of_launches_are_judged(tmp_path: Path) -> None:
    first, second = (launches(tmp_path, name, 1.1) for name in "ab")
    verdict = judge_paired([first[0], second[0]], [first[1], second[1]], (), date(2026, 11, 21))
    assert (verdict.result, verdict.baseline) == ("regression", f"{first[0]}, {second[0]}")
    assert verdict.suspicions[0].factors == pytest.approx((1.1, 1.1))
    assert [(each.before, each.after) for each in verdict.changes] == [("old", "new")]


def test_launches_are_paired_by_their_start_not_by_their_number(tmp_path: Path) -> None:
    old, new = launches(tmp_path, "a")
    (new / "launch-1").rename(new / "launch-9")
    (both,) = side_by_side([old], [new])
    assert both.order.tolist() == [[0, 1, 2, 3, 4], [4, 0, 1, 2, 3]]
    assert both.differences(list(both.old.cases))[:, 0] == pytest.approx([0] * 5)


def test_a_launch_counts_once(tmp_path: Path) -> None:
    old, _ = launches(tmp_path, "a")
    with pytest.raises(UsageError, match="twice"):
        side_by_side([old], [old])


def test_an_allocation_counts_once(tmp_path: Path) -> None:
    first, second = launches(tmp_path, "a"), launches(tmp_path, "b")
    for launch in (launch for stack in second for launch in stack.iterdir()):
        edit(launch, allocation_id="a", id=f"b-{launch.parent.name}-{launch.name}")
    with pytest.raises(UsageError, match="--paired: allocation a "):
        side_by_side([first[0], second[0]], [first[1], second[1]])


def test_a_folder_is_of_one_allocation(tmp_path: Path) -> None:
    old, new = launches(tmp_path, "a")
    edit(new / "launch-5", allocation_id="b")
    with pytest.raises(UsageError, match=r"new .*\(a, b\)"):
        side_by_side([old], [new])


@pytest.mark.parametrize("text", ["", "[1]", "[" * 5000, '{"started_utc": 7}'])
def test_a_launch_with_an_invalid_run_json_is_rejected(tmp_path: Path, text: str) -> None:
    old, new = launches(tmp_path, "a")
    (new / "launch-2" / "run.json").write_text(text)
    with pytest.raises(UsageError):
        side_by_side([old], [new])
