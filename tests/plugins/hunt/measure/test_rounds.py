"""What pairs and hunts share: the times of a round and what disturbed it, the round of a hunt, --slowed, and the exit code of pairs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.measuring.request import Request
from collbench.measuring.sampling import Measurement
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.data import Mismatch
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt import disturbances
from collbench.plugins.hunt.disturbances import Disturbance, largest, monitor_round
from collbench.plugins.hunt.places import PairsRequest
from collbench.plugins.hunt.protocol import GroupFigure, RoundRequest, hunt_round
from collbench.plugins.hunt.records import read_pairs
from collbench.plugins.hunt.round_runner import of_pairs, pair_times
from collbench.plugins.hunt.tasks import PairsTask
from collbench.results.reader import read_run
from tests.cli.command import run_here
from tests.helpers import make_case
from tests.measure.test_run import test_every_measuring_command_has_it_and_its_twin as check_command
from tests.plugins.hunt.test_records import a_pair_round

SWEEP = Sweep((), None, ())
GROUPS = ((0, 2), (1, 3), (4, 6), (5, 7))  # two pairs of nodes with two ranks each
SIZE = 1000
ASKED = RoundRequest("pairs", ((2, 3), (0, 1)), "again", "cross-check")


@pytest.mark.parametrize(("wrong", "measured", "result", "code"), [
    ((0, 0), 2, "nobody", 0), ((None, None), 2, "nobody", 0), ((0, 0), 2, "confirmed", 1), ((0, 0), 2, "no verdict", 3),
    ((0, 5), 2, "nobody", 4), ((0, 5), 2, "confirmed", 4), ((None, None), 0, "nobody", 2),
])  # fmt: skip
def test_the_exit_code(wrong, measured, result, code):
    na = (None if measured else "no such pair",) * len(wrong)
    rounds = a_pair_round(0, ((0, 1),) * len(wrong), wrong=wrong, na=na)
    task = PairsTask(PairsRequest(Request("pairs", SWEEP, ("simulated",))), None, result=result)
    assert task.exit_code([rounds]) == code


def times(operation, mismatches=()):
    """Every sample of the first pair takes 1 s and 2 s, of the second pair 3 s and 4 s; of windows of 10 messages."""
    seconds = np.zeros((8, 12))
    for rank, value in ((0, 1.0), (1, 2.0), (4, 3.0), (5, 4.0)):
        seconds[rank] = value + np.arange(12) * 1e-3
    measured = Measurement(seconds, 0.03)
    case = make_case(window=10, redop=None)
    ready = SimpleNamespace(operation=operation, case=case, groups=GROUPS, fell_back=False)
    return pair_times(2, ready, measured, mismatches)


def test_of_a_pair_of_nodes_the_slowest_pair_of_ranks_counts_and_all_of_them_move_messages():
    found = times(P2P_BANDWIDTH)
    assert found.seconds == pytest.approx((2.0 / 20, 4.0 / 20), rel=0.01) and found.n == 12
    moved = P2P_LATENCY.moves(make_case())
    assert times(P2P_LATENCY).seconds == pytest.approx((2.0 / moved, 4.0 / moved), rel=0.01)


@pytest.mark.parametrize(("rank", "wrong"), [(2, (5, 0)), (3, (5, 0)), (6, (0, 5)), (5, (0, 5))])
def test_wrong_data_belongs_to_the_pair_of_nodes_of_the_rank(rank, wrong):
    found = times(P2P_BANDWIDTH, (Mismatch(rank, 5, 0, "1", "2"),))
    assert found.wrong == wrong
    assert [detail is not None for detail in found.wrong_detail] == [bool(each) for each in wrong]


def test_figures_are_in_the_order_of_the_groups_or_have_a_reason_for_every_group():
    rounds = [
        a_pair_round(0, ((0, 1),), 1.0, flags=("few_samples",), cpu_wait=(0.25,), flipped=(True,)),
        a_pair_round(0, ((2, 3),), 4.0, wrong=(7,), wrong_detail=("rank 3: 7 wrong elements",)),
    ]
    found = of_pairs(4, ASKED, rounds, SIZE)
    assert found.speed_bytes_per_s == pytest.approx((250.0, 1000.0))
    assert (found.wrong, found.flags, found.cpu_wait, found.flipped) == ((7, 0), ("few_samples",), (0.0, 0.25), (False, True))
    assert found.wrong_detail == ("rank 3: 7 wrong elements", None)
    found = hunt_round(4, ASKED, [GroupFigure(None, na="no such interface")] * 2)
    assert (found.speed_bytes_per_s, found.na, found.wrong) == ((None, None), ("no such interface",) * 2, (0, 0))


def test_the_worst_rank_of_a_pair_counts():
    ranks = [Disturbance(0.1, False), Disturbance(0.4, True), Disturbance(0.2, False)]
    assert largest(ranks, [0, 1]) == Disturbance(0.4, True)
    assert largest(ranks, [0, 2]) == Disturbance(0.2, False)
    assert largest(ranks, [7]) == Disturbance(0.0, False)


@pytest.mark.parametrize(("waited", "probed_after", "share", "flipped"), [
    ([100, 350], 1e-7, 0.25, False), ([100, 100], 1e-7, 0.0, False), ([0, 5000], 1e-7, 1.0, False), ([None, None], 1e-7, 0.0, False),
    ([500, 100], 1e-7, 0.0, False), ([0, 0], 3e-7, 0.0, True), ([0, 0], None, 0.0, False),
])  # fmt: skip
def test_the_share_of_the_time_without_a_cpu_and_a_state_probe_that_changes_disturb(monkeypatch, waited, probed_after, share, flipped):
    """In a round of 1000 ns, with the kernel's counter and the state probe before and after it."""
    clock, probed = iter([0, 1000]), [1e-7, probed_after]
    monkeypatch.setattr(disturbances.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(Path, "read_text", lambda path: f"0 {waited.pop(0)} 0")
    world, probe = SimpleNamespace(gather=lambda mine, what: [mine]), SimpleNamespace(measure=lambda: probed.pop(0))
    with monitor_round(world, probe) as ranks:
        pass
    assert largest(ranks, [0]) == Disturbance(share, flipped)


def test_pairs_have_it_and_its_twin(tmp_path):
    check_command(tmp_path, ["pairs"])


@pytest.mark.system
def test_pairs_report_it_too(tmp_path):
    line = ["pairs", "--backend", "simulated", "--ranks", "2", "--max-time", "0.05", "--out", "run", "--slowed", "by=100% sizes=1M"]
    assert run_here(tmp_path, *line).returncode == 0
    found = read_run(tmp_path / "run")
    assert found.info["slowed"] == ["by=100% sizes=1M"]
    assert ["slowed" in one.flags for one in read_pairs(found).rounds] == [True]
