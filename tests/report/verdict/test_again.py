"""The file of the suite that measures suspects again: never another's, and never one of an earlier night."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gating.confirm import confirm_suite
from collbench.report.verdict import write_suite
from collbench.results.row import CaseKey
from tests.gate.verdicts import CASE

SUITE = confirm_suite([CaseKey(**CASE)])


def test_a_suite_is_written_replaced_kept_or_removed(tmp_path: Path) -> None:
    file = tmp_path / "confirm.toml"
    for suite in (SUITE, f"{SUITE}# other"):
        assert write_suite(file, suite) is None
        assert file.read_text() == suite
    file = tmp_path / "confirm.toml"
    write_suite(file, SUITE)
    assert f"{file} removed" in (write_suite(file, None) or "")
    assert not file.exists()
    assert write_suite(file, None) is None
    file = tmp_path / "confirm.toml"
    assert write_suite(file, None, stays=True) is None
    write_suite(file, SUITE)
    assert f"{file} kept" in (write_suite(file, None, stays=True) or "")
    assert file.read_text() == SUITE


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
