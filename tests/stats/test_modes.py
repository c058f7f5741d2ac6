"""Two modes are two numbers; one mode, however skewed, tailed or rounded by its clock, is one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.stats.median import Mode, _apart, modes


def two(random, n, values=(2.3e-6, 10.7e-6), share=0.18, sigma=0.05):
    return np.where(random.random(n) < share, values[1], values[0]) * random.lognormal(0, sigma, n)


def rounded(values, tick=1e-8):
    return np.round(values / tick) * tick


def remembering(random, n, rho=0.7):
    series = random.normal(size=n)
    for i in range(1, n):
        series[i] = rho * series[i - 1] + np.sqrt(1 - rho**2) * series[i]
    return series


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
    "remembering": lambda r, n: np.exp(0.2 * remembering(r, n)),
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


def test_their_centres_and_shares_come_fast_one_first():
    fast, slow = modes(two(np.random.default_rng(1), 3000))
    assert (fast.value, slow.value) == pytest.approx((2.3e-6, 10.7e-6), rel=0.01)
    assert (fast.share, slow.share) == pytest.approx((0.82, 0.18), abs=0.02)
    assert fast.share + slow.share == 1


def test_exact_values_far_apart_are_modes_and_neighbouring_ticks_are_not():
    assert modes(np.repeat([6e-8, 2.6e-7], [70, 30])) == (Mode(6e-8, 0.7), Mode(2.6e-7, 0.3))
    assert modes(np.repeat([2.0e-7, 2.1e-7], [70, 30])) is None
    assert modes(np.full(100, 2e-7)) is None


def test_a_mode_below_ten_percent_or_five_percent_away_does_not_count():
    random = np.random.default_rng(3)
    assert modes(two(random, 3000, share=0.08)) is None
    assert modes(two(random, 3000, (1.0, 1.04), 0.4, 0.001)) is None
    assert modes(two(random, 3000, (1.0, 1.06), 0.4, 0.001)) is not None


def test_modes_less_than_three_deviations_apart_are_one():
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


def test_two_sides_are_apart_by_the_scatter_of_the_wider_one():
    narrow, wide = np.linspace(-0.01, 0.01, 41), np.linspace(-0.2, 0.2, 41)
    assert not _apart(narrow, wide + 0.4) and not _apart(wide, narrow + 0.4)
    assert _apart(narrow, wide + 0.5) and _apart(wide, narrow + 0.5)
    assert not _apart(narrow / 100, narrow / 100 + 0.04) and _apart(narrow / 100, narrow / 100 + 0.06)
