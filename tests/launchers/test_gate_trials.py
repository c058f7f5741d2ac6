"""`collbench gate` on measured allocations: what became slower is found over a link of known rate and on shared memory, and nothing else.

A plain run makes one small trial, in turn: plain TCP alone, and one launch where a user would make five. `make test-all` plays the whole
series of tools/benchmarks/trials/gate.py and leaves it in build/gate-trials; with as many trials as there, it takes about an hour.
"""

import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import cannot
from tests.testbeds import Missing
from tools.benchmarks.trials.gate import KINDS, Effort, Trials, link, series, table

KEPT = Path(__file__).parents[2] / "build/gate-trials"
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


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(7200)
def test_the_whole_series(tmp_path):
    """The figures that are asked for: no alarm where nothing was done, nine of ten found, every slower link named."""
    try:
        played = list(series(tmp_path / "gate-trials", KINDS))
    except Missing as why:
        cannot(why)
    shutil.rmtree(KEPT, ignore_errors=True)  # what another commit left
    shutil.copytree(tmp_path / "gate-trials", KEPT)
    assert missed(played) == [], table(played)


def missed(played):
    """The kinds of which fewer trials than wanted came out right."""
    least = {"same": 20, "cell": 9, "group": 9, "link": 10, "twice": 9, "half": 8}
    found = Counter(trial.kind for trial in played if trial.right)
    return [kind for kind, wanted in least.items() if found[kind] < wanted]
