"""The median's interval covers what it says, for independent samples and for series that remember."""

import numpy as np
import pytest

from collbench.stats.median import effective_n, median, quantiles


def autoregressive(random, rho, n):
    noise, values = random.normal(size=n + 200), np.zeros(n + 200)
    for i in range(1, n + 200):
        values[i] = rho * values[i - 1] + noise[i]
    return values[200:] + 100


def coverage(draw, truth, repeats=600):
    found = [median(draw()) for _ in range(repeats)]
    return np.mean([m.ci_low is not None and m.ci_low <= truth <= m.ci_high for m in found])


@pytest.mark.parametrize("n", [60, 201, 1000])
@pytest.mark.parametrize("heavy", [False, True])
def test_95_percent_of_independent_series_are_covered(n, heavy):
    random = np.random.default_rng(n)
    draw = (lambda: 10 + random.standard_t(2, n)) if heavy else (lambda: random.lognormal(np.log(10), 0.2, n))
    assert 0.93 <= coverage(draw, 10) <= 0.98


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_series_with_a_memory_are_covered_too(rho, n):
    random = np.random.default_rng(7)
    assert coverage(lambda: autoregressive(random, rho, n), 100, 400) >= 0.90


@pytest.mark.parametrize("rho", [0.3, 0.7, 0.9])
def test_effective_n_of_a_known_memory(rho):
    """Signs of a Gaussian AR(1) have the autocorrelation 2/π·asin(ρ^k)."""
    random, n = np.random.default_rng(1), 2000
    closed = n / (1 + 2 * np.sum(2 / np.pi * np.arcsin(rho ** np.arange(1, 500))))
    found = np.median([effective_n(autoregressive(random, rho, n)) for _ in range(40)])
    assert found == pytest.approx(closed, rel=0.25)


def test_independent_samples_are_worth_about_their_number():
    random = np.random.default_rng(2)
    assert np.median([effective_n(random.normal(size=500)) for _ in range(40)]) > 430
    assert effective_n(np.tile([1.0, 2.0], 50)) == 100  # alternating: never more than there are


def test_a_series_in_two_blocks_is_worth_a_handful():
    assert effective_n(np.repeat([1.0, 2.0], 100)) < 5
    assert median(np.repeat([1.0, 2.0], 100)).ci_low is None


def test_six_samples_give_min_and_max_and_fewer_give_nothing():
    six = median(np.array([3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    assert (six.value, six.ci_low, six.ci_high, six.n, six.n_eff) == (3.5, 1.0, 6.0, 6, 6.0)
    for n in range(1, 6):
        few = median(np.arange(1.0, n + 1))
        assert (few.value, few.ci_low, few.ci_high, few.n_eff, few.half_width) == ((n + 1) / 2, None, None, None, None)


def test_a_constant_series_is_known_exactly():
    known = median(np.full(50, 2e-6))
    assert (known.value, known.ci_low, known.ci_high, known.n_eff) == (2e-6, 2e-6, 2e-6, None)
    assert known.half_width == 0


def test_the_half_width_is_relative():
    known = median(np.array([90.0, 110.0, 100.0, 95.0, 105.0, 99.0, 101.0] * 20))
    assert known.half_width == pytest.approx((known.ci_high - known.ci_low) / 2 / 100)
    assert median(np.zeros(10)).half_width is None


def test_outliers_move_neither_the_median_nor_its_interval():
    values = np.random.default_rng(3).normal(10, 0.1, 200)
    values[::50] = 1e6
    known = median(values)
    assert known.value == pytest.approx(10, rel=0.01)
    assert known.ci_high < 10.1


def test_the_order_of_measurement_decides_how_much_it_is_worth():
    values = autoregressive(np.random.default_rng(5), 0.9, 400)
    shuffled = np.random.default_rng(6).permutation(values)
    assert median(values).value == median(shuffled).value
    assert median(values).half_width > 1.5 * median(shuffled).half_width


def test_quantiles():
    assert quantiles(np.arange(101.0)) == {"min": 0.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert quantiles(np.array([5.0])) == {"min": 5.0, "p95": 5.0, "p99": 5.0, "max": 5.0}
