"""The files of a verdict: which are written, how, and what is refused before anything is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gating.verdict import read_verdict
from collbench.report.verdict_formats import OutputFiles, verdict_lines, write_files
from tests.gate.verdicts import regression, verdict

FILES = {"out": "v.json", "junit": "v.xml", "markdown": "v.md", "openmetrics": "v.prom"}


def test_every_file_that_is_asked_for_is_written_and_no_other(tmp_path: Path) -> None:
    write_files(regression(), OutputFiles(**{name: tmp_path / file for name, file in FILES.items()}), [])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES.values())
    assert read_verdict(tmp_path / "v.json") == regression()
    begins = {"v.xml": "<?xml ", "v.md": "## ❌ ", "v.prom": "# HELP collbench_gate_result "}
    assert {name: (tmp_path / name).read_text()[: len(text)] for name, text in begins.items()} == begins


def test_a_summary_of_github_grows_and_another_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, other = tmp_path / "summary", tmp_path / "other"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for path in (summary, other):
        path.write_text("before\n")
        write_files(verdict(), OutputFiles(markdown=path), [])
    assert summary.read_text().startswith("before\n## ✅ ")
    assert other.read_text().startswith("## ✅ ")


def test_a_summary_that_is_full_keeps_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("x" * 999_000)
    write_files(regression(), OutputFiles(markdown=summary), [])
    text = summary.read_text()[999_000:]
    assert text.startswith("## ❌ ") and "does not fit here" in text and "<details>" not in text


@pytest.mark.parametrize(("name", "package"), [("junit", "junitparser")])
def test_a_package_that_is_missing_is_reported_before(name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("collbench.report.verdict_formats.find_spec", lambda asked: None if asked == package else sys)
    with pytest.raises(UsageError) as error:
        OutputFiles(**{name: tmp_path / "file"}).check()
    assert str(error.value) == f"--{name} needs {package}: pip install 'collbench[report]'"


@pytest.mark.parametrize("name", [*FILES, "html"])
def test_nothing_goes_to_stdout(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} cannot write to stdout"):
        OutputFiles(**{name: Path("-")}).check()


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for name in FILES:
        with pytest.raises(UsageError, match=f"--{name} .* cannot be written"):
            write_files(verdict(), OutputFiles(**{name: tmp_path / "none" / "file"}), [])


def test_what_is_printed_follows_format_and_style() -> None:
    first = {
        each: next(iter(verdict_lines(verdict(), *each))).text
        for each in (("table", "collbench"), ("github", "prolog"), ("table", "nagios"))
    }
    assert first == {
        ("table", "collbench"): "passed",
        (
            "github",
            "prolog",
        ): "::notice title=collbench gate%3A passed::passed; judged: new; baseline base: 6 allocations, 6 cases",
        ("table", "nagios"): next(iter(verdict_lines(verdict(), "table", "nagios"))).text,
    }
    assert json.loads(next(iter(verdict_lines(verdict(), "json", "collbench"))).text)["result"] == "passed"
