"""Hunts over two bridges with a trunk of known rate (network namespaces): the fault is named, and no node."""

from contextlib import ExitStack

import pytest

from collbench.plugin import plugins
from tests.conftest import enter
from tools.benchmarks.trials.groups import COUNTS, Agents, Trial, TwoLeaves, readme, run_trial, wanted

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.hosts, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def agents():
    with ExitStack() as stack:
        yield Agents(enter(stack, TwoLeaves()), stack)


@pytest.mark.parametrize("kind", list(COUNTS))
def test_exactly_the_fault_is_confirmed(kind, agents):
    assert "groups" in plugins()
    trial = run_trial(agents, kind, 1000)
    assert trial.right and not trial.accused, trial


def test_the_table_counts_what_is_right_and_lists_what_is_not():
    suspects = [["confirmed", "node", ["h2"]], ["inconclusive", "path", ["h1", "h2"]]]
    trials = [
        Trial("trunk", 0, 200, "", [["confirmed", "trunk", []]], 0.5, 12, 4.0, 1.0, "2026-01-01"),
        Trial("node", 0, 0, "h1", suspects, None, 12, 4.0, 1.0, "2026-01-02"),
    ]
    assert [(trial.right, trial.accused, trial.doubts) for trial in trials] == [(True, 0, 0), (False, 1, 1)]
    text = readme(trials)
    assert "2026-01-01 to 2026-01-02" in text and "- node, seed 0" in text and "- trunk" not in text
    assert len(wanted()) == sum(COUNTS.values()) == 80
