"""Several runs of hunts and of training traffic in one report: each whole, and a CSV with one header for those of a kind."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.report.runs import report_run
from collbench.results.folder import HUNT, RunFolder
from tests.report.test_hunt import SICK, about
from tests.report.test_hunt import text_of as hunt_text
from tests.report.test_workload import ROW, stored
from tests.report.test_workload import text_of as steps_text
from tests.results.test_rounds import a_round


def hunted(path: Path) -> Path:
    folder = RunFolder.create(path, "hunt", {"hunt": about(SICK)})
    folder.append_round(a_round().as_json(), HUNT)
    folder.finish(exit_code=1)
    return path


def records(text: str) -> str:
    """Without the header."""
    return text.split("\n", 1)[1]


def as_csv(*runs: Path) -> str:
    out = io.StringIO()
    report_run(runs, None, "csv", out, err=io.StringIO())
    return out.getvalue()


HUNTED, AGAIN = (hunt_text(about(SICK), "csv", run=name) for name in "ab")
STEPS = steps_text(ROW, format="csv", run="steps")


@pytest.fixture
def hunts(tmp_path: Path) -> list[Path]:
    return [hunted(tmp_path / "a"), hunted(tmp_path / "b")]


def test_several_hunts_have_one_header(hunts: list[Path], tmp_path: Path) -> None:
    assert records(HUNTED) and as_csv(*hunts) == HUNTED + records(AGAIN)
    assert report_run(hunts, tmp_path / "hunts.csv", "table", io.StringIO(), err=io.StringIO()) == 0
    assert (tmp_path / "hunts.csv").read_bytes().decode() == HUNTED + records(AGAIN)


def test_a_kind_after_another_has_its_own_header(hunts: list[Path], tmp_path: Path) -> None:
    steps = stored(tmp_path / "steps", ROW)
    assert as_csv(hunts[0], steps, hunts[1]) == HUNTED + STEPS + AGAIN


def test_a_run_without_a_row_leaves_the_header_to_the_next(tmp_path: Path) -> None:
    other = replace(ROW, backend="mpi")
    runs = [stored(tmp_path / "a"), stored(tmp_path / "b", ROW), stored(tmp_path / "c", other)]
    assert as_csv(*runs) == steps_text(ROW, format="csv", run="b") + records(steps_text(other, format="csv", run="c"))
