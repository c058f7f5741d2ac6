"""Medians with their intervals, quantiles of Student's t, drift and modes of a series."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.results.reader import read_run
from collbench.stats.median import Median, Mode, drift, median, modes, quantiles, sound, t_quantile

REPORTS = Path(__file__).parents[2] / "reports"


def autoregressive(random, rho, n, repeats=1):
    """Return series with a memory, of which each value keeps `rho` of the one before: [repeats × n]."""
    noise, series = random.normal(size=(n, repeats)), np.empty((n, repeats))
    series[0] = noise[0]
    for i in range(1, n):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return series.T


@pytest.mark.parametrize("n", [60, 201, 1000])
@pytest.mark.parametrize("heavy", [False, True])
def test_95_percent_of_independent_series_are_covered(n, heavy):
    random = np.random.default_rng(n)
    draw = (lambda: 10 + random.standard_t(2, n)) if heavy else (lambda: random.lognormal(np.log(10), 0.2, n))
    found = [median(draw()) for _ in range(600)]
    assert 0.93 <= np.mean([known.ci_low is not None and known.ci_low <= 10 <= known.ci_high for known in found]) <= 0.98


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
    truth, found = MARGINALS[marginal](0), [median(MARGINALS[marginal](series)) for series in autoregressive(random, rho, n, repeats)]
    return np.mean([known.ci_low <= truth <= known.ci_high for known in found])


@pytest.mark.parametrize(("n", "independent", "remembering"), [(6, 0.97, 0.71), (8, 0.99, 0.82), (10, 1.0, 0.88)])
def test_six_to_ten_samples_give_min_and_max_whose_coverage_is_stated(n, independent, remembering):
    assert covered(n, 0, "log-normal", 1500) == pytest.approx(independent, abs=0.015)
    assert covered(n, 0.7, "log-normal", 1500) == pytest.approx(remembering, abs=0.03)


def recorded():
    """Series of more than 1000 samples that real runs left, their signs correlated with 0.1 to 0.7 from one sample to the next.

    series.npz has, in ns, those of runs that are no longer in `reports`.
    """
    by_run = {}
    for name, series in np.load(Path(__file__).with_name("series.npz")).items():
        by_run.setdefault(name.split()[0], []).append(1e-9 * series)
    for path in REPORTS.glob("*/run.json"):
        run = read_run(path.parent)
        by_run[run.path.name] = [np.asarray(run.array(row, "max_s"), np.float64) for row in run.rows if "max_s" in row.samples]
    for _, several in sorted(by_run.items()):
        for series in several:
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
    found = np.median([median(series + 100).n_eff for series in autoregressive(random, rho, n, 40)])
    assert found == pytest.approx(closed, rel=0.25)


def test_independent_samples_are_worth_about_their_number_and_two_blocks_little():
    random = np.random.default_rng(2)
    assert np.median([median(random.normal(10, 1, size=500)).n_eff for _ in range(40)]) > 430
    assert median(np.tile([1.0, 2.0], 50)).n_eff == 100  # alternating: never more than there are
    blocks = np.repeat([1.0, 2.0], 100)
    assert median(blocks).n_eff < 20
    assert (median(blocks).ci_low, median(blocks).ci_high) == (1.0, 2.0)


def test_six_samples_give_min_and_max_and_fewer_nothing_but_quantiles():
    six = median(np.array([3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    assert (six.value, six.ci_low, six.ci_high, six.n, six.n_eff) == (3.5, 1.0, 6.0, 6, None)
    for n in range(1, 6):
        few = median(np.arange(1.0, n + 1))
        assert (few.value, few.ci_low, few.ci_high, few.n_eff, few.half_width) == ((n + 1) / 2, None, None, None, None)
    assert quantiles(np.arange(101.0)) == {"min": 0.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert quantiles(np.array([5.0])) == {"min": 5.0, "p95": 5.0, "p99": 5.0, "max": 5.0}
    assert quantiles(np.array([3.0, 1.0])) == {"min": 1.0, "p95": 2.9, "p99": 2.98, "max": 3.0}


def test_more_confidence_needs_more_ranks():
    """Samples below and above the median in turn: the ranks are 1.96 and 2.576 times √400 / 2 from the middle."""
    alternating = np.stack([np.arange(1.0, 201), np.arange(201.0, 401)], axis=1).ravel()
    assert [(known.ci_low, known.ci_high) for known in (median(alternating), median(alternating, 0.99))] == [(181, 220), (175, 226)]


@pytest.mark.parametrize(("value", "half_width"), [(2e-6, 0), (0.0, None)])  # zeros are what a coarse clock gives: no relative width
@pytest.mark.parametrize("n", [6, 10, 11, 50, 60])
def test_a_constant_series_is_known_up_to_the_clocks_step_which_it_does_not_show(n, value, half_width):
    known = median(np.full(n, value))
    assert (known.value, known.ci_low, known.ci_high, known.n_eff, known.half_width) == (value, value, value, None, half_width)


def test_the_interval_of_ticks_is_the_tick_or_both():
    # where most samples share a tick the interval is the tick
    values = np.random.default_rng(1).choice([250.0, 260.0, 270.0], 200, p=[0.1, 0.8, 0.1])
    known = median(values)
    assert (known.value, known.ci_low, known.ci_high) == (260.0, 255.0, 265.0)
    # two ticks in any order are worth nearly all their samples
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
def test_another_unit_scales_everything_and_backwards_it_is_the_same(values, unit):
    counted, scaled, back = median(np.array(values, float)), median(np.array(values) * unit), median(np.array(values[::-1], float))
    figures = np.array([counted.value, counted.ci_low, counted.ci_high])
    assert [scaled.value, scaled.ci_low, scaled.ci_high] == pytest.approx(figures * unit, rel=1e-6)
    assert scaled.n_eff == pytest.approx(counted.n_eff) if counted.n_eff else scaled.n_eff is None
    assert [back.value, back.ci_low, back.ci_high] == figures.tolist()


def test_the_half_width_is_relative_and_outliers_move_nothing():
    known = median(np.array([90.0, 110.0, 100.0, 95.0, 105.0, 99.0, 101.0] * 20))
    assert known.half_width == pytest.approx((known.ci_high - known.ci_low) / 2 / 100)
    values = np.random.default_rng(3).normal(10, 0.1, 200)
    values[::50] = 1e6
    known = median(values)
    assert known.value == pytest.approx(10, rel=0.01) and known.ci_high < 10.1


def test_the_order_of_measurement_decides_how_much_it_is_worth():
    values = autoregressive(np.random.default_rng(5), 0.9, 400)[0] + 100
    shuffled = np.random.default_rng(6).permutation(values)
    assert median(values).value == median(shuffled).value
    assert median(values).half_width > 1.5 * median(shuffled).half_width


def test_quantiles_of_t_are_those_of_the_table_symmetric_and_between_those_of_whole_degrees():
    degrees = (1, 2, 3, 4, 5, 10, 30, 120)
    table = [12.7062047362, 4.3026527297, 3.1824463053, 2.7764451052, 2.5705818356, 2.2281388520, 2.0422724563, 1.9799304051]
    assert [t_quantile(0.975, number) for number in degrees] == pytest.approx(table, rel=1e-9)
    assert t_quantile(0.05, 7) == -t_quantile(0.95, 7)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959963984540054, rel=1e-6)  # the normal distribution
    assert t_quantile(0.975, 3) < t_quantile(0.975, 2.5) < t_quantile(0.975, 2)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.99, 0.9995])
def test_closed_forms_of_one_and_two_degrees(probability):
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
    u = 2 * probability - 1
    assert t_quantile(probability, 2) == pytest.approx(u * math.sqrt(2 / (1 - u * u)), rel=1e-9)


@pytest.mark.parametrize(("probability", "degrees"), [(0, 5), (1, 5), (0.9, 0.5), (0.9, math.nan), (math.nan, 5)])
def test_outside_there_is_none(probability, degrees):
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)


def found(values):
    return drift(values, median(values).half_width)


@pytest.mark.parametrize(("n", "rho", "sigma"), [(45, 0.5, 0.2), (60, 0.7, 0.2), (200, 0.7, 0.02), (1000, 0.7, 0.2)])
def test_a_stationary_series_seldom_drifts(n, rho, sigma):
    stationary = np.exp(sigma * autoregressive(np.random.default_rng(1), rho, n, 200))
    assert np.mean([found(values) is not None for values in stationary]) <= 0.045


@pytest.mark.parametrize(("n", "sigma", "rho"), [(30, 0.01, 0.7), (200, 0.05, 0.5), (1000, 0.1, 0.5)])
def test_a_step_of_ten_percent_is_found(n, sigma, rho):
    steps = np.exp(sigma * autoregressive(np.random.default_rng(1), rho, n, 60)) * np.where(np.arange(n) < n / 2, 1, 1.1)
    assert np.mean([found(values) is not None for values in steps]) >= 0.95


def test_a_slower_series_drifts_upwards_and_too_few_samples_report_nothing():
    noise = np.random.default_rng(2).normal(1, 0.001, 300)
    assert found(noise * np.linspace(1, 1.2, 300)) == pytest.approx(1.1667 / 1.0333 - 1, rel=0.02)
    assert found(noise * np.linspace(1.2, 1, 300)) == pytest.approx(1.0333 / 1.1667 - 1, rel=0.02)
    rising = np.linspace(1, 2, 30)
    assert found(rising) is not None
    assert found(rising[:29]) is drift(rising, None) is found(np.zeros(60)) is found(np.full(60, np.nan)) is None


def test_more_than_two_percent_are_a_drift_in_any_unit_and_with_any_clock():
    assert found(np.repeat([1.0, 1.01, 1.0199], 50)) is None
    assert found(np.repeat([1.0, 1.01, 1.0201], 50)) == pytest.approx(0.0201)
    assert found(np.concatenate([[np.nan, -1.0], np.repeat([1.0, 1.1, 1.2], 50), [np.inf]])) == pytest.approx(0.2)
    assert found(np.linspace(1, 2, 60) * 1e-6) == pytest.approx(found(np.linspace(1, 2, 60)))


def two(random, n, values=(2.3e-6, 10.7e-6), share=0.18, sigma=0.05):
    return np.where(random.random(n) < share, values[1], values[0]) * random.lognormal(0, sigma, n)


def rounded(values, tick=1e-8):
    return np.round(values / tick) * tick


ONE = {
    "normal": lambda r, n: r.normal(10, 0.1, n),
    "log-normal": lambda r, n: r.lognormal(0, 0.5, n),
    "very skewed": lambda r, n: r.lognormal(0, 1.5, n),
    "uniform": lambda r, n: r.uniform(1, 2, n),
    "exponential": lambda r, n: 1 + r.exponential(0.3, n),
    "Pareto": lambda r, n: 1 + r.pareto(1.5, n),
    "spikes": lambda r, n: r.lognormal(0, 0.05, n) * np.where(r.random(n) < 0.05, r.uniform(2, 20, n), 1),
    "two neighbouring ticks": lambda r, n: rounded(2.05e-7 * r.lognormal(0, 0.005, n)),
    "a few ticks": lambda r, n: rounded(3e-7 * r.lognormal(0, 0.05, n)),
    "many ticks": lambda r, n: rounded(1e-6 * r.lognormal(0, 0.1, n)),
    "remembering": lambda r, n: np.exp(0.2 * autoregressive(r, 0.7, n)[0]),
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize(("n", "repeats"), [(30, 40), (60, 80), (200, 40), (3000, 5)])
def test_one_mode_is_not_taken_for_two(name, n, repeats):
    random = np.random.default_rng(n)
    assert sum(modes(ONE[name](random, n)) is not None for _ in range(repeats)) <= (2 if name == "uniform" else 1)


@pytest.mark.long
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("n", [30, 60, 200])
def test_false_alarms_stay_below_one_percent(name, n):
    random = np.random.default_rng(n)
    assert np.mean([modes(ONE[name](random, n)) is not None for _ in range(2000)]) <= 0.012


@pytest.mark.parametrize(("n", "least"), [(60, 0.8), (200, 0.97), (1000, 1.0)])
def test_the_two_modes_of_the_protocol_are_found(n, least):
    random = np.random.default_rng(n)
    assert np.mean([modes(two(random, n)) is not None for _ in range(60)]) >= least


def test_the_two_modes_come_fast_one_first_unless_they_are_neighbouring_ticks():
    fast, slow = modes(two(np.random.default_rng(1), 3000))
    assert (fast.value, slow.value) == pytest.approx((2.3e-6, 10.7e-6), rel=0.01)
    assert (fast.share, slow.share) == pytest.approx((0.82, 0.18), abs=0.02) and fast.share + slow.share == 1
    assert modes(np.repeat([6e-8, 2.6e-7], [70, 30])) == (Mode(6e-8, 0.7), Mode(2.6e-7, 0.3))
    assert modes(np.repeat([2.0e-7, 2.1e-7], [70, 30])) is None
    assert modes(np.full(100, 2e-7)) is None


def test_a_mode_below_ten_percent_or_five_percent_or_three_deviations_away_does_not_count():
    random = np.random.default_rng(3)
    assert modes(two(random, 3000, share=0.08)) is None
    assert modes(two(random, 3000, (1.0, 1.04), 0.4, 0.001)) is None
    assert modes(two(random, 3000, (1.0, 1.06), 0.4, 0.001)) is not None
    assert modes(two(np.random.default_rng(4), 3000, (1.0, 1.5), 0.5, 0.16)) is None


@given(st.lists(st.floats() | st.sampled_from([1e-6, 2e-6, 0.0, -1.0]), max_size=60))
def test_for_any_samples_there_are_two_ordered_modes_or_none(values):
    found = modes(np.array(values))
    if found:
        assert 0 < found[0].value < found[1].value
        assert min(found[0].share, found[1].share) >= 0.1


@given(st.sampled_from([1e-9, 1e-6, 1e3]), st.integers(0, 100))
def test_neither_unit_nor_order_matters(unit, seed):
    random = np.random.default_rng(seed)
    values = two(random, 100)
    found, other = modes(values), modes(random.permutation(values) * unit)
    assert (found is None) == (other is None)
    if found:
        assert [mode.share for mode in found] == [mode.share for mode in other]
        assert [mode.value * unit for mode in found] == pytest.approx([mode.value for mode in other])


@pytest.mark.parametrize(("one", "other", "apart"), [(0.01, 0.2, 0.445), (0.2, 0.01, 0.445), (0.0001, 0.0001, 0.0488)])
def test_two_modes_are_apart_by_the_scatter_of_the_wider_one(one, other, apart):
    side = np.linspace(-1, 1, 41)
    near, far = (np.exp(np.concatenate([one * side, other * side + distance])) for distance in (0.9 * apart, 1.1 * apart))
    assert modes(near) is None and modes(far) is not None


def test_a_narrow_interval_of_the_whole_shows_a_drift_that_the_thirds_hide():
    scattered = np.tile(np.linspace(0.5, 1.5, 20), 6) * np.repeat([1.0, 1.015, 1.03], 40)
    assert drift(scattered, 0.005) == pytest.approx(0.03)
    assert drift(scattered, 0.02) is None and drift(scattered, 0.2) is None
