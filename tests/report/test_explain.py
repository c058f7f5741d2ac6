"""`explain` has a page for every word that collbench prints."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import collbench
from collbench import errors
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.gate import verdict as gate
from collbench.machine.doctor.finding import pages as findings
from collbench.report import blocks, pairs, training
from collbench.report.cases import COLUMNS
from collbench.report.explain import GROUPS, index_lines, page, pages
from collbench.report.writers import csv_columns
from collbench.results.flags import FLAGS, flag_names

EXIT_CODES = [
    errors.FINE, errors.NEGATIVE, errors.USAGE, errors.NO_VERDICT, errors.FAILED, errors.INTERRUPTED, errors.TERMINATED
]  # fmt: skip


def titles() -> set[str]:
    """The titles of the columns of all tables, as the source has them."""
    calls = [node for file in Path(collbench.__path__[0], "report").glob("*.py") for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    columns = [node for node in calls if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column"]
    second = [node.args[1] for node in columns if len(node.args) > 1]
    constants = {str(node.value) for node in second if isinstance(node, ast.Constant)}
    steps = [*training.step_columns("step"), *training.step_columns("round"), *training.WORKERS]
    return {*constants, *pairs.TITLES, *pairs._TITLES, *(column.title for column in steps)}


IDENTITIES = {"", "place", "of", "from", "to"}  # what a line is about, no word to explain


@pytest.mark.parametrize("word", [column.title for column in (*COLUMNS, *blocks.COLUMNS)])
def test_columns_of_the_table(word: str) -> None:
    assert "column" in {each.group for each in page(word)}


@pytest.mark.parametrize("word", sorted(titles() - IDENTITIES))
def test_columns_of_the_other_tables(word: str) -> None:
    assert page(word)


@pytest.mark.parametrize("word", csv_columns())
def test_columns_of_csv(word: str) -> None:
    assert page(word)


@pytest.mark.parametrize("word", [*Outcome, gate.PASSED, gate.REGRESSION, gate.UNDECIDED, gate.WRONG_DATA])
def test_outcomes(word: str) -> None:
    assert "outcome" in {each.group for each in page(word)}


@pytest.mark.parametrize("code", EXIT_CODES)
def test_exit_codes(code: int) -> None:
    assert [each.group for each in page(str(code))] == ["exit"]


@pytest.mark.parametrize("name", flag_names(FLAGS))
def test_names_of_flags(name: str) -> None:
    assert "flag" in {each.group for each in page(name)}


def test_flags_and_findings() -> None:
    for group, words in (("flag", FLAGS), ("finding", findings())):
        assert {each.word for each in pages() if each.group == group} == set(words)


def test_every_page_reports_something_and_every_group_is_listed() -> None:
    assert all(each.means.strip() and each.group in GROUPS for each in pages())
    text = "\n".join(line.text for line in index_lines())
    assert all(f"{title}:" in text for title in GROUPS.values())
    assert all(f"  {each.word}" in text for each in pages())


def test_the_page_of_a_finding_as_text() -> None:
    (found,) = page(" cb2105 ")
    lines = found.lines()
    assert lines[0].startswith("CB2105  ")
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == ["what it means:", "check by hand:", "remedy:"]


def test_a_word_finds_its_page_in_any_spelling() -> None:
    assert page("busbw") == page("busbw GB/s") == page("BUSBW_bytes-per-s")


@pytest.mark.parametrize("word", ["bubsw", "CB21O5", "", "\x1b[31m"])
def test_an_unknown_word_is_a_usage_error(word: str) -> None:
    with pytest.raises(UsageError, match="unknown word"):
        page(word)
