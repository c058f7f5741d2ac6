"""The files of a verdict: which are written, kept or removed, how, and what is refused before anything is judged."""

import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict

from collbench.errors import UsageError
from collbench.gating.confirm import confirm_suite
from collbench.report.verdict import lines, write_suite
from collbench.report.verdict_formats import OutputFiles, annotation_lines, remove_earlier, status_lines, verdict_lines, write_files
from collbench.results.row import CaseKey
from tests.gate.allocations import launch
from tests.gate.verdicts import CASE, regression, verdict

FILES = ("out", "junit", "markdown", "openmetrics")


def test_a_summary_of_github_grows_until_it_is_full_and_another_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, other = tmp_path / "summary", tmp_path / "other"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for path in (summary, other):
        path.write_text("before\n")
        write_files(verdict(), OutputFiles(markdown=path), [])
    assert summary.read_text().startswith("before\n## ✅ ")
    assert other.read_text().startswith("## ✅ ")
    summary.write_text("x" * 999_000)
    write_files(regression(), OutputFiles(markdown=summary), [])
    text = summary.read_text()[999_000:]
    assert text.startswith("## ❌ ") and "does not fit here" in text and "<details>" not in text


def test_a_package_that_is_missing_is_reported_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("collbench.report.verdict_formats.find_spec", lambda asked: None if asked == "junitparser" else sys)
    with pytest.raises(UsageError) as error:
        OutputFiles(junit=tmp_path / "file").check()
    assert str(error.value) == "--junit needs junitparser: pip install 'collbench[report]'"


@pytest.mark.parametrize("name", [*FILES, "html"])
def test_nothing_goes_to_stdout(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} cannot write to stdout"):
        OutputFiles(**{name: Path("-")}).check()


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for name in FILES:
        with pytest.raises(UsageError, match=f"--{name} .* cannot be written"):
            write_files(verdict(), OutputFiles(**{name: tmp_path / "none" / "file"}), [])


def test_what_is_printed_follows_format_and_style() -> None:
    assert list(verdict_lines(verdict(), "table", "collbench")) == list(lines(verdict()))
    assert list(verdict_lines(verdict(), "github", "prolog")) == list(annotation_lines(verdict()))
    assert list(verdict_lines(verdict(), "table", "nagios")) == list(status_lines(verdict()))
    assert json.loads(next(iter(verdict_lines(verdict(), "json", "collbench"))).text)["result"] == "passed"


SUITE = confirm_suite([CaseKey(**CASE)])


def test_a_suite_is_written_replaced_kept_or_removed(tmp_path: Path) -> None:
    file = tmp_path / "confirm.toml"
    for suite in (f"{SUITE}# other", SUITE):
        assert write_suite(file, suite) is None
        assert file.read_text() == suite
    assert f"{file} kept" in (write_suite(file, None, stays=True) or "")
    assert file.read_text() == SUITE
    assert f"{file} removed" in (write_suite(file, None) or "")
    assert not file.exists()
    assert write_suite(file, None) is write_suite(file, None, stays=True) is None


@pytest.mark.parametrize("suite", [SUITE, None])
def test_a_foreign_suite_stays(suite: str | None, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('schema = 1\n[[sweeps]]\noperations = "allreduce"\n')
    with pytest.raises(UsageError, match=r"mine\.toml was not written by "):
        write_suite(file, suite)
    assert "sweeps" in file.read_text()


def test_a_folder_is_refused_and_a_pipe_written_to(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        write_suite(tmp_path, SUITE)
    assert write_suite(Path(os.devnull), SUITE) is None
    assert write_suite(Path(os.devnull), None) is None
    assert not Path(os.devnull).is_file()


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    return OutputFiles(*(tmp_path / name for name in ("verdict.json", "gate.xml", "gate.md", "gate.prom", "gate.html")))


def test_everything_that_a_gate_wrote_goes_but_a_verdict_that_is_shown_once_more(files: OutputFiles, tmp_path: Path) -> None:
    write_files(verdict(), files, [launch(tmp_path / "night", {8: 1e-6})])
    assert all(path.stat().st_size for path in asdict(files).values())
    remove_earlier(files)
    assert not any(path.exists() for path in asdict(files).values())
    remove_earlier(files)
    files = OutputFiles(out=tmp_path / "verdict.json")
    write_files(verdict(), files, [])
    remove_earlier(files, tmp_path / "." / "verdict.json")
    assert (tmp_path / "verdict.json").exists()


@pytest.mark.parametrize("option", ["out", "junit", "markdown", "openmetrics", "html"])
def test_what_no_gate_wrote_is_refused_before_anything_is_removed(files: OutputFiles, option: str) -> None:
    others = OutputFiles(**{name: path for name, path in asdict(files).items() if name in ("out", "junit") and name != option})
    write_files(verdict(), others, [])
    strange = asdict(files)[option]
    strange.write_text('{"result": 1}')
    with pytest.raises(UsageError, match=f"{strange.name} was not written by `collbench gate --{option}`"):
        remove_earlier(files)
    assert strange.read_text() == '{"result": 1}'
    assert all(path.exists() for path in asdict(others).values() if path)


def test_the_step_s_summary_what_is_empty_and_no_file_stay(files: OutputFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gate.md").write_text("what earlier commands wrote")
    (tmp_path / "gate.xml").touch()
    (tmp_path / "verdict.json").mkdir()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "gate.md"))
    remove_earlier(files)
    assert {path.name for path in tmp_path.iterdir()} == {"gate.md", "gate.xml", "verdict.json"}
