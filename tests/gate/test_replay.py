"""Stored trials of pairs and of the gate are judged today as they were judged when they were measured."""

import pytest

from tests.stored import stored_reports
from tools.benchmarks.trials.replay import replayed

pytestmark = pytest.mark.system

FEW = {"pairs-trials": ["host-3", "pair-2", "equal-1"], "gate-trials": ["same-1", "cell-3", "group-2", "link-4", "twice-5", "half-6"]}


@pytest.mark.parametrize("series", FEW)
def test_stored_trials_are_judged_as_before(series: str) -> None:
    found = list(replayed(stored_reports() / series))
    assert len(found) == len(FEW[series]) and [each for each in found if not each.is_equal] == []
