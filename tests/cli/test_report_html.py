"""`collbench report` with its outputs: where they go, what they import, and errors in one sentence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.report.runs import report_run
from tests.cli.command import ROOT, run, run_here
from tests.cli.test_help import imported
from tests.results.rows import make_row, store

FIRST_RUN = str(ROOT / "reports" / "first-run")
PEAK = "7.44 of 27.4 GB/s (27 %) limited by memory copy and sum (measured)"


def test_one_command_writes_all_of_them(tmp_path: Path) -> None:
    words = ("--html", "report.html", "--csv", "summary.csv", "--openmetrics", "rows.prom", "--markdown")
    done = run(tmp_path, "report", FIRST_RUN, *words, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "summary.csv", "rows.prom"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>collbench: first-run</title>" in page and page.rstrip().endswith("</html>")
    assert page.count("<figure ") == page.count("<svg ") >= 3
    assert "| allreduce |" in done.stdout and "\nallreduce " not in done.stdout  # Markdown alone, without the table for people
    assert (tmp_path / "summary.csv").read_text().count("\n") == 23
    assert (tmp_path / "rows.prom").read_text().endswith("# EOF\n")
    assert not imported(done.stderr) & {"torch", "mpi4py", "cupy", "pandas"}


def test_a_table_needs_no_library_of_charts(tmp_path: Path) -> None:
    done = run(tmp_path, "report", FIRST_RUN, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.stdout.startswith("first-run (22 rows)\n")
    assert not imported(done.stderr) & {"torch", "mpi4py", "cupy", "pandas", "matplotlib", "jinja2", "prometheus_client"}


def test_a_variable_sets_the_option(tmp_path: Path) -> None:
    done = run_here(tmp_path, "report", FIRST_RUN, env={"COLLBENCH_HTML": "", "COLLBENCH_CSV": "-"})
    assert done.stdout.startswith("run,operation,")


def test_the_error_of_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [make_row()])
    with pytest.raises(UsageError, match=r"--html .*page.html "):
        report_run([folder], None, "table", io.StringIO(), html=tmp_path / "no" / "page.html")


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
