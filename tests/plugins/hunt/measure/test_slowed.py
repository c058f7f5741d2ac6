"""--slowed with `collbench pairs`: rounds report it, and unused specs are rejected."""

import pytest

from collbench.plugins.hunt.records import read_pairs
from collbench.results.reader import read_run
from tests.cli.command import run_here
from tests.measure.test_slowed import test_every_measuring_command_has_it_and_its_twin as check_command


def test_pairs_have_it_and_its_twin(tmp_path):
    check_command(tmp_path, ["pairs"])


@pytest.mark.system
def test_pairs_report_it_too(tmp_path):
    line = ["pairs", "--backend", "simulated", "--ranks", "2", "--max-time", "0.05", "--out", "run", "--slowed", "by=100% sizes=1M"]
    assert run_here(tmp_path, *line).returncode == 0
    found = read_run(tmp_path / "run")
    assert found.info["slowed"] == ["by=100% sizes=1M"]
    assert ["slowed" in one.flags for one in read_pairs(found).rounds] == [True]
