"""The example of a reader in docs/develop works. tests/contract runs the operation and the backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.plugins.importers import store
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.store import reader_for
from tests.conftest import ROOT
from tests.plugins.importers.examples.netpipe import NETPIPE

EXAMPLES = Path(__file__).parent / "examples"
DEVELOP = ROOT / "docs/develop"


def test_the_reader_is_found_by_the_output_and_returns_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (EXAMPLES / "netpipe.txt").read_text(encoding="utf-8").splitlines()
    monkeypatch.setattr(store, "READERS", (*store.READERS, NETPIPE))
    assert reader_for(lines, None) is NETPIPE
    (run,) = NETPIPE.read(lines, UserInput(nodes=1)).runs
    first = run.rows[0]
    assert first.time_s is not None and first.time_s.p50 == pytest.approx(6.46e-6)
    assert (first.operation, first.size_bytes, first.ranks, first.nodes, first.wrong) == ("p2p_latency", 8, 2, 1, None)
    assert first.busbw_bytes_per_s == pytest.approx(8 / 6.46e-6)
    assert [row.evidence["line"] for row in run.rows] == list(range(4, len(lines) + 1))


def test_other_readers_do_not_know_these_lines() -> None:
    lines = (EXAMPLES / "netpipe.txt").read_text(encoding="utf-8").splitlines()
    assert not [reader.name for reader in store.READERS if reader.knows(lines)]


def test_the_pages_include_files_that_exist() -> None:
    included = [line for page in DEVELOP.glob("*.md") for line in re.findall(r'^(?:# )?--8<-- "([^"]+)"$', page.read_text(), re.MULTILINE)]
    assert len(included) >= 5
    assert not [name for name in included if not (ROOT / name).is_file()]
