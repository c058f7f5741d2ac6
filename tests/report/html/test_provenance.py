"""Where the numbers come from: commands, versions, differences, links that are safe to click."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from collbench.report.html.chart import Section, Table
from collbench.report.html.provenance import section
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.results.rows import make_row, store


def shown(page: Path, *runs: Path) -> Section:
    return section(Material([read_run(run) for run in runs], page))


def stored(folder: Path, rows: list[Row] | None = None, **info: Any) -> Path:
    return store(folder, rows or [make_row()], **{"command": ["collbench", "allreduce"], "allocation_id": folder.name, **info})


def table(made: Section, caption: str) -> Table:
    return next(table for title, table in made.tables if title.startswith(caption))


def test_each_run_shows_what_was_typed_and_how_it_ended(tmp_path: Path) -> None:
    done = stored(
        tmp_path / "done", command=["collbench", "allreduce", "--sizes", "8 B"], launcher="srun", hosts=["n2", "n1"], rank_map=[{}, {}]
    )
    broken = RunFolder.create(tmp_path / "broken", "allreduce", {})
    broken.append(make_row(), {})
    runs = table(shown(tmp_path / "page.html", done, broken.path), "Runs")
    (_, command, *_, rows, end), last = runs.rows
    assert (command, rows, end) == ("collbench allreduce --sizes '8 B'", "1", "complete")
    assert last[-1] == "not finished"
    assert runs.marks == {1: "doubtful"}


def test_versions_and_environment_of_one_run_and_definitions_of_its_numbers(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", backends={"mpi": {"mpi": "MPICH 5.0"}}, environment={"UCX_TLS": "tcp", "HOME": "/root"})
    rows = table(shown(tmp_path / "page.html", run), "Versions").rows
    assert ["software", "mpi mpi", "MPICH 5.0"] in rows
    assert ["environment", "UCX_TLS", "tcp"] in rows
    assert all("HOME" not in row for row in rows)
    terms = [row[0] for row in table(shown(tmp_path / "page.html", stored(tmp_path / "run")), "Definitions").rows]
    assert terms == ["time", "95 % interval", "busbw", "of expected"]


def test_several_runs_show_what_differs_and_equal_ones_that_nothing_does(tmp_path: Path) -> None:
    before = stored(tmp_path / "before", backends={"mpi": {"mpi": "MPICH 4.3"}})
    after = stored(tmp_path / "after", backends={"mpi": {"mpi": "MPICH 5.0"}}, environment={"UCX_TLS": "tcp"})
    made = shown(tmp_path / "page.html", before, after)
    differing = table(made, "Differences: before → after")
    assert differing.head == ("kind", "what", "before", "after")
    assert ["software", "mpi mpi", "MPICH 4.3", "MPICH 5.0"] in differing.rows
    assert ["environment", "UCX_TLS", "–", "tcp"] in differing.rows
    assert ["software", "mpi mpi", "MPICH 4.3"] in table(made, "Versions, machine and environment of the first run").rows
    one, other = (stored(tmp_path / name, backends={"mpi": {"mpi": "MPICH 5.0"}}) for name in ("one", "other"))
    made = shown(tmp_path / "page.html", one, other)
    assert table(made, "Differences").rows == [["none", "in what the runs recorded", "–", "–"]]


def test_links_are_relative_encoded_and_only_to_what_exists(tmp_path: Path) -> None:
    run = stored(tmp_path / "runs" / 'a "b" #1?\u00fc')
    ((caption, links),) = shown(tmp_path / "pages" / "page.html", run).links
    assert caption == 'a "b" #1?\u00fc'
    assert [link.text.split(" ")[0] for link in links] == ["run.json", "cells.jsonl"]
    assert links[0].address == "../runs/a%20%22b%22%20%231%3F%C3%BC/run.json"
    assert (tmp_path / "pages" / unquote(links[1].address)).parent.resolve() == run
    # a name that would be a scheme is a file
    ((_, links),) = shown(tmp_path / "page.html", stored(tmp_path / "javascript:alert(1)")).links
    assert links[0].address == "javascript%3Aalert%281%29/run.json"


def test_imported_runs_report_from_which_file_and_what_is_missing(tmp_path: Path) -> None:
    actual = {
        "files": [{"name": "all.log", "size_bytes": 2048, "sha256": "ab" * 32, "format": "osu"}, 7],
        "tables": [{"file": "all.log", "tool": "osu", "version": "7.4", "program": "osu_allreduce", "statistic": "mean", "rows": 3}],
        "missing": ["no interval"], "doubts": ["all.log: 2 ranks, not 4"],
    }  # fmt: skip
    made = shown(tmp_path / "page.html", stored(tmp_path / "run", imported=actual))
    assert "imported from osu 7.4: 3 rows of osu_allreduce (all.log); a time is mean." in made.texts
    assert "missing in the output: no interval." in made.texts and "doubtful: all.log: 2 ranks, not 4." in made.texts
    began, took = table(made, "Runs").rows[0][2:4]
    assert began.startswith("imported 20") and took == "–"


def test_untrusted_text_in_run_json(tmp_path: Path) -> None:
    run = stored(
        tmp_path / "run", command=[1, None, "=cmd|'/c calc'!A0", "<script>", "\u202e" * 999], hosts={"a": 1}, rank_map="x",
        started_utc=7, imported={"files": [{"name": "\u202e", "size_bytes": "x"}], "tables": 3, "doubts": [1]},
        launcher={}, collbench="\x1b[31m", backends=[{}], environment={"UCX_X": "<script>\u202e"},
    )  # fmt: skip
    made = shown(tmp_path / "page.html", run)
    cases = [case for _, each in made.tables for row in each.rows for case in row]
    assert all(case.isprintable() and len(case) <= 600 for case in cases)
    assert ["environment", "UCX_X", "<script>?"] in table(made, "Versions").rows
