"""`collbench gate` on measured allocations finds a link of known rate that became slower.

The whole series takes an hour: `python -m tools.benchmarks.trials.gate FOLDER`; `reports/gate-trials` has its last results.
"""

from contextlib import ExitStack

import pytest

from tests.conftest import cannot
from tests.testbeds import Missing
from tools.benchmarks.trials.gate import Effort, Trials, link

SUITE = (
    'schema = 1\ntitle = "plain TCP over a link"\n\n[[sweeps]]\noperations = ["p2p"]\nbackends = ["socket"]\nsizes = ["2M", "3M", "4M"]\n'
)


@pytest.mark.long  # 15 s and more: the gate itself on made-up times of a link is in tests/testbeds/test_gate.py
@pytest.mark.slurm
@pytest.mark.timeout(180)
def test_a_link_that_lost_a_tenth_is_found(tmp_path):
    with ExitStack() as stack:
        try:
            place = stack.enter_context(link())
        except Missing as why:
            cannot(why)
        place.suite, place.options = SUITE, ("-n", "5", "-w", "1", "--window", "1")
        trials = Trials(place, tmp_path, Effort(4, 1, 1))
        trials.learn()
        found = trials.play("link", 0)
    assert (found.result, found.launches - found.replaced) == ("regression", 3), found
    assert any("large messages" in name for name in found.confirmed), found
