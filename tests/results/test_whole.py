"""Finished runs are written as run folders that read back: all of them, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.results.folder import FinishedRun, write_all
from collbench.results.importers.rows import RowKind
from collbench.results.reader import read_run
from collbench.results.row import Row


def row() -> Row:
    return RowKind("allreduce", "mpi", "mpi", "float32", 2, 1, "the mean").row(1024, 1e-6, count=256)


def test_it_reads_back_as_a_run_that_came_to_its_end(tmp_path: Path) -> None:
    write_all([FinishedRun(tmp_path / "new" / "a", "allreduce", {"hosts": ["n1"]}, [row(), row()], {"machines": []})])
    run = read_run(tmp_path / "new" / "a")
    assert (run.rows, run.warnings, run.finished, run.info["rows"], run.info["exit_code"]) == ([row(), row()], [], True, 2, 0)
    assert (run.info["id"], run.info["operation"], run.info["hosts"]) == ("a", "allreduce", ["n1"])
    assert sorted(path.name for path in run.path.iterdir()) == ["cells.jsonl", "run.json", "topology.json"]


def test_one_that_cannot_be_written_takes_the_others_with_it_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "cells.jsonl").write_text("x")
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(UsageError, match=r"b already holds a run \(cells\.jsonl\)"):
        write_all([FinishedRun(tmp_path / "out" / name, "allreduce", {}, [row()]) for name in ("a", "b", "c")])
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["b", "cells.jsonl", "mine"]


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match=r"file/a .*\(Not a directory\): .*--out DIR$"):
        write_all([FinishedRun(tmp_path / "file" / "a", "allreduce", {}, [])])
    assert (tmp_path / "file").read_text() == "kept"
