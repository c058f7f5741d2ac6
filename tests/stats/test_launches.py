"""Medians and ratios over launches."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.stats.launches import (
    Ratio,
    Spread,
    inverse,
    over_launches,
    ratio_by_scatter,
    ratio_of_launches,
    ratio_of_medians,
    ratio_of_pairs,
)
from collbench.stats.median import Median


def test_one_launch_has_no_interval_and_two_have_students_on_ln_scale():
    assert over_launches([2e-6]) == Spread(2e-6, None, None, 1)
    known = over_launches([1.0, math.e])
    assert (known.value, known.n) == ((1 + math.e) / 2, 2)
    assert (math.log(known.low), math.log(known.high)) == pytest.approx((0.5 - 12.7062047362 / 2, 0.5 + 12.7062047362 / 2))


@pytest.mark.parametrize(("n", "rank"), [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5), (30, 9), (100, 39)])
def test_from_six_on_the_ranks_are_those_of_the_sign_tests_table(n, rank):
    known = over_launches(np.random.default_rng(1).permutation(np.arange(1.0, n + 1)))
    assert (known.value, known.low, known.high, known.n) == ((n + 1) / 2, rank + 1, n - rank, n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 10, 20])
def test_the_interval_has_its_nominal_coverage(n):
    random = np.random.default_rng(n)
    found = [over_launches(launches(random, n)) for _ in range(600)]
    assert 0.93 <= np.mean([known.low <= 1 <= known.high for known in found]) <= 0.99


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30), st.randoms())
def test_the_interval_holds_the_median_in_any_order_and_unit(medians, random):
    known = over_launches(medians)
    assert (known.low is None) == (known.high is None) == (len(medians) == 1)
    assert known.low is None or known.low <= known.value * (1 + 1e-9) <= known.high * (1 + 2e-9)
    scaled = over_launches([value * 1e-3 for value in random.sample(medians, len(medians))])
    assert scaled.value == pytest.approx(known.value * 1e-3)
    if known.low is not None and known.high < 1e100:
        assert (scaled.low, scaled.high) == pytest.approx((known.low * 1e-3, known.high * 1e-3), rel=1e-6)


def launches(random, n, centre=1.0):
    """Medians of launches by MEASUREMENT.md's noise model."""
    return centre * np.exp(0.03 * random.standard_t(4, n) / math.sqrt(2))


def test_launches_of_both_sides_combine_their_intervals_and_without_spread_are_exact():
    # Equal spreads s: two degrees of freedom, standard error s.
    s = 0.01
    spread = [math.exp(-s / math.sqrt(2)), math.exp(s / math.sqrt(2))]
    known = ratio_of_launches(spread, [1.5 * value for value in spread])
    assert (known.value, known.n) == (pytest.approx(1.5), 2)
    assert (math.log(known.low / 1.5), math.log(known.high / 1.5)) == pytest.approx((-4.3026527297 * s, 4.3026527297 * s))
    # from six on the rank intervals of both are combined
    before, after = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0] * 6
    known = ratio_of_launches(before, after)
    assert (known.value, known.n) == (pytest.approx(1.6), 6)
    assert (known.low, known.high) == pytest.approx((2 / 1.5, 2.0))
    assert ratio_of_launches([2.0, 2.0], [3.0, 3.0]) == Ratio(1.5, 1.5, 1.5, 2)


@pytest.mark.parametrize(("before", "after"), [([1.0], [2.0, 2.1, 2.2]), ([1.0, 1.1], [2.0]), ([1.0], [2.0])])
def test_one_launch_on_a_side_is_no_evidence(before, after):
    assert ratio_of_launches(before, after) == Ratio(np.median(after) / np.median(before), None, None, 1)


@pytest.mark.parametrize(("a", "b"), [(2, 2), (3, 3), (3, 6), (5, 5), (6, 6), (10, 10), (5, 20)])
def test_the_interval_of_launches_has_its_nominal_coverage(a, b):
    random = np.random.default_rng(a * 100 + b)
    found = [ratio_of_launches(launches(random, a), launches(random, b, 1.2)) for _ in range(400)]
    assert 0.93 <= np.mean([known.low <= 1.2 <= known.high for known in found]) <= 1.0


@pytest.mark.parametrize("n", [3, 5, 20])
@pytest.mark.parametrize("sides", [(1, 1), (1, 0)])
def test_the_interval_by_scatter_has_its_nominal_coverage(n, sides):
    """One launch each and n others; or one launch against the n, of which the median is the other side."""
    random = np.random.default_rng(n)
    held = []
    for _ in range(600):
        others = launches(random, n)
        before = launches(random, 1)[0] if sides[1] else np.exp(np.log(others).mean())
        within = Ratio(1.2 * launches(random, 1)[0] / before, None, None, 1)
        found = ratio_by_scatter(within, others, (1, 1) if sides[1] else (n, 1))
        held.append(found.low <= 1.2 <= found.high)
    assert 0.92 <= np.mean(held) <= 1.0


