"""What an earlier gate left at the files asked for is gone before this one judges; what no gate wrote is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.report.verdict_formats import OutputFiles, remove_earlier, write_files
from tests.gate.allocations import launch
from tests.gate.verdicts import verdict


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    return OutputFiles(*(tmp_path / name for name in ("verdict.json", "gate.xml", "gate.md", "gate.prom", "gate.html")))


def test_everything_that_a_gate_wrote_goes(files: OutputFiles, tmp_path: Path) -> None:
    write_files(verdict(), files, [launch(tmp_path / "night", {8: 1e-6})])
    assert all(path.stat().st_size for path in vars(files).values())
    remove_earlier(files)
    assert not any(path.exists() for path in vars(files).values())
    remove_earlier(files)


@pytest.mark.parametrize("option", ["out", "junit", "markdown", "openmetrics", "html"])
def test_what_no_gate_wrote_is_refused_before_anything_is_removed(files: OutputFiles, option: str) -> None:
    others = OutputFiles(**{name: path for name, path in vars(files).items() if name in ("out", "junit") and name != option})
    write_files(verdict(), others, [])
    strange = vars(files)[option]
    strange.write_text('{"result": 1}')
    with pytest.raises(UsageError, match=f"{strange.name} was not written by `collbench gate --{option}`"):
        remove_earlier(files)
    assert strange.read_text() == '{"result": 1}'
    assert all(path.exists() for path in vars(others).values() if path)


def test_the_step_s_summary_what_is_empty_and_no_file_stay(files: OutputFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gate.md").write_text("what earlier commands wrote")
    (tmp_path / "gate.xml").touch()
    (tmp_path / "verdict.json").mkdir()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "gate.md"))
    remove_earlier(files)
    assert {path.name for path in tmp_path.iterdir()} == {"gate.md", "gate.xml", "verdict.json"}


def test_a_verdict_that_is_shown_once_more_stays(tmp_path: Path) -> None:
    files = OutputFiles(out=tmp_path / "verdict.json")
    write_files(verdict(), files, [])
    remove_earlier(files, tmp_path / "." / "verdict.json")
    assert (tmp_path / "verdict.json").exists()
