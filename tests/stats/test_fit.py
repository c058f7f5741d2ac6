"""α-β fits: exact without noise, close to the truth with it, and not bent by a bad size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.stats.fit import Bounds, Fit, FitSegment, Points, determined, fit, points, through

SIZES = 8.0 * 2.0 ** np.arange(28)  # 8 B to 1 GiB


def one_protocol(sizes):
    return 8e-6 + sizes / 48e9


def three_protocols(sizes):
    return np.where(sizes <= 2**14, 2e-6 + sizes / 6e9, np.where(sizes <= 2**20, 5e-6 + sizes / 20e9, 8e-6 + sizes / 48e9))


def eight_microseconds_first(sizes):
    """MEASUREMENT.md's truth: 8 µs at small sizes, 48 GB/s at large ones, a copying protocol and a slower start between."""
    return np.where(sizes <= 2**13, 8e-6 + sizes / 12e9, np.where(sizes <= 2**18, 14e-6 + sizes / 24e9, 30e-6 + sizes / 48e9))


def noisy(truth, seed, sizes=SIZES, sigma=0.02):
    return truth(sizes) * np.random.default_rng(seed).normal(1, sigma, len(sizes))


def holds(bounds, truth):
    return bounds.low <= truth <= bounds.high


def test_without_noise_one_and_three_protocols_are_exact():
    found = fit(SIZES, one_protocol(SIZES))
    (regime,) = found.regimes
    assert (regime.first, regime.last, found.off) == (8, 2**30, ())
    assert (regime.alpha_s.value, 1 / regime.s_per_byte.value) == pytest.approx((8e-6, 48e9), rel=1e-9)
    assert regime.alpha_s.high - regime.alpha_s.low < 1e-12
    found = fit(SIZES, three_protocols(SIZES))
    assert [(regime.first, regime.last) for regime in found.regimes] == [(8, 2**14), (2**15, 2**20), (2**21, 2**30)]
    assert [regime.alpha_s.value for regime in found.regimes] == pytest.approx([2e-6, 5e-6, 8e-6], rel=1e-6)
    assert [1 / regime.s_per_byte.value for regime in found.regimes] == pytest.approx([6e9, 20e9, 48e9], rel=1e-6)
    assert found.off == ()


def test_the_truth_is_recovered_from_three_protocols_and_two_percent_of_noise():
    first, _, last = fit(SIZES, noisy(eight_microseconds_first, 1)).regimes
    alpha, rate = first.alpha_s, last.s_per_byte
    assert (alpha.value, 1 / rate.value) == pytest.approx((8e-6, 48e9), rel=0.02)
    assert holds(alpha, 8e-6) and holds(rate, 1 / 48e9)
    assert alpha.high - alpha.low < 0.06 * alpha.value


def test_the_intervals_have_their_nominal_coverage():
    found = [fit(SIZES, noisy(three_protocols, seed)).regimes for seed in range(40)]
    held = [holds(each[k].alpha_s, a) and len(each) == 3 for each in found for k, a in ((0, 2e-6), (-1, 8e-6))]
    held += [holds(each[k].s_per_byte, 1 / rate) for each in found for k, rate in ((0, 6e9), (-1, 48e9))]
    assert 0.88 <= np.mean(held) <= 0.99


@pytest.mark.long
@pytest.mark.parametrize("sizes", [SIZES, SIZES[::2], SIZES[10:20]], ids=len)
def test_one_regime_is_seldom_taken_for_two_and_its_intervals_hold(sizes):
    found = [fit(sizes, noisy(one_protocol, seed, sizes)).regimes for seed in range(400)]
    assert np.mean([len(each) == 1 for each in found]) >= 0.90
    assert np.mean([holds(each[-1].alpha_s, 8e-6) for each in found]) >= 0.88
    assert np.mean([holds(each[-1].s_per_byte, 1 / 48e9) for each in found]) >= 0.90


@pytest.mark.parametrize("factor", [0.5, 1.5, 10.0])
@pytest.mark.parametrize("place", [0, 3, 13, 27])
def test_a_bad_size_is_reported_and_does_not_bend_the_fit(factor, place):
    times = one_protocol(SIZES)
    times[place] *= factor
    found = fit(SIZES, times)
    assert found.off == ((SIZES[place], pytest.approx(factor - 1)),)
    assert [regime.alpha_s.value for regime in found.regimes] == pytest.approx([8e-6])
    assert [regime.s_per_byte.value for regime in found.regimes] == pytest.approx([1 / 48e9])


def test_in_noise_a_bad_size_is_reported_too_and_seldom_a_switch_of_protocol():
    found = []
    for seed in range(20):
        times = noisy(three_protocols, seed)
        times[4] *= 1.5
        found.append([size for size, _ in fit(SIZES, times).off])
    assert found.count([128.0]) >= 19
    assert np.mean([len(fit(SIZES, noisy(one_protocol, seed)).regimes) == 1 for seed in range(40)]) >= 0.8