def test_a_scatter_of_too_few_or_rounded_launches_is_unknown():
    within = Ratio(2.0, 1.9, 2.1, 60)
    assert ratio_by_scatter(within, [1.0, 1.1], (1, 1)) is within
    for rounded in (1.0, 2.5e-7, 1.2e-7):  # the standard deviation of the logarithms of equal ones is not always 0
        for count in (3, 5, 6, 7):
            assert ratio_by_scatter(within, [rounded] * count, (1, 1)) is within


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_interval_of_equal_launches_contains_their_median(count):
    for value in (2.3e-6, 2.5e-7, 1.2e-7):
        known = over_launches([value] * count)
        assert known.low <= value <= known.high


def test_medians_are_combined_in_quadrature_on_ln_scale_if_both_have_an_interval():
    before, after = Median(1.0, math.exp(-0.03), math.exp(0.03), 60, 50.0), Median(2.0, 2 * math.exp(-0.04), 2 * math.exp(0.04), 80, 50.0)
    known = ratio_of_medians(before, after)
    assert (known.value, known.low, known.high, known.n) == pytest.approx((2.0, 2 * math.exp(-0.05), 2 * math.exp(0.05), 60))
    known, few = Median(1.0, 0.9, 1.1, 60, 50.0), Median(2.0, None, None, 4, None)
    assert ratio_of_medians(known, few) == Ratio(2.0, None, None, 4)
    assert ratio_of_medians(few, known) == Ratio(0.5, None, None, 4)
    assert ratio_of_medians(Median(1.0, 0.0, 1.1, 9, None), known) == Ratio(1.0, None, None, 9)


def test_pairs_cancel_what_both_share_and_have_the_rank_interval_of_their_ratios():
    random = np.random.default_rng(1)
    state = random.lognormal(0, 1, 20)
    known = ratio_of_pairs(state, 1.01 * state * random.lognormal(0, 0.001, 20))
    assert (known.value, known.n) == (pytest.approx(1.01, rel=1e-3), 20)
    assert 1.008 < known.low < known.value < known.high < 1.012
    after = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
    assert ratio_of_pairs([1.0] * 6, after) == Ratio(3.5, 1.0, 6.0, 6)
    assert ratio_of_pairs([2.0], [1.0]) == Ratio(0.5, None, None, 1)


@pytest.mark.parametrize("n", [3, 6, 20])
def test_the_interval_of_pairs_has_its_nominal_coverage(n):
    random, found = np.random.default_rng(n), []
    for _ in range(400):
        state = random.lognormal(0, 1, n)
        found.append(ratio_of_pairs(state * launches(random, n), state * launches(random, n, 1.2)))
    assert 0.93 <= np.mean([known.low <= 1.2 <= known.high for known in found]) <= 0.99


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [math.nan, 1.0], [1.0] * 6 + [math.inf]])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="median"):
        over_launches(bad)
    with pytest.raises(ValueError, match="median"):
        ratio_of_launches([1.0, 2.0], bad)
    with pytest.raises(ValueError, match="median"):
        ratio_of_pairs(bad, bad)


def test_a_median_of_zero_and_sides_of_different_length_have_no_ratio():
    with pytest.raises(ValueError, match="equally many"):
        ratio_of_pairs([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="median"):
        ratio_of_medians(Median(0.0, None, None, 0, None), Median(1.0, 0.9, 1.1, 60, 50.0))


times = st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=12)


@given(times, times)
def test_the_interval_holds_the_ratio_the_unit_does_not_matter_and_the_other_way_round_it_is_the_inverse(before, after):
    known, back = ratio_of_launches(before, after), ratio_of_launches(after, before)
    scaled = ratio_of_launches([1e3 * value for value in before], [1e3 * value for value in after])
    assert known.n == scaled.n == min(len(before), len(after))
    assert (scaled.value, back.value) == pytest.approx((known.value, 1 / known.value))
    if known.low is not None:
        assert math.log(known.low) == pytest.approx(-math.log(back.high), rel=1e-6, abs=1e-6)
        assert known.low <= known.value * (1 + 1e-12) <= known.high * (1 + 2e-12)
        assert (math.log(scaled.low), math.log(scaled.high)) == pytest.approx((math.log(known.low), math.log(known.high)), abs=1e-6)


def test_the_interval_by_scatter_is_students_and_that_of_the_launches_in_quadrature():
    others = [math.exp(-0.01), 1.0, math.exp(0.01)]  # a standard deviation of 0.01 on ln scale
    half = 4.3026527297 * 0.01 * math.sqrt(1 + 1 / 4)
    intervals = ((None, None), (2 * math.exp(-0.03), None), (2 * math.exp(-0.03), 2 * math.exp(0.04)))
    found = [ratio_by_scatter(Ratio(2.0, *interval, 60), others, (1, 4)) for interval in intervals]
    assert [known.n for known in found] == [3, 3, 3]
    assert [math.log(known.low / 2) for known in found] == pytest.approx([-half, *[-math.hypot(half, 0.03)] * 2])
    assert [math.log(known.high / 2) for known in found] == pytest.approx([half, half, math.hypot(half, 0.04)])


def test_an_inverse_has_its_interval():
    assert inverse(Ratio(2.0, 1.6, 2.5, 6)) == Ratio(0.5, 0.4, 0.625, 6)
    assert inverse(Ratio(4.0, None, None, 1)) == Ratio(0.25, None, None, 1)
