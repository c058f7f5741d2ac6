"""The trials of lost packets and full queues: one of each kind, and what the series takes in turn."""

from dataclasses import replace

import pytest

from tools.benchmarks.trials.losses import COUNTS, EXCHANGES, QUEUES, Trial, drawn, run_trial, table, wanted

TRIAL = Trial("healthy", 0, "allreduce", "gloo", QUEUES[0], [], [], 9.5, 1.2, "2026-11-29")


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", COUNTS)
def test_exactly_lost_packets_suspect_cables(kind, slurm_hosts):
    assert slurm_hosts.hosts
    trial = run_trial(slurm_hosts.hosts, slurm_hosts, kind, 0)
    assert trial.right and trial.rows, trial


def test_every_exchange_meets_every_queue_in_both_kinds():
    pairs = len(EXCHANGES) * len(QUEUES)
    for kind in COUNTS:
        seeds = [seed for each, seed in wanted(COUNTS) if each == kind]
        assert seeds == list(range(COUNTS[kind])) and len({drawn(seed) for seed in seeds}) == pairs


def test_a_suspicion_without_a_loss_and_a_loss_without_one_are_wrong():
    accused = replace(TRIAL, seed=1, suspects=["Check cables"])
    silent = replace(TRIAL, kind="lossy")
    assert [one.right for one in (TRIAL, accused, silent, replace(accused, kind="lossy"))] == [True, False, False, True]
    lines = table([TRIAL, accused, silent]).splitlines()
    assert lines[2] == "| healthy | allreduce over gloo | host, 50 ms | 2 | 0 to 0 | 1 | 9.5 to 9.5 | 1.2 to 1.2 |"
    assert lines[-2:] == ["- healthy, seed 1: Check cables", "- lossy, seed 0: no line suspects cables"]
