"""Rows of a resumed run: how many launches measured them, and that every command that shows them reports it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.launches import rows_by_launch, sentence
from collbench.report.compare import FORMATS as COMPARED
from collbench.report.compare import compare_runs
from collbench.report.progress import FORMATS as REPORTED
from collbench.report.runs import report_run
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from tests.results.rows import make_row

ROWS = [make_row(8 << step) for step in range(5)]
TOLD = "its 5 rows are of 2 launches: 3 + 2; an interval covers one launch, and different launches may differ by more"


def _resumed(path: Path, at: int | None) -> Path:
    """A run of five rows that broke off after so many."""
    folder = RunFolder.create(path, "allreduce", {"allocation_id": "7"})
    for place, row in enumerate(ROWS):
        if place == at:
            folder.give_up()
            folder = RunFolder.reopen(path)
            folder.rows = place
            folder.go_on()
            folder.resumed(allocation_id="7")
        folder.append(row, {})
    folder.finish(exit_code=0)
    return path


@pytest.mark.parametrize(
    ("notes", "rows"),
    [
        (None, [5]), ([], [5]), ([{"rows": 3}], [3, 2]), ([{"rows": 1}, {"rows": 3}], [1, 2, 2]),
        ([{"rows": 0}], [5]), ([{"rows": 5}], [5]), ([{"rows": 3}, {"rows": 3}], [3, 2]),
        ([{"rows": 3}, {"rows": 2}], [0, 0, 0]), ([{"rows": "3"}], [0, 0]), ([{"rows": 9}], [0, 0]), ([{}], [0, 0]),
        ("yes", [5]), ([7], [5]),
    ],
)  # fmt: skip
def test_rows_are_of_the_launch_that_measured_them(notes: Any, rows: list[int]) -> None:
    assert rows_by_launch(Run(Path("run"), {"resumed": notes}, ROWS)) == rows


def test_what_is_not_known_is_not_reported_and_allocations_are(tmp_path: Path) -> None:
    run = read_run(_resumed(tmp_path / "run", 3))
    assert sentence(run) == f"{run.path} was resumed: {TOLD}"
    strange = replace(run, info={**run.info, "resumed": [{}]})
    assert "of 2 launches; " in str(sentence(strange))
    elsewhere = replace(run, info={**run.info, "resumed": [{"rows": 3, "allocation_id": "8"}]})
    assert "of 2 launches in 2 allocations: 3 + 2;" in str(sentence(elsewhere))
    assert sentence(read_run(_resumed(tmp_path / "other", None))) is None


@pytest.mark.parametrize("format", REPORTED)
def test_every_report_shows_it(tmp_path: Path, format: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    report_run([_resumed(tmp_path / "run", 3)], None, format, out, err=err)
    assert err.getvalue() == f"{tmp_path / 'run'} was resumed: {TOLD}\n"
    assert ("run (5 rows, resumed: 2 launches)" in out.getvalue()) is (format == "table")


@pytest.mark.parametrize("format", COMPARED)
def test_every_comparison_shows_it(tmp_path: Path, format: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    compare_runs(_resumed(tmp_path / "a", None), _resumed(tmp_path / "b", 3), format, out, err=err)
    assert err.getvalue() == f"{tmp_path / 'b'} was resumed: {TOLD}\n"
    assert ("B: b (1 launch, resumed)" in out.getvalue()) is (format in ("table", "markdown"))


def test_launches_put_together_report_it_of_the_one_that_was(tmp_path: Path) -> None:
    runs = [_resumed(tmp_path / f"launch-{number}", 3 if number == 2 else None) for number in (1, 2)]
    for run in runs:
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, "id": run.name, "started_utc": run.name}))
    out, err = io.StringIO(), io.StringIO()
    report_run([tmp_path], None, "table", out, err=err)
    assert err.getvalue() == f"{tmp_path / 'launch-2'} was resumed: {TOLD}\n"
    assert "(2 launches, 5 rows, 1 resumed)" in out.getvalue()
