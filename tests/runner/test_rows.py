"""The doubts that a series of samples raises: each is a flag on the row, never a traceback or a false interval."""

from types import SimpleNamespace

import numpy as np
import pytest

from collbench.operations.allreduce import ALLREDUCE
from collbench.runner.rows import Circumstances, doubts, make_row
from collbench.runner.watched import Watched
from collbench.timing.protocol import Measured
from tests.helpers import make_cell

RANDOM = np.random.default_rng(7)
STEADY = RANDOM.normal(10e-6, 0.1e-6, 300)
BACKEND = SimpleNamespace(name="mpi", api="mpi", ranks=2)


def row_of(samples, starts=None, flags=(), mode="isolated", **seen):
    """The row of samples [2 ranks × n] of an all-reduce of 400 bytes."""
    measured = Measured(np.array(samples, float), 0.03, True, "precision", flags=list(flags))
    measured.starts_ns = np.zeros_like(measured.samples) if starts is None else np.array(starts, float)
    known = {"canary_s": {}, "silent": False, "stolen": None, "preempted": 0, "repeats": 0, "flipped": False}
    ready = SimpleNamespace(
        operation=ALLREDUCE,
        cell=make_cell(backend="mpi", mode=mode),
        groups=((0, 1),),
        timed=[0, 1],
        synchronised=True,
        loop=SimpleNamespace(iterations=1),
    )
    return make_row(ready, BACKEND, Watched(measured, **{**known, **seen}), Circumstances([[0, 1]]))[0]


def test_a_steady_series_raises_no_doubt():
    assert list(doubts(STEADY, 300, np.full(300, 1e-7), 1)) == []


@pytest.mark.parametrize(("series", "word"), [
    (np.full(300, 1e-6), "constant"),
    (np.where(RANDOM.random(300) < 0.82, 2.3e-6, 10.7e-6) * RANDOM.normal(1, 0.01, 300), "two_modes"),
    (STEADY * np.linspace(1, 1.2, 300), "drift"),
])  # fmt: skip
def test_a_series_that_one_number_would_hide(series, word):
    assert word in list(doubts(series, 300, None, 1))


@pytest.mark.parametrize(("skew_s", "moves", "flagged"), [(0.9e-6, 1, False), (1.1e-6, 1, True), (1.1e-6, 64, False)])
def test_ranks_that_left_the_synchronisation_more_than_a_tenth_of_a_sample_apart(skew_s, moves, flagged):
    assert ("skew_limited" in list(doubts(STEADY, 300, np.full(300, skew_s), moves))) is flagged


def test_two_modes_stand_on_the_row():
    fast = RANDOM.random(400) < 0.82
    row = row_of([np.where(fast, 2.3e-6, 10.7e-6) * RANDOM.normal(1, 0.01, 400), np.full(400, 1e-6)])
    assert "two_modes" in row.flags
    assert [mode["time_s"] for mode in row.modes] == pytest.approx([2.3e-6, 10.7e-6], rel=0.01)
    assert [mode["share"] for mode in row.modes] == pytest.approx([fast.mean(), 1 - fast.mean()], abs=0.01)


def test_equal_samples_have_no_interval():
    row = row_of(np.full((2, 100), 1e-6))
    assert (row.time_s.p50, row.time_s.ci_low, row.time_s.ci_high) == (1e-6, None, None)
    assert "constant" in row.flags


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-6])
def test_samples_that_no_clock_can_give_are_left_out_at_all_ranks(bad):
    samples = np.array([STEADY, STEADY / 2])
    samples[1, 10] = bad
    row = row_of(samples)
    assert (row.n, row.evidence["unsound_samples"], "clock_stepped" in row.flags) == (299, 1, True)
    assert row.time_s.p50 == pytest.approx(10e-6, rel=0.01)


def test_without_a_single_sound_sample_there_is_no_figure():
    row = row_of(np.full((2, 5), np.nan), flags=["few_samples"])
    assert (row.n, row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.modes) == (0, None, None, None, [])
    assert row.flags == ("few_samples", "clock_stepped")


def test_the_skew_is_evidence_of_isolated_rows():
    starts = [np.arange(300.0) * 1000, np.arange(300.0) * 1000 + 2000]
    samples = [STEADY, STEADY]
    assert row_of(samples, starts).evidence["exit_skew_s"] == pytest.approx({"p50": 2e-6, "p95": 2e-6})
    assert "skew_limited" in row_of(samples, starts).flags
    assert "exit_skew_s" not in row_of(samples, starts, mode="batched").evidence
    assert "exit_skew_s" not in row_of(samples, np.full((2, 300), np.nan)).evidence


def test_what_was_seen_around_the_cell_stands_on_the_row():
    row = row_of([STEADY, STEADY], canary_s={"before": 65e-9, "after": 66e-9}, stolen=0.05, preempted=7, repeats=1)
    assert (row.canary_s, row.stopped, row.reached) == ({"before": 65e-9, "after": 66e-9}, "precision", True)
    assert (row.evidence["stolen"], row.evidence["preempted"], row.evidence["repeats"]) == (0.05, 7, 1)
    assert row.flags == ("remeasured", "cpu_shared")
