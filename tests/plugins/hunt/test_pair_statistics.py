"""Statistics of a pair matrix: its split by medians, the deviation by chance, and the effect of a round."""

import numpy as np
import pytest

from collbench.operations.groups import circle_round
from collbench.plugins.hunt.pair_statistics import (
    PAIRS_LEVEL,
    TAIL_DEGREES,
    MatrixView,
    noise_scale,
    quantile,
    scale_of,
    scale_of_medians,
    two_way,
    upper_medians,
    without_round_effects,
)


def table(n, slow, depth=0.7):
    """Logarithms of speeds: a pair is slow where one of its ends is."""
    values = np.zeros((n, n))
    values[list(slow), :] = values[:, list(slow)] = -depth
    np.fill_diagonal(values, np.nan)
    return values


@pytest.mark.parametrize(("n", "slow"), [(5, (0,)), (5, (0, 3)), (8, (1, 2, 5)), (9, (0, 1, 2, 3))])
def test_fewer_than_half_of_the_places_being_slow_leaves_the_others_alone(n, slow):
    found = two_way(table(n, slow), symmetric=True)
    well = [place for place in range(n) if place not in slow]
    assert found.rows[well] == pytest.approx(np.zeros(len(well))) and (found.rows[list(slow)] < -0.3).all()


def test_a_slow_sender_is_a_row_and_a_slow_receiver_a_column_unless_it_has_few_cells():
    values = np.zeros((6, 6))
    values[1, :] -= 0.5
    values[:, 4] -= 0.3
    np.fill_diagonal(values, np.nan)
    found = two_way(values)
    assert found.rows == pytest.approx([0, -0.5, 0, 0, 0, 0]) and found.columns == pytest.approx([0, 0, 0, 0, -0.3, 0])
    assert np.nanmax(np.abs(found.residuals)) == pytest.approx(0.0, abs=1e-9)
    values = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, np.nan, np.nan], [5.0, np.nan, np.nan, np.nan], [np.nan] * 4])
    assert upper_medians(values).tolist() == [3.0, 2.0, 5.0, 0.0]
    values = table(6, ())
    values[0, 3:] = np.nan
    found = two_way(values)
    assert found.has_row_effect.tolist() == [False, True, True, True, True, True] and found.rows[0] == 0.0
    assert scale_of_medians(0.01, np.array([0, 1, 4, 100])) == pytest.approx([0.0134, 0.0134, 0.0067, 0.00134])


def test_the_scale_is_that_of_the_noise_without_a_tenth_of_exceptions():
    rest = np.random.default_rng(1).standard_t(TAIL_DEGREES, 4000) * 0.01
    assert noise_scale(rest) == pytest.approx(0.01, rel=0.15)
    assert scale_of(rest) == pytest.approx(0.01, rel=0.1)
    rest = np.random.default_rng(1).standard_t(TAIL_DEGREES, 1000) * 0.01
    few, many = rest.copy(), rest.copy()
    few[:40] -= 0.5
    many[:200] -= 0.5
    assert noise_scale(few) < 2 * noise_scale(rest)
    assert noise_scale(many) > 10 * noise_scale(rest)
    assert noise_scale(np.zeros(20)) == 0.0
    assert noise_scale(np.array([np.nan, -0.1, 0.1, -0.2])) == 0.0
    assert scale_of(np.zeros(0)) == 0.0
    assert quantile(0.025, TAIL_DEGREES) == pytest.approx(2.776, abs=0.001)
    assert quantile(1e-30, TAIL_DEGREES) == quantile(1e-11, TAIL_DEGREES)


@pytest.mark.parametrize("cells", [20, 40, 200])
@pytest.mark.parametrize("wider", [1, 2, 5])
def test_the_scale_is_that_of_the_slowest_cells_if_they_are_wider_apart_than_the_others(cells, wider):
    """The cells are at the quantiles of noise of scale 0.01, and the slowest 15 % are so many times as slow."""
    slowdowns = np.array([0.01 * quantile(number / cells, TAIL_DEGREES) for number in range(1, cells // 2)])
    fast = slowdowns.copy()
    slowdowns[: cells * 15 // 100] *= wider
    assert noise_scale(np.array([*-slowdowns, 0.0, 0.0, *fast])) == pytest.approx(0.01 * wider, rel=0.01)


def view(quantity, speeds, error=0.0):
    """Return the view of a table of logarithms of speeds: they have this error, and no other noise."""
    return MatrixView(quantity, "", speeds, np.full_like(speeds, error), np.zeros(speeds.shape, bool))


@pytest.mark.parametrize(("quantity", "scales", "named"), [
    ("latency", 6.1, []), ("latency", 6.5, [3]), ("bandwidth", 6.5, []), ("bandwidth", 7.0, [3]),
])  # fmt: skip
def test_a_latency_has_one_chance_of_a_false_alarm_per_place_and_a_bandwidth_one_per_direction(quantity, scales, named):
    """One of eight is slow by so many standard errors. By chance 0.1 % of matrices exceed 6.2 in eight tests, and 6.9 in sixteen."""
    error = 0.1
    of_medians = float(scale_of_medians(error, np.array(7.0)))
    slow = view(quantity, table(8, [3], depth=scales * of_medians), error)
    assert np.flatnonzero(slow.senders().slow_with_all).tolist() == named
    assert np.flatnonzero(slow.receivers().slow_with_all).tolist() == named


@pytest.mark.parametrize(("beyond", "named"), [(-1e-6, []), (0.0, []), (1e-6, [[1, 4]])])
def test_a_pair_is_slow_only_beyond_the_least_slowdown_that_is_named(beyond, named):
    speeds = table(6, ())
    speeds[1, 4] = -PAIRS_LEVEL["bandwidth"].least - beyond
    slow = view("bandwidth", speeds).slow_cells(np.array(False))
    assert np.argwhere(slow).tolist() == named


def rounds(n, count, speed):
    """Return the speeds of the pairs of these rounds, and the number of each pair's round."""
    values, turns = np.full((n, n), np.nan), np.full((n, n), -1, np.int64)
    for number in range(count):
        for a, b in circle_round(n, number):
            values[a, b] = values[b, a] = speed(number, a, b)
            turns[a, b] = turns[b, a] = number
    return values, turns


def test_a_slow_or_uneven_round_becomes_a_usual_one_and_a_slow_place_stays_slow():
    values, turns = rounds(16, 8, lambda number, a, b: (-0.7 if 3 in (a, b) else 0.0) - (0.08 if number == 2 else 0.0))
    found = without_round_effects(values, turns)
    expected = np.where(np.isnan(values), np.nan, 0.0)
    expected[3] = expected[:, 3] = np.where(np.isnan(values[3]), np.nan, -0.7)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    found = without_round_effects(*rounds(16, 4, lambda number, a, b: (0.0, 0.0, -0.05, -0.05)[number]))
    assert found[np.isfinite(found)] == pytest.approx(-0.025)


@pytest.mark.parametrize("count", [0, 3])
def test_rounds_of_few_pairs_and_empty_matrices_stay_as_they_are(count):
    values, turns = rounds(4, count, lambda number, a, b: -0.1 * number)
    np.testing.assert_array_equal(without_round_effects(values, turns), values)
