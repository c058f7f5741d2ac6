"""Drift is found where noise does not hide it, and seldom where there is none."""

import numpy as np
import pytest

from collbench.stats.median import drift, median


def found(values):
    return drift(values, median(values).half_width)


def remembering(rho, sigma, n, repeats, seed=1):
    random = np.random.default_rng(seed)
    noise, series = random.normal(size=(n, repeats)), np.empty((n, repeats))
    series[0] = noise[0]
    for i in range(1, n):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return np.exp(sigma * series).T


@pytest.mark.parametrize(("n", "rho", "sigma"), [(45, 0.5, 0.2), (60, 0.7, 0.2), (200, 0.7, 0.02), (1000, 0.7, 0.2)])
def test_a_stationary_series_seldom_drifts(n, rho, sigma):
    assert np.mean([found(values) is not None for values in remembering(rho, sigma, n, 200)]) <= 0.045


@pytest.mark.parametrize(("n", "sigma", "rho"), [(30, 0.01, 0.7), (200, 0.05, 0.5), (1000, 0.1, 0.5)])
def test_a_step_of_ten_percent_is_found(n, sigma, rho):
    step = np.where(np.arange(n) < n / 2, 1, 1.1)
    assert np.mean([found(values * step) is not None for values in remembering(rho, sigma, n, 60)]) >= 0.95


def test_a_series_that_becomes_slower_drifts_upwards():
    noise = np.random.default_rng(2).normal(1, 0.001, 300)
    assert found(noise * np.linspace(1, 1.2, 300)) == pytest.approx(1.1667 / 1.0333 - 1, rel=0.02)
    assert found(noise * np.linspace(1.2, 1, 300)) == pytest.approx(1.0333 / 1.1667 - 1, rel=0.02)


def test_up_to_two_percent_are_no_drift():
    assert found(np.repeat([1.0, 1.01, 1.0199], 50)) is None
    assert found(np.repeat([1.0, 1.01, 1.0201], 50)) == pytest.approx(0.0201)


def test_too_few_samples_or_no_interval_report_nothing():
    rising = np.linspace(1, 2, 30)
    assert found(rising) is not None
    assert found(rising[:29]) is None
    assert drift(rising, None) is None
    assert found(np.zeros(60)) is None
    assert found(np.full(60, np.nan)) is None


def test_samples_of_a_broken_clock_are_left_out():
    assert found(np.concatenate([[np.nan, -1.0], np.repeat([1.0, 1.1, 1.2], 50), [np.inf]])) == pytest.approx(0.2)


def test_the_unit_does_not_matter():
    rising = np.linspace(1, 2, 60)
    assert found(rising * 1e-6) == pytest.approx(found(rising))
