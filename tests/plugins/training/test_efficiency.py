"""The efficiency of a training step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.plugins.training.records import Share, efficiency

TIMES = st.floats(1e-6, 1e4)


def test_by_hand() -> None:
    found = efficiency(0.180, 0.060, 0.045, 0.120)
    assert (found.apart.value, found.apart.low, found.apart.high) == pytest.approx((180 / 240, 180 / 300, 180 / 225))
    assert found.overlap == Share(1.0, 1.0, 1.0)


def test_an_exchange_that_takes_longer_than_computing_is_not_hidden() -> None:
    found = efficiency(0.1, 0.4, 0.2, 0.5)
    assert (found.apart.value, found.overlap.value) == pytest.approx((0.2, 0.25))
    assert (found.overlap.low, found.overlap.high) == pytest.approx((0.2, 0.5))


def test_without_an_interval_there_is_none() -> None:
    found = efficiency(0.3, 0.1).apart
    assert found.value == pytest.approx(0.75) and (found.low, found.high) == (None, None)


def test_a_step_that_exchanges_nothing_is_whole() -> None:
    assert efficiency(0.3, 0.0).apart.value == efficiency(0.3, 0.0).overlap.value == 1.0


@given(TIMES, TIMES, TIMES)
def test_the_ends_are_in_order(compute_s: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = efficiency(compute_s, (low + high) / 2, low, high)
    for share in (found.apart, found.overlap):
        assert share.low is not None and share.high is not None
        assert 0 < share.low <= share.value * (1 + 1e-12) and share.value <= share.high * (1 + 1e-12) <= 1 + 1e-9
    assert found.apart.value <= found.overlap.value <= 2 * found.apart.value * (1 + 1e-12), "overlap halves a step at most"


@pytest.mark.parametrize("times", [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (float("nan"), 1.0), (1.0, float("nan"))])
def test_times_that_are_none(times: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="more than 0 s"):
        efficiency(*times)
