"""The examples of docs/develop work: a reader and a rule. tests/contract runs the operation and the backend."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import MachineView, Page
from collbench.results.importers import store
from collbench.results.importers.importer import UserInput
from collbench.results.importers.store import reader_for
from tests.conftest import ROOT
from tests.docs.examples.netpipe import NETPIPE
from tests.docs.examples.rule import RULES, forced_power_saving
from tests.machine.machines import dgx

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


def test_the_rule_finds_the_fault_and_nothing_on_a_healthy_machine() -> None:
    healthy = dgx()
    forced = replace(healthy, system=replace(healthy.system, command_line="ro quiet pcie_aspm=force"))
    (finding,) = forced_power_saving(MachineView(forced))
    assert (finding.code, finding.severity, finding.hostname) == ("CB9901", "warning", healthy.hostname)
    assert not [
        each for machine in (healthy, replace(forced, system=healthy.system)) for rule in RULES for each in rule(MachineView(machine))
    ]
    assert "CB9901" not in [each.code for each in examine([forced])]  # the code is free


def test_the_rule_has_a_page() -> None:
    ((code, facts),) = tomllib.loads((EXAMPLES / "rule.toml").read_text(encoding="utf-8")).items()
    assert Page(code=code, **facts).code == "CB9901"


def test_the_pages_include_files_that_exist() -> None:
    included = [line for page in DEVELOP.glob("*.md") for line in re.findall(r'^(?:# )?--8<-- "([^"]+)"$', page.read_text(), re.MULTILINE)]
    assert len(included) >= 7
    assert not [name for name in included if not (ROOT / name).is_file()]
