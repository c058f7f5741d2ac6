"""`collbench` alone, `collbench runs`, `collbench report` without a run, and the confirmation of written files."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

from collbench.report.frame import table_lines
from collbench.report.run_list import newest_run, runs_below, runs_frame
from tests.cli.command import ROOT, one_sentence, run_here

STORED = ROOT / "reports"
NAMES = ("first-run", "two-hosts", "pairs-under-load")  # newest last


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with runs/: three stored runs, a damaged one, and a folder without a run."""
    for age, name in zip((300, 200, 100), NAMES, strict=True):
        shutil.copytree(STORED / name, tmp_path / "runs" / name)
        changed = tmp_path.stat().st_mtime - age
        os.utime(tmp_path / "runs" / name / "run.json", (changed, changed))
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "run.json").write_text("{")
    os.utime(tmp_path / "runs" / "damaged" / "run.json", (0, 0))
    (tmp_path / "runs" / "other").mkdir()
    return tmp_path


def test_alone_it_prints_ten_lines_with_the_three_commands(tmp_path: Path) -> None:
    done = run_here(tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, len(lines)) == (0, "", 10)
    assert [line.split()[:2] for line in lines[3:6]] == [["collbench", name] for name in ("check", "allreduce", "report")]
    assert "collbench --help" in done.stdout and not list(tmp_path.iterdir())


def test_runs_are_listed_newest_first_with_the_best_row(folder: Path) -> None:
    found = runs_below(folder / "runs")
    assert [each.path.name for each in found] == ["pairs-under-load", "two-hosts", "first-run"]
    pairs, _, first = found
    assert (first.operation, first.ranks, first.launches, first.cases, first.exit_code) == ("allreduce", 2, 1, 22, 0)
    assert first.best is not None and (first.best.backend, first.best.size_bytes) == ("mpi", 16384)
    assert (pairs.cases, pairs.best) == (0, None)


def test_the_list_has_the_same_values_for_programs(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run_here(folder, "runs", "--format", "csv").stdout)))
    objects = [json.loads(line) for line in run_here(folder, "runs", "--format", "json").stdout.splitlines()]
    assert [row["run"] for row in rows] == [each["run"] for each in objects] == [f"runs/{name}" for name in reversed(NAMES)]
    assert (rows[2]["cases"], objects[2]["cases"], objects[2]["best_operation"]) == ("22", 22, "allreduce")
    assert objects[0]["best_operation"] is None


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_of_the_list_is_wider_than_the_terminal(folder: Path, width: int) -> None:
    assert max(len(line.text) for line in table_lines(runs_frame(runs_below(folder / "runs")), width)) <= width


def test_report_without_a_run_shows_the_newest_and_names_it(folder: Path) -> None:
    assert newest_run(folder / "runs").name == "pairs-under-load"
    os.utime(folder / "runs" / "first-run" / "run.json")
    done = run_here(folder, "report")
    assert done.returncode == 0 and "runs/first-run" in done.stderr
    assert done.stdout == run_here(folder, "report", "runs/first-run").stdout


@pytest.mark.parametrize("command", ["runs", "report", "runs runs/other"])
def test_no_run_is_an_error(command: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    one_sentence(run_here(tmp_path, *command.split()))


def test_written_files_are_confirmed_on_stderr(folder: Path) -> None:
    done = run_here(folder, "report", "runs/first-run", "--csv", "rows.csv", "--markdown", "page.md")
    assert done.stderr.splitlines()[-2:] == ["wrote rows.csv", "wrote page.md"]
    assert "wrote" not in run_here(folder, "report", "runs/first-run", "--csv").stderr
