"""`collbench report` of matrices of pairs that are cut or altered: one sentence each, and the rest is printed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.errors import FINE, USAGE
from tests.cli.command import ROOT
from tests.cli.test_report_bad_input import shown
from tests.results.rows import make_row, store

HOST_0 = ROOT / "reports" / "pairs-trials" / "host-0"


def test_pairs_that_do_not_fit_their_run_json_leave_the_others(tmp_path: Path) -> None:
    good, bad = store(tmp_path / "good", [make_row(8)]), store(tmp_path / "bad", [], pairs=5)
    code, printed, said = shown(bad, good)
    assert code == USAGE and len(said) == 1 and said[0].startswith(f"{bad} ") and "run.json" in said[0]
    assert printed.startswith("good (1 row)\n")


def _none(data: bytes) -> bytes:
    return b""


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _no_number(data: bytes) -> bytes:
    return data.replace(b"e-05", b"e400")


@pytest.mark.parametrize(
    ("change", "code", "value", "count"),
    [(_none, USAGE, "has no results", "0 of 56 "), (_half, FINE, "line 5", "32 of 56 "), (_no_number, FINE, "pairs.jsonl", "all 56 ")],
)
def test_pairs_that_are_cut_or_not_numbers(change: Callable[[bytes], bytes], code: int, value: str, count: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(HOST_0, tmp_path / "run"))
    (folder / "pairs.jsonl").write_bytes(change((folder / "pairs.jsonl").read_bytes()))
    ended, printed, said = shown(folder)
    assert ended == code and count in printed
    assert len(said) == 1 and value in said[0]
