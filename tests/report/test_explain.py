"""`explain` has a page for every word that collbench prints."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import collbench
from collbench import errors
from collbench.analysis.health import CheckOutcome, Reach
from collbench.analysis.outcome import Doubt, Outcome
from collbench.analysis.stragglers import Role
from collbench.backends.registry import backend_names
from collbench.errors import UsageError
from collbench.gating import reasons
from collbench.gating import verdict as gate
from collbench.gating.baseline import CLASSES
from collbench.gating.conditions import MODELS
from collbench.machine.distance import ORDER
from collbench.machine.doctor.finding import pages as findings
from collbench.operations.dtypes import DTYPES, REDOPS
from collbench.operations.registry import commands, operations
from collbench.operations.sweep import ALGORITHMS, MODES, PROTOCOLS, REGISTRATIONS
from collbench.report.cases import COLUMN_OF_KEY, COLUMNS
from collbench.report.explain import GROUPS, TOPICS, lines_about, page, pages, plain, topic_lines
from collbench.report.headlines import FIT_TITLES
from collbench.report.writers import csv_columns
from collbench.results.flags import FLAGS, flag_names
from tests.conftest import needs_plugin

EXIT_CODES = [
    errors.FINE, errors.NEGATIVE, errors.USAGE, errors.NO_VERDICT, errors.FAILED, errors.INTERRUPTED, errors.TERMINATED
]  # fmt: skip


def titles() -> set[str]:
    """The titles of the columns of all tables, as the source has them."""
    package = Path(collbench.__path__[0])
    files = [*package.glob("report/*.py"), *package.glob("plugins/*/*.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    columns = [node for node in calls if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column"]
    second = [node.args[1] for node in columns if len(node.args) > 1]
    return {str(node.value) for node in second if isinstance(node, ast.Constant)}


def glossary() -> list[str]:
    """The words of the glossary that outputs have."""
    text = Path(collbench.__path__[0], "..", "docs", "glossary.md").read_text("utf-8").partition("## Development")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ") and not line.startswith("| word")]
    return [word.strip(" `)") for cell in cells for word in re.split(r"[,(]", cell)]


IDENTITIES = {"", "place", "of", "from", "to"}  # what a line is about, no word to explain


WORDS = {
    "column": [*sorted({column.title for column in COLUMNS}), *COLUMN_OF_KEY],
    "outcome": [*Outcome, gate.PASSED, gate.REGRESSION, gate.UNDECIDED, gate.WRONG_DATA],
    "flag": flag_names(FLAGS),
    "": [*sorted(titles() - IDENTITIES), *csv_columns()],
}


@pytest.mark.parametrize("group", WORDS)
def test_words_of_outputs_have_a_page_in_their_group(group: str) -> None:
    lacking = [word for word in WORDS[group] if group not in {found.group for found in page(word)} | {""}]
    assert WORDS[group] and lacking == []


def test_exit_codes() -> None:
    codes = [page(str(code)) for code in EXIT_CODES]
    assert [[found.group for found in pages_of_code] for pages_of_code in codes] == [["exit"]] * len(EXIT_CODES)
    assert {str(code) for code in EXIT_CODES} <= {found.word for found in page("exit-codes")}


def test_a_declared_column_is_found_by_its_key_its_name_and_its_heading_and_has_the_text_of_its_declaration() -> None:
    (found,) = page("algbw")
    assert page("algbw GB/s") == page("algbw_bytes_per_s") == [found]
    assert found.means.startswith("Algorithm bandwidth: size / time.") and found.means.endswith("Unit: bytes per second.")
    (in_place,) = page("out of place")  # an entry of explain.toml with other names alone
    assert page("placing") == page("in_place") == [in_place] and in_place.means.startswith("Whether the result overwrites the input")


@needs_plugin("load")
@needs_plugin("kv")
def test_a_column_of_several_kinds_has_a_line_for_each() -> None:
    (link,) = page("of link")
    of_kinds = [line.partition(": ")[0] for line in link.means.splitlines()]
    assert (link.word, of_kinds) == ("percent_of_link", ["`collbench load`", "`collbench kv`"])


VOCABULARY = {
    "how a case was measured": [*MODES, "fixed", "rotating", "in place", "out of place", "cpu", "cuda", *DTYPES, *REDOPS, "stopped"],
    "NCCL": [*REGISTRATIONS, *ALGORITHMS, *PROTOCOLS],
    "names": [*operations(), *commands(), *backend_names()],
    "fits and slow ranks": [*FIT_TITLES, "alpha", "α", "n1/2", *Role],
    "answers": [*CheckOutcome, *Reach, *Doubt, "doubtful", "thin", "exit-codes"],
    "distances": [*ORDER, "PCIE", "XGMI", "NV12"],
    "gate": [*CLASSES, *MODELS, gate.SUSPECTED, gate.ACCEPTED, *get_args(reasons.PathCause), reasons.UNCLEAR],
    "glossary": glossary(),
}


@pytest.mark.parametrize("part", VOCABULARY)
def test_words_of_outputs(part: str) -> None:
    spelled = {plain(name) for each in pages() for name in (each.word, *each.names)}
    assert [word for word in VOCABULARY[part] if plain(word) not in spelled] == []


def test_every_page_reports_something_and_every_group_is_listed() -> None:
    assert all(each.means.strip() and each.group in GROUPS for each in pages())
    assert list(TOPICS.values()) == list(GROUPS)
    lines = [line.text for line in topic_lines(80)]
    assert len(lines) <= 20 and set(TOPICS) <= {line.split()[0] for line in lines if line.startswith("  ")}
    for topic, group in TOPICS.items():
        words = [line.text.split("  ")[1] for line in lines_about(topic) if line.text.startswith("  ")]
        assert words[-sum(each.group == group for each in pages()) :] == [each.word for each in pages() if each.group == group]


def test_topics_list_their_words_which_have_pages() -> None:
    for line in topic_lines():
        _, of_topic, shown = line.text.partition("such as ")
        assert all(page(word) for word in shown.split(", ") if of_topic)
    lines = [line.text for line in lines_about("Exit codes")]
    assert lines[0] == page("exit-codes")[0].lines()[0] and any(line.startswith("  143 ") for line in lines)
    for group, words in (("flag", FLAGS), ("finding", findings())):
        assert {each.word for each in pages() if each.group == group} == set(words)


def test_a_word_finds_its_page_in_any_spelling_and_a_finding_has_three_paragraphs() -> None:
    (found,) = page(" cb2105 ")
    lines = found.lines()
    assert lines[0].startswith("CB2105  ")
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == ["what it means:", "check by hand:", "remedy:"]
    assert page("busbw") == page("busbw GB/s") == page("BUSBW_bytes-per-s")


@pytest.mark.parametrize("word", ["bubsw", "CB21O5", "", "\x1b[31m"])
def test_an_unknown_word_is_a_usage_error(word: str) -> None:
    with pytest.raises(UsageError, match="unknown word"):
        page(word)


@pytest.mark.parametrize("word", ["busbw", "CB2101"])
def test_prose_fills_the_lines_of_a_narrow_terminal(word: str) -> None:
    whole, narrow = ([line.text for line in lines_about(word, width)] for width in (None, 60))
    assert "".join("".join(whole).split()) == "".join("".join(narrow).split())  # the terminal breaks long addresses
    prose = narrow[2 : narrow.index("", 3)] if "" in narrow[3:] else narrow[2:]
    assert all(len(line) > 40 for line in prose[1:-1] if not line.startswith("what"))
