"""Intervals over launches: Student's for few, order statistics from six on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.stats.launches import Spread, over_launches


def launches(random, n):
    """Medians of launches by MEASUREMENT.md's noise model, around 1."""
    return np.exp(0.03 * random.standard_t(4, n) / math.sqrt(2))


def test_one_launch_has_no_interval():
    assert over_launches([2e-6]) == Spread(2e-6, None, None, 1)


def test_two_launches_have_students_interval_on_ln_scale():
    known = over_launches([1.0, math.e])
    assert (known.value, known.n) == ((1 + math.e) / 2, 2)
    assert math.log(known.low) == pytest.approx(0.5 - 12.7062047362 / 2)
    assert math.log(known.high) == pytest.approx(0.5 + 12.7062047362 / 2)


@pytest.mark.parametrize(("n", "rank"), [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5), (30, 9), (100, 39)])
def test_from_six_on_the_ranks_are_those_of_the_sign_tests_table(n, rank):
    known = over_launches(np.random.default_rng(1).permutation(np.arange(1.0, n + 1)))
    assert (known.value, known.low, known.high, known.n) == ((n + 1) / 2, rank + 1, n - rank, n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 10, 20])
def test_the_interval_has_its_nominal_coverage(n):
    random = np.random.default_rng(n)
    found = [over_launches(launches(random, n)) for _ in range(600)]
    assert 0.93 <= np.mean([known.low <= 1 <= known.high for known in found]) <= 0.99


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [math.nan, 1.0], [1.0] * 6 + [math.inf]])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="median"):
        over_launches(bad)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30), st.randoms())
def test_the_interval_holds_the_median_in_any_order_and_unit(medians, random):
    known = over_launches(medians)
    assert (known.low is None) == (known.high is None) == (len(medians) == 1)
    assert known.low is None or known.low <= known.value * (1 + 1e-9) <= known.high * (1 + 2e-9)
    scaled = over_launches([value * 1e-3 for value in random.sample(medians, len(medians))])
    assert scaled.value == pytest.approx(known.value * 1e-3)
    if known.low is not None and known.high < 1e100:
        assert (scaled.low, scaled.high) == pytest.approx((known.low * 1e-3, known.high * 1e-3), rel=1e-6)
