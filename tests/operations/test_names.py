"""Names in a suite that depend on what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.operations import suite
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.registry import BrokenEntry
from collbench.operations.suite import read_suite


def test_an_operation_of_a_plug_in_that_is_broken_is_reported_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = BrokenEntry("shift", "shifting:SHIFT", "does not load (ImportError: no rings)", "fix or uninstall shifting")
    monkeypatch.setattr(suite, "broken", lambda: {"shift": why})
    file = tmp_path / "a.toml"
    file.write_text("schema = 1\n[[sweeps]]\nname = 'large'\noperations = ['shift']\n")
    with pytest.raises(UsageError) as actual:
        suite.check_names(read_suite(str(file)), ["mpi"])
    assert str(actual.value) == f"suite {file}, sweeps[1] 'large': operation 'shift': {why}"


@pytest.mark.parametrize(
    ("key", "collective", "pair"),
    [("window", False, True), ("streams", False, True), ("split", True, False), ("sizes", True, True), ("mode", True, True)],
)
def test_a_key_concerns_a_sweep_if_it_concerns_one_of_its_operations(key: str, collective: bool, pair: bool) -> None:
    assert suite.concerns(key, [ALLREDUCE]) is collective
    assert suite.concerns(key, [P2P_BANDWIDTH]) is pair
    assert suite.concerns(key, [ALLREDUCE, P2P_BANDWIDTH])
