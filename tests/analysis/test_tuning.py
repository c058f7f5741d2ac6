"""The automatic choice against forced ones: what is claimed, what is not, what cannot be judged."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.analysis.best import JudgedChoice, judged
from collbench.results.row import Row, Times
from tests.results.rows import make_row, make_times, not_measured

K = 1024


def row(p50: float, algorithm: str | None = None, protocol: str | None = None, **changes: Any) -> Row:
    """A row of 4 KiB with an interval of ±1 % of its median."""
    values = {"time_s": make_times(p50), "registration": "none", "algorithm": algorithm, "protocol": protocol, **changes}
    return make_row(**{"size_bytes": 4 * K, **values})


def only(rows: list[Row]) -> JudgedChoice:
    (found,) = judged(rows)
    return found


def test_a_forced_choice_that_is_clearly_faster_is_named_with_what_is_lost() -> None:
    rows = [row(100e-6), row(97e-6, "ring"), row(88e-6, "tree", "ll128"), row(89e-6, "tree", "ll")]
    (loss,) = only(rows).losses
    assert (loss.better.algorithm, loss.better.protocol, loss.better.size_bytes) == ("tree", "ll128", 4 * K)
    assert loss.part == pytest.approx(0.12)
    assert loss.low == pytest.approx(0.1076, abs=5e-4) and loss.high == pytest.approx(0.1324, abs=5e-4)


@pytest.mark.parametrize("forced", [98.5e-6, 100e-6, 130e-6])
def test_overlapping_intervals_and_slower_ones_claim_nothing(forced: float) -> None:
    found = only([row(100e-6), row(forced, "tree")])
    assert (found.losses, found.as_good, found.unknown) == ((), (4 * K,), ())
    assert found.within == pytest.approx(max(0.0, 1 - forced / 100e-6 * 0.986), abs=1e-3)


def test_a_fast_but_wrong_row_is_no_better_choice() -> None:
    assert only([row(100e-6), row(50e-6, "tree", wrong=3), row(101e-6, "ring")]).as_good == (4 * K,)


@pytest.mark.parametrize("flag", ["two_modes", "drift", "state_flip", "oversubscribed", "budget_exceeded"])
def test_a_time_that_is_not_one_number_is_left_out(flag: str) -> None:
    assert only([row(100e-6), row(50e-6, "tree", flags=(flag,))]).unknown == (4 * K,)
    assert only([row(100e-6, flags=(flag,)), row(50e-6, "tree")]).unknown == (4 * K,)


def test_without_an_interval_nothing_is_claimed() -> None:
    bare = Times(50e-6, None, None, 40e-6, 60e-6, 60e-6, 60e-6)
    assert only([row(100e-6), row(1.0, "tree", time_s=bare)]).unknown == (4 * K,)


def test_a_choice_that_the_library_refuses_is_left_out() -> None:
    refused = not_measured("no nvls here", size_bytes=4 * K, registration="none", algorithm="nvls")
    assert only([row(100e-6), refused, row(90e-6, "tree")]).losses[0].better.algorithm == "tree"
    assert only([row(100e-6), refused]).unknown == (4 * K,)


def test_sizes_are_judged_each_and_ascend() -> None:
    rows = [made for size in (64 * K, 8, K) for made in (row(100e-6, size_bytes=size), row(80e-6, "tree", size_bytes=size))]
    rows += [row(100e-6, size_bytes=16), row(120e-6, "tree", size_bytes=16), row(90e-6, "tree", size_bytes=32)]
    found = only(rows)
    assert [loss.better.size_bytes for loss in found.losses] == [8, K, 64 * K]
    assert (found.as_good, found.unknown) == ((16,), (32,))


def test_only_like_is_set_against_like() -> None:
    rows = [row(100e-6), row(50e-6, "tree", registration="symmetric"), row(60e-6, registration="symmetric"), row(99e-6, "ring")]
    rows += [row(10e-6, backend="mpi", registration=None)]
    first, second = judged(rows)
    assert (first.row.registration, first.losses, first.as_good) == ("none", (), (4 * K,))
    assert (second.row.registration, second.losses[0].better.algorithm) == ("symmetric", "tree")


def test_without_anything_forced_there_is_nothing_to_judge() -> None:
    assert judged([row(1e-6), row(2e-6, backend="mpi")]) == []


def launches(medians: list[float], **changes: Any) -> Row:
    times = Times(medians[1], min(medians), max(medians), 0.0, 1.0, 1.0, 1.0)
    return row(1.0, **{**changes, "time_s": times, "launches": len(medians), "evidence": {"launch_medians_s": medians}})


def test_over_launches_the_interval_is_theirs() -> None:
    own, better = launches([1.00e-4, 1.01e-4, 1.02e-4]), launches([0.90e-4, 0.91e-4, 0.92e-4], algorithm="tree")
    (loss,) = only([own, better]).losses
    assert loss.part == pytest.approx(1 - 0.91 / 1.01)
    assert 0.05 < loss.low < loss.part < loss.high < 0.15
    two = [launches(medians[:2], algorithm=name) for medians, name in (([1.0e-4, 1.1e-4], None), ([0.8e-4, 0.99e-4], "tree"))]
    assert (only(two).losses, only(two).as_good) == ((), (4 * K,))
    assert only(two).within > 0.5  # two launches give little information, and the result shows it


@pytest.mark.parametrize("medians", [None, "x", [1e-4], [1e-4, "x"], [1e-4, float("nan")]])
def test_medians_that_a_file_has_wrong_fall_back_to_the_intervals(medians: Any) -> None:
    own, better = row(100e-6, launches=2, evidence={"launch_medians_s": medians}), row(80e-6, "tree")
    assert only([own, better]).losses[0].part == pytest.approx(0.2)
