"""collbench compare A B: a comparison, no gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import one_sentence, run, run_here
from tests.results.rows import make_row, make_times, store


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs, b twice as slow as a."""
    for name, p50 in (("a", 1e-6), ("b", 2e-6)):
        store(tmp_path / name, [make_row(8, time_s=make_times(p50))])
    return tmp_path


def test_slower_is_no_failure(runs: Path) -> None:
    done = run(runs, "compare", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "slower 2.00× (1.97–2.03×)" in done.stdout
    assert json.loads(run_here(runs, "compare", "a", "b", "--format", "json").stdout)["cells"][0]["outcome"] == "slower"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("a", "the following arguments are required: B"),
        ("a a", "a and a are the same folder: name two"),
        ("a nowhere", "nowhere is not a run folder"),
        ("a b --margin 0", "--margin '0': not a valid percentage (use a number above 0 and below 100, such as 5)"),
        ("a b --margin some", "--margin 'some': not a valid percentage"),
    ],
)
def test_bad_input(words: str, told: str, runs: Path) -> None:
    assert told in one_sentence(run_here(runs, "compare", *words.split()))
