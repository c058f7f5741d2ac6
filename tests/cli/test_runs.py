"""`collbench` alone, `collbench runs`, `collbench report` without a run, and the confirmation of written files."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.report.frame import table_lines
from collbench.report.run_list import newest_run, runs_below, runs_frame
from collbench.report.runs import report_run
from tests.cli.command import ROOT, one_sentence, run, run_here
from tests.cli.test_help import imported
from tests.conftest import needs_plugin
from tests.results.rows import make_row, make_times, store
from tests.stored import stored_reports

STORED = ROOT / "reports"
NAMES = ("first-run", "two-hosts", "pairs-under-load")  # newest last


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with runs/: three stored runs, a damaged one, and a folder without a run."""
    for age, name in zip((300, 200, 100), NAMES, strict=True):
        stored = STORED if (STORED / name).exists() else stored_reports()
        shutil.copytree(stored / name, tmp_path / "runs" / name)
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


def test_runs_are_listed_newest_first_with_the_best_row_beside_folders_that_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "runs" / "loop").symlink_to("loop")
    (folder / "runs" / "private").mkdir()

    def holds(path: Path) -> bool:
        if path.name == "private":
            raise PermissionError(13, "Permission denied")
        return (path / "run.json").is_file()

    monkeypatch.setattr("collbench.report.run_list.holds_a_run", holds)
    found = runs_below(folder / "runs")
    assert [each.path.name for each in found] == ["pairs-under-load", "two-hosts", "first-run"]
    pairs, _, first = found
    assert (first.operation, first.ranks, first.launches, first.cases, first.exit_code) == ("allreduce", 2, 1, 22, 0)
    assert first.best is not None and (first.best.backend, first.best.size_bytes) == ("mpi", 64 << 20)
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


# collbench compare A B: prints a comparison; a slower run is not a failure.


@pytest.mark.contract
def test_a_slower_run_is_not_a_failure(tmp_path: Path) -> None:
    for name, p50 in (("a", 1e-6), ("b", 2e-6)):
        store(tmp_path / name, [make_row(8, time_s=make_times(p50))])
    done = run(tmp_path, "compare", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 inconclusive (one launch each; " in done.stdout
    assert json.loads(run_here(tmp_path, "compare", "a", "b", "--format", "json").stdout)["cells"][0]["outcome"] == "inconclusive"


# `collbench report` with its outputs: where they go, what they import, and errors in one sentence.

FIRST_RUN = str(ROOT / "reports" / "first-run")


@pytest.mark.contract
def test_one_command_writes_all_of_them(tmp_path: Path) -> None:
    words = ("--html", "report.html", "--csv", "summary.csv", "--openmetrics", "rows.prom", "--markdown")
    done = run(tmp_path, "report", FIRST_RUN, *words, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "summary.csv", "rows.prom"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>collbench: MEASURED: allreduce on " in page and page.rstrip().endswith("</html>")
    assert page.count("<figure ") == page.count("<svg ") >= 3
    assert "| allreduce |" in done.stdout and "\nallreduce " not in done.stdout  # Markdown alone, without the table for people
    assert (tmp_path / "summary.csv").read_text().count("\n") == 23
    assert (tmp_path / "rows.prom").read_text().endswith("# EOF\n")
    assert not imported(done.stderr) & {"torch", "mpi4py", "cupy", "pandas"}


@pytest.mark.contract
def test_a_table_needs_no_library_of_charts(tmp_path: Path) -> None:
    done = run(tmp_path, "report", FIRST_RUN, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.stdout.startswith("first-run (22 rows)\n")
    assert not imported(done.stderr) & {"torch", "mpi4py", "cupy", "pandas", "jinja2"}


def test_a_variable_sets_the_option(tmp_path: Path) -> None:
    done = run_here(tmp_path, "report", FIRST_RUN, env={"COLLBENCH_HTML": "", "COLLBENCH_CSV": "-"})
    assert done.stdout.startswith("run,operation,")


def test_the_error_of_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [make_row()])
    with pytest.raises(UsageError, match=r"--html .*page.html "):
        report_run([folder], None, "table", io.StringIO(), html=tmp_path / "no" / "page.html")


@needs_plugin("hunt")
def test_rows_and_a_matrix_of_pairs_are_one_page_but_two_csv_files(tmp_path: Path) -> None:
    out, both = io.StringIO(), [store(tmp_path / "run", [make_row()]), ROOT / "reports" / "pairs-trials" / "host-0"]
    assert report_run(both, None, "table", out, html=tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "42.0 of 50.0 GB/s (84 %)" in page
    assert "cb1h2 " in page and " 50 % " in page
    with pytest.raises(UsageError, match=r"host-0 .*run .*CSV"):
        report_run(both, tmp_path / "both.csv", "table", io.StringIO())


def test_an_imported_run_is_marked_before_its_rows(tmp_path: Path) -> None:
    table = {"file": "a.log", "tool": "osu", "version": "7.4", "program": "osu_allreduce", "statistic": "the mean", "rows": 1}
    folder = store(tmp_path / "run", [make_row(flags=("imported",))], imported={"tables": [table], "missing": ["no interval"]})
    out, err = io.StringIO(), io.StringIO()
    report_run([folder], None, "table", out, err=err)
    first, second = err.getvalue().splitlines()
    assert all(value in first for value in ("osu 7.4", "osu_allreduce", "a.log", "the mean")) and "no interval" in second
    assert "flags: imported 1; " in out.getvalue()
