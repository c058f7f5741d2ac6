"""collbench.read: folders, patterns and logs of other tools; errors that name the path; damaged runs and newer versions."""

import json
import os
from pathlib import Path

import pytest

import collbench
from collbench.api.runs import paths_of
from collbench.results.flags import FLAGS
from tests.cli.command import ROOT
from tests.conftest import needs_plugin
from tests.machines import captures
from tests.results.rows import make_row, store

REPORTS = ROOT / "reports"


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder with two launches and a run below it."""
    for name in ("night/launch-10", "night/launch-2", "single"):
        store(tmp_path / name, [make_row(8), make_row(64)], allocation_id=name.partition("/")[0])
    return tmp_path


def test_a_run_launches_folders_patterns_and_files_are_read(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [path.name for path in collbench.read(three / "single").paths] == ["single"]
    assert [path.name for path in collbench.read(three / "night").paths] == ["launch-2", "launch-10"]
    runs = collbench.read(str(three))
    assert (len(runs), [run.path.name for run in runs]) == (3, ["launch-2", "launch-10", "single"])
    assert [row.size_bytes for row in runs.rows] == [8, 64] * 3
    assert [(each.name, len(each.runs)) for each in runs.launches] == [("night", 2), ("single", 1)]
    assert isinstance(runs[1:], collbench.Runs) and runs[1:].paths == runs.paths[1:]
    assert runs[-1] is runs[2]
    assert len(collbench.read(three / "night/launch-*")) == 2
    monkeypatch.chdir(three)
    assert len(collbench.read("n*/launch-1?", "single/run.json")) == 2


def test_a_run_is_read_when_it_is_used_and_one_that_was_stopped_is_not_damaged(three: Path, tmp_path: Path) -> None:
    runs = collbench.read(three)
    (three / "night/launch-2/run.json").write_text("{")
    store(three / "later", [make_row()])
    assert len(runs) == 3 and runs[2].rows
    with pytest.raises(collbench.UnreadableRun):
        runs[0]
    path = store(tmp_path / "run", [make_row(8), make_row(64)])
    cells = (path / "cells.jsonl").read_bytes()
    (path / "cells.jsonl").write_bytes(cells[:-20])
    runs = collbench.read(path)
    assert (len(runs.rows), len(runs.warnings)) == (1, 1)


@needs_plugin("importers")
def test_logs_of_other_tools_are_imported(tmp_path: Path) -> None:
    logs = sorted(captures.folder("ndv4-8xa100-nccl-tests").glob("*.log"))
    runs = collbench.read(*logs)
    assert (len(runs), len(runs.rows)) == (1, 84)
    assert all("imported" in row.flags for row in runs.rows) and "imported" in FLAGS
    folder = runs.paths[0]
    assert any("mean" in text for text in runs.warnings)
    part = runs[:1]
    del runs
    assert len(part.rows) == 84 and folder.exists()
    del part
    assert not folder.exists()


@needs_plugin("importers")
def test_what_a_log_lacks_can_be_given(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("# Collective test starting: all_reduce_perf_mpi\n  1073741824  268435456  float  sum  -1  5000.00  214.75  375.81  0\n")
    assert collbench.read(log, nodes=2, format="nccl-tests").rows[0].nodes == 2


@pytest.mark.parametrize(("path", "words"), [
    ("nul\0", r"^nul\? does not exist"),
    pytest.param("text.log", r"text\.log cannot be imported", marks=needs_plugin("importers")),
])  # fmt: skip
def test_bad_paths_are_one_sentence(path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.log").write_text("nothing\n")
    with pytest.raises(collbench.UsageError, match=words) as raised:
        collbench.read(path)
    assert "\n" not in str(raised.value)


def test_runs_that_are_named_twice_and_files_of_another_tool_without_the_importers_are_refused(three, tmp_path, monkeypatch):
    monkeypatch.setattr("collbench.api.runs.hooks_of", lambda hook: [])
    (tmp_path / "text.log").write_text("nothing\n")
    with pytest.raises(collbench.UsageError, match="plug-in importers"):
        collbench.read(tmp_path / "text.log")
    assert len(collbench.read(three)) == 3
    with pytest.raises(collbench.UsageError, match="named twice"):
        collbench.read(three, three / "single")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(collbench.UsageError, match="Permission denied"):
        collbench.read(tmp_path / "locked")


def test_damaged_runs_and_newer_versions_are_errors_unless_they_are_allowed(tmp_path: Path) -> None:
    for name in ("whole", "damaged", "newer"):
        store(tmp_path / name, [make_row(8), make_row(64)], **({"schema": 2} if name == "newer" else {}))
    with (tmp_path / "damaged/cells.jsonl").open("a") as file:
        file.write('{"operation": 7}\n')
    for name, words in (("damaged", "line 3"), ("newer", "schema 2")):
        with pytest.raises(collbench.UnreadableRun, match=words) as raised:
            collbench.read(tmp_path / name)[0]
        assert "\n" not in str(raised.value) and raised.value.exit_code == 2
        with pytest.raises(collbench.UnreadableRun):
            collbench.read(tmp_path).rows  # noqa: B018
    runs = collbench.read(tmp_path, strict=False)
    assert len(runs.rows) == 6 and len(runs.warnings) == 2


def test_the_text_of_runs_reads_nothing_and_all_launches_of_a_folder_are_judged_as_that_folder(three: Path) -> None:
    assert list(paths_of(collbench.read(three))) == [three / "night", three / "single"]
    assert list(paths_of(collbench.read(three / "night/launch-2"))) == [three / "night/launch-2"]
    runs = collbench.read(three)
    for path in runs.paths:
        (path / "cells.jsonl").unlink()
        (path / "run.json").unlink()
    assert repr(runs).startswith("<Runs: 3 runs: ") and "launch-2" in repr(runs)


def test_every_stored_run_of_the_repository_is_read() -> None:
    runs = collbench.read(REPORTS)
    listed = [path.parent for path in REPORTS.rglob("run.json")]
    assert sorted(runs.paths) == sorted(listed) and len(runs.rows) == sum(
        1 for path in listed if (path / "cells.jsonl").exists() for line in (path / "cells.jsonl").open() if json.loads(line)
    )