def test_the_fitted_time_goes_on_outside_and_many_sizes_are_fitted_in_little_time():
    low = FitSegment(8, 64, Bounds(1.0, 1.0, 1.0), Bounds(0.0, 0.0, 0.0))
    high = FitSegment(128, 512, Bounds(2.0, 2.0, 2.0), Bounds(0.5, 0.5, 0.5))
    found = Fit((low, high), ())
    assert [found.time_s(size) for size in (1, 8, 64, 100, 128, 1000)] == [1, 1, 1, 1, 66, 502]
    sizes = np.arange(1, 301) * 4096.0
    found = fit(sizes, np.where(sizes <= 150 * 4096, 1e-6 + sizes / 1e9, 1e-4 + sizes / 1e10))
    assert [regime.alpha_s.value for regime in found.regimes] == pytest.approx([1e-6, 1e-4], rel=1e-3)
    assert found.regimes[0].last == 150 * 4096


def test_sizes_that_repeat_are_medians_unsound_ones_are_dropped_and_fewer_than_four_have_no_fit():
    assert fit([], []) is fit([8, 8, 16, 32], [1, 1, 2, 3]) is fit([8, 16, 32, 64], [1, 2, 3, np.nan]) is None
    sizes, times = [0, 1, 2, 3, 3, 3, 5, 6, np.nan, -1], [1, 2, 3, 4, 90, 4, np.inf, -7, 1, 1]
    (regime,) = fit(sizes, times).regimes
    assert (regime.first, regime.last) == (0, 3)
    assert (regime.alpha_s.value, regime.s_per_byte.value) == pytest.approx((1, 1))
    with pytest.raises(ValueError, match="equally many"):
        fit([1, 2], [1])


@given(st.lists(st.tuples(st.integers(0, 2**40), st.floats(1e-9, 1e4)), max_size=14), st.randoms())
def test_for_any_times_every_size_is_in_a_regime_and_order_does_not_matter(pairs, random):
    found = fit(*zip(*pairs, strict=True)) if pairs else None
    distinct = sorted({float(size) for size, _ in pairs})
    assert (found is None) == (len(distinct) < 4)
    if found:
        assert (found.regimes[0].first, found.regimes[-1].last) == (distinct[0], distinct[-1])
        assert all(a.last < b.first for a, b in zip(found.regimes, found.regimes[1:], strict=False))
        assert [size for size, _ in found.off] == sorted(size for size, _ in found.off)
        assert all(holds(regime.alpha_s, regime.alpha_s.value) for regime in found.regimes)
        assert fit(*zip(*random.sample(pairs, len(pairs)), strict=True)) == found


@given(st.integers(0, 50))
def test_another_unit_scales_the_fit(seed):
    times = noisy(one_protocol, seed, SIZES[::3])
    known, scaled = fit(SIZES[::3], times), fit(SIZES[::3] / 1024, times * 1e6)
    assert len(known.regimes) == len(scaled.regimes)
    for a, b in zip(known.regimes, scaled.regimes, strict=True):
        assert (b.alpha_s.low, b.alpha_s.high) == pytest.approx((1e6 * a.alpha_s.low, 1e6 * a.alpha_s.high), rel=1e-5)
        assert b.s_per_byte.value == pytest.approx(1e6 * 1024 * a.s_per_byte.value, rel=1e-5)


def test_the_intervals_are_those_of_least_squares_where_no_point_is_bad():
    """Times off by 1 % to either side in turn: all weigh alike, and numpy's least squares gives the same line and the same errors."""
    sizes = SIZES[:16]
    times = one_protocol(sizes) * (1 + 0.01 * (-1.0) ** np.arange(16))
    found = fit(sizes, times)
    (regime,) = found.regimes
    matrix = np.stack([1 / times, sizes / times], axis=1)
    (alpha, beta), misfit, *_ = np.linalg.lstsq(matrix, np.ones(16), rcond=None)
    errors = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)) * misfit[0] / 14)
    reach = 2.1447866879 * errors  # Student's t with 14 degrees of freedom
    assert (regime.alpha_s.value, regime.s_per_byte.value) == pytest.approx((alpha, beta))
    assert regime.alpha_s.high - alpha == pytest.approx(reach[0], rel=1e-3)
    assert regime.s_per_byte.high - beta == pytest.approx(reach[1], rel=1e-3)


@pytest.mark.parametrize(("count", "bad", "kept"), [(12, 0, 12), (12, 2, 10), (12, 3, 12), (4, 1, 3), (4, 2, 4)])
def test_at_most_one_point_in_six_of_a_line_is_left_out_as_bad(count, bad, kept):
    times = one_protocol(SIZES[:count])
    times[1 : bad + 1] *= 1.5
    line = through(Points(SIZES[:count], times, 0.01), count)
    assert np.count_nonzero(line.weights) == kept


def test_noise_is_the_misfit_to_the_line_through_both_neighbors():
    """At 1.1 between 1 and 1, the misfit is 0.1 / 1.1, whose deviation has shares of three times' noise."""
    noise = 1.4826 * (0.1 / 1.1) / np.sqrt(1 + 2 * (0.5 / 1.1) ** 2)
    assert points([8, 16, 24], [1.0, 1.1, 1.0]).noise == pytest.approx(noise)
    assert points([8, 16, 48], [1.0, 1.1, 1.5]).noise == points([8, 16], [1.0, 1.1]).noise == 1e-9


def test_a_determinant_stays_above_zero():
    entries = (np.array([4.0, 4.0]), np.array([6.0, 5.0]), np.array([9.0, 9.0]))
    assert determined(*entries).tolist() == pytest.approx([36e-14, 11.0], rel=1e-6, abs=0)
