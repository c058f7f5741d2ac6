"""The median's interval has its nominal coverage, for independent samples and for autocorrelated series."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.results.reader import read_run
from collbench.stats.median import Median, median, quantiles, sound

REPORTS = Path(__file__).parents[2] / "reports"


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


MARGINALS = {
    "log-normal": lambda x: np.exp(0.2 * x),
    "heavy tail": lambda x: np.exp(np.sinh(0.8 * x)),
    "10 ns ticks": lambda x: 1e-5 * np.round(1000 * np.exp(0.2 * x)) / 1000,
}


@pytest.mark.parametrize(("n", "rho", "marginal"), [(60, 0.7, "log-normal"), (200, 0.5, "heavy tail"), (600, 0.3, "10 ns ticks")])
def test_series_with_a_memory_are_covered_too(n, rho, marginal):
    assert 0.90 <= covered(n, rho, marginal, 300) <= 0.99


@pytest.mark.long
@pytest.mark.parametrize("marginal", MARGINALS)
@pytest.mark.parametrize("n", [60, 200, 600, 3000])
@pytest.mark.parametrize("rho", [0, 0.3, 0.5, 0.7])
def test_90_to_98_percent_of_series_with_a_memory_are_covered(n, rho, marginal):
    most = 0.985 if marginal != "10 ns ticks" else 1  # the tick that holds the median holds it always
    assert 0.90 <= covered(n, rho, marginal, 1500) <= most


def covered(n, rho, marginal, repeats):
    """Return the share of Gaussian AR(1) series, after a monotone transform, with an interval that contains the true median."""
    random = np.random.default_rng([n, int(10 * rho)])
    noise, series = random.normal(size=(n, repeats)), np.empty((n, repeats))
    series[0] = noise[0]
    for i in range(1, n):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    truth, found = MARGINALS[marginal](0), [median(values) for values in MARGINALS[marginal](series).T]
    return np.mean([known.ci_low <= truth <= known.ci_high for known in found])


@pytest.mark.parametrize(("n", "independent", "remembering"), [(6, 0.97, 0.71), (8, 0.99, 0.82), (10, 1.0, 0.88)])
def test_six_to_ten_samples_give_min_and_max_whose_coverage_is_stated(n, independent, remembering):
    assert covered(n, 0, "log-normal", 1500) == pytest.approx(independent, abs=0.015)
    assert covered(n, 0.7, "log-normal", 1500) == pytest.approx(remembering, abs=0.03)


def recorded():
    """Series of more than 1000 samples that real runs left, their signs correlated with 0.1 to 0.7 from one sample to the next."""
    for folder in sorted(REPORTS.iterdir()):
        run = read_run(folder) if folder.is_dir() and (folder / "run.json").exists() else None
        for row in run.rows if run else []:
            series = np.asarray(run.array(row, "max_s"), np.float64) if "max_s" in row.samples else np.empty(0)
            signs = np.sign(series - np.median(series)) if len(series) > 1000 else np.empty(0)
            if len(signs) and 0.1 <= signs[1:] @ signs[:-1] / (signs @ signs) <= 0.7:
                yield series


@pytest.mark.parametrize(("n", "block"), [(60, 20), (200, 40), (600, 40)])
def test_recorded_series_are_covered(n, block):
    """Blocks of samples in a row, drawn from what real runs recorded: their distributions and what they remember."""
    random, found = np.random.default_rng(n), []
    for series in recorded():
        ring = np.concatenate([series, series[:block]])
        for _ in range(25):
            starts = random.integers(0, len(series), -(-n // block))
            known = median(np.concatenate([ring[at : at + block] for at in starts])[:n])
            found.append(known.ci_low <= np.median(series) <= known.ci_high)
    assert len(found) >= 500
    assert 0.90 <= np.mean(found) <= 0.98


@pytest.mark.parametrize("rho", [0.3, 0.7, 0.9])
def test_effective_n_of_a_known_memory(rho):
    """Signs of a Gaussian AR(1) have the autocorrelation 2/π·asin(ρ^k)."""
    random, n = np.random.default_rng(1), 2000
    closed = n / (1 + 2 * np.sum(2 / np.pi * np.arcsin(rho ** np.arange(1, 500))))
    found = np.median([median(autoregressive(random, rho, n)).n_eff for _ in range(40)])
    assert found == pytest.approx(closed, rel=0.25)


def test_independent_samples_are_worth_about_their_number():
    random = np.random.default_rng(2)
    assert np.median([median(random.normal(10, 1, size=500)).n_eff for _ in range(40)]) > 430
    assert median(np.tile([1.0, 2.0], 50)).n_eff == 100  # alternating: never more than there are


def test_a_series_in_two_blocks_is_worth_little_and_its_interval_holds_both():
    blocks = np.repeat([1.0, 2.0], 100)
    assert median(blocks).n_eff < 20
    assert (median(blocks).ci_low, median(blocks).ci_high) == (1.0, 2.0)


def test_six_samples_give_min_and_max_and_fewer_give_nothing():
    six = median(np.array([3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    assert (six.value, six.ci_low, six.ci_high, six.n, six.n_eff) == (3.5, 1.0, 6.0, 6, None)
    for n in range(1, 6):
        few = median(np.arange(1.0, n + 1))
        assert (few.value, few.ci_low, few.ci_high, few.n_eff, few.half_width) == ((n + 1) / 2, None, None, None, None)


@pytest.mark.parametrize("n", [6, 10, 11, 50])
def test_a_constant_series_is_known_up_to_the_clocks_step_which_it_does_not_show(n):
    known = median(np.full(n, 2e-6))
    assert (known.value, known.ci_low, known.ci_high, known.n_eff) == (2e-6, 2e-6, 2e-6, None)
    assert known.half_width == 0


def test_where_most_samples_share_a_tick_the_interval_is_the_tick():
    values = np.random.default_rng(1).choice([250.0, 260.0, 270.0], 200, p=[0.1, 0.8, 0.1])
    known = median(values)
    assert (known.value, known.ci_low, known.ci_high) == (260.0, 255.0, 265.0)


def test_two_ticks_in_any_order_are_worth_nearly_all_their_samples():
    random, ticks = np.random.default_rng(2), np.repeat([250.0, 260.0], [104, 96])
    assert np.median([median(random.permutation(ticks)).n_eff for _ in range(40)]) > 170
    assert (median(random.permutation(ticks)).ci_low, median(ticks[::-1]).ci_high) == (250.0, 260.0)


def test_samples_of_a_broken_clock_are_left_out():
    clean = np.random.default_rng(4).normal(10, 1, 100)
    broken = np.insert(clean, [3, 50, 70, 99], [np.nan, np.inf, -np.inf, -1e-9])
    assert median(broken) == median(clean)
    assert sound(broken).tolist() == clean.tolist()
    assert quantiles(broken) == quantiles(clean)


@pytest.mark.parametrize("series", [[], [np.nan], [np.nan] * 70, [-1.0] * 8])
def test_without_a_sound_sample_there_is_no_interval_and_no_nan(series):
    assert median(np.array(series)) == Median(0.0, None, None, 0, None)
    assert quantiles(np.array(series)) == {"min": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}


@pytest.mark.parametrize("n", [6, 60])
def test_zeros_are_what_a_coarse_clock_gives_and_have_no_relative_width(n):
    known = median(np.zeros(n))
    assert (known.value, known.ci_low, known.ci_high, known.half_width) == (0.0, 0.0, 0.0, None)


odd = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1e-6, 2e-6, 0.0, -1.0])


@given(st.lists(odd, max_size=80))
def test_for_any_samples_the_interval_holds_the_median(values):
    known = median(np.array(values))
    assert known.n == len(sound(np.array(values)))
    assert np.isfinite(known.value) or max(map(abs, values)) > 1e300
    assert (known.ci_low is None) == (known.ci_high is None) == (known.n < 6)
    if known.ci_low is not None and np.isfinite(known.value):
        assert 0 <= known.ci_low <= known.value <= known.ci_high
    assert known.n_eff is None or 0 < known.n_eff <= known.n


series_of_times = st.lists(st.integers(1, 10**6), min_size=6, max_size=80)


@given(series_of_times, st.sampled_from([1e-9, 1e-6, 1e3]))
def test_another_unit_scales_everything(values, unit):
    counted, scaled = median(np.array(values, float)), median(np.array(values) * unit)
    assert (scaled.value, scaled.ci_low, scaled.ci_high) == pytest.approx(
        (counted.value * unit, counted.ci_low * unit, counted.ci_high * unit), rel=1e-6
    )
    assert scaled.n_eff == pytest.approx(counted.n_eff) if counted.n_eff else scaled.n_eff is None


@given(series_of_times)
def test_backwards_it_is_the_same(values):
    forth, back = median(np.array(values, float)), median(np.array(values[::-1], float))
    assert (forth.value, forth.ci_low, forth.ci_high) == (back.value, back.ci_low, back.ci_high)


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
