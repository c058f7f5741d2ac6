"""collbench compare A B: prints a comparison; a slower run is not a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import run, run_here
from tests.results.rows import make_row, make_times, store


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs, b twice as slow as a."""
    for name, p50 in (("a", 1e-6), ("b", 2e-6)):
        store(tmp_path / name, [make_row(8, time_s=make_times(p50))])
    return tmp_path


def test_a_slower_run_is_not_a_failure(runs: Path) -> None:
    done = run(runs, "compare", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "slower 2.00× (1.97–2.03×)" in done.stdout
    assert json.loads(run_here(runs, "compare", "a", "b", "--format", "json").stdout)["cells"][0]["outcome"] == "slower"
