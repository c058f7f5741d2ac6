"""Which stored values are times and figures."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.analysis.launches import forced, is_time, known, time_of
from tests.results.rows import make_row, make_times, not_measured


@pytest.mark.parametrize(
    ("value", "is_known", "is_a_time"),
    [
        (1e-6, True, True), (1, True, True), (0, False, False), (0.0, False, False), (-1.0, False, False), (True, False, False),
        (float("nan"), False, False), (float("inf"), False, False), (None, False, False), ("1", False, False), (1e-15, True, True),
        (9e-16, True, False), (1e12, True, True), (1.1e12, True, False),
    ],
)  # fmt: skip
def test_figures_are_finite_and_above_0(value: Any, is_known: bool, is_a_time: bool) -> None:
    assert (known(value), is_time(value)) == (is_known, is_a_time)


def test_the_time_of_a_row() -> None:
    assert time_of(make_row(time_s=make_times(2e-6))) == 2e-6
    assert time_of(make_row(time_s=make_times(0.0))) is None
    assert time_of(not_measured("no memory")) is None


def test_what_a_library_was_forced_to_use() -> None:
    assert [forced(make_row(**each)) for each in ({}, {"algorithm": "tree"}, {"algorithm": "tree", "protocol": "ll128"})] == [
        "",
        "tree",
        "tree/ll128",
    ]
