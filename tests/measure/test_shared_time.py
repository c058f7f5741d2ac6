"""The total time of a launch is divided among its cases, and what a case does not use goes to those that follow."""

from __future__ import annotations

import pytest

from collbench.measure.request import Budget, SharedTime

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_equal_cases_get_equal_shares_and_the_sum_is_the_total() -> None:
    clock = Clock()
    times, shares = SharedTime(Budget(total_s=10.0), [8] * 5, clock), []
    for _ in range(5):
        shares.append(times.next().max_time_s)
        clock.now_s += shares[-1]
    assert shares == pytest.approx([2.0] * 5, rel=1e-5)


def test_large_messages_get_more() -> None:
    small, large = (SharedTime(Budget(total_s=10.0), sizes, Clock()).next().max_time_s for sizes in ([8, 64 * MIB], [64 * MIB, 8]))
    assert (small, large) == pytest.approx((1.0, 5.0), rel=1e-5)  # 9 s, but --max-time comes first
    assert SharedTime(Budget(60.0, total_s=10.0), [1024 * MIB, 64 * MIB], Clock()).next().max_time_s == pytest.approx(5.0)


def test_unused_time_goes_to_the_cases_that_follow() -> None:
    clock = Clock()
    times = SharedTime(Budget(total_s=10.0), [8] * 10, clock)
    assert times.next().max_time_s == pytest.approx(1.0)
    clock.now_s += 0.1
    assert times.next().max_time_s == pytest.approx(1.1)


def test_late_cases_are_still_measured_in_the_same_way() -> None:
    clock = Clock()
    times = SharedTime(Budget(5.0, warmup=3, precision=0.1, total_s=10.0), [8, 8], clock)
    clock.now_s += 60
    assert times.next() == Budget(0.05, warmup=3, precision=0.1, total_s=10.0)


def test_without_a_total_every_case_has_the_same_budget() -> None:
    times = SharedTime(Budget(5.0), [8, 64 * MIB], Clock())
    assert [times.next(), times.next()] == [Budget(5.0)] * 2
