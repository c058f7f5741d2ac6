"""Statistics of a pair matrix: its split by medians, the deviation by chance, and the effect of a round."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.operations.groups import circle_round
from collbench.plugins.hunt.pair_statistics import (
    TAIL_DEGREES,
    noise_scale,
    quantile,
    scale_of,
    scale_of_medians,
    two_way,
    upper_medians,
    without_round_effects,
)


def table(n: int, slow: tuple[int, ...], depth: float = 0.7) -> np.ndarray:
    """Logarithms of speeds: a pair is slow where one of its ends is."""
    values = np.zeros((n, n))
    values[list(slow), :] = values[:, list(slow)] = -depth
    np.fill_diagonal(values, np.nan)
    return values


def test_the_upper_one_of_two_middles_is_taken() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, np.nan, np.nan], [5.0, np.nan, np.nan, np.nan], [np.nan] * 4])
    assert upper_medians(values).tolist() == [3.0, 2.0, 5.0, 0.0]


@pytest.mark.parametrize(("n", "slow"), [(5, (0,)), (5, (0, 3)), (8, (1, 2, 5)), (9, (0, 1, 2, 3))])
def test_fewer_than_half_of_the_places_being_slow_leaves_the_others_alone(n: int, slow: tuple[int, ...]) -> None:
    found = two_way(table(n, slow), symmetric=True)
    well = [place for place in range(n) if place not in slow]
    assert found.rows[well] == pytest.approx(np.zeros(len(well))) and (found.rows[list(slow)] < -0.3).all()


def test_a_slow_sender_is_a_row_and_a_slow_receiver_a_column() -> None:
    values = np.zeros((6, 6))
    values[1, :] -= 0.5
    values[:, 4] -= 0.3
    np.fill_diagonal(values, np.nan)
    found = two_way(values)
    assert found.rows == pytest.approx([0, -0.5, 0, 0, 0, 0]) and found.columns == pytest.approx([0, 0, 0, 0, -0.3, 0])
    assert np.nanmax(np.abs(found.residuals)) == pytest.approx(0.0, abs=1e-9)


def test_a_place_of_two_cases_has_no_effect_of_its_own() -> None:
    values = table(6, ())
    values[0, 3:] = np.nan
    found = two_way(values)
    assert found.has_row_effect.tolist() == [False, True, True, True, True, True] and found.rows[0] == 0.0


def test_a_median_of_many_cells_is_known_better_by_the_root_of_their_number() -> None:
    assert scale_of_medians(0.01, np.array([0, 1, 4, 100])) == pytest.approx([0.0134, 0.0134, 0.0067, 0.00134])


def test_the_scale_is_that_of_the_noise() -> None:
    rest = np.random.default_rng(1).standard_t(TAIL_DEGREES, 4000) * 0.01
    assert noise_scale(rest) == pytest.approx(0.01, rel=0.15)
    assert scale_of(rest) == pytest.approx(0.01, rel=0.1)


def test_up_to_a_tenth_of_slow_cells_are_exceptions_and_more_of_them_are_noise() -> None:
    rest = np.random.default_rng(1).standard_t(TAIL_DEGREES, 1000) * 0.01
    few, many = rest.copy(), rest.copy()
    few[:40] -= 0.5
    many[:200] -= 0.5
    assert noise_scale(few) < 2 * noise_scale(rest)
    assert noise_scale(many) > 10 * noise_scale(rest)


def test_cells_that_fit_exactly_show_no_noise() -> None:
    assert noise_scale(np.zeros(20)) == 0.0
    assert noise_scale(np.array([np.nan, -0.1, 0.1, -0.2])) == 0.0
    assert scale_of(np.zeros(0)) == 0.0


def test_quantiles_end_where_they_can_be_computed() -> None:
    assert quantile(0.025, TAIL_DEGREES) == pytest.approx(2.776, abs=0.001)
    assert quantile(1e-30, TAIL_DEGREES) == quantile(1e-11, TAIL_DEGREES)


def test_a_slow_round_becomes_a_usual_one_and_a_slow_place_stays_slow() -> None:
    n = 16
    values, turns = np.full((n, n), np.nan), np.full((n, n), -1, np.int64)
    for number in range(8):
        for a, b in circle_round(n, number):
            values[a, b] = values[b, a] = (-0.7 if 3 in (a, b) else 0.0) - (0.08 if number == 2 else 0.0)
            turns[a, b] = turns[b, a] = number
    found = without_round_effects(values, turns)
    expected = np.where(np.isnan(values), np.nan, 0.0)
    expected[3] = expected[:, 3] = np.where(np.isnan(values[3]), np.nan, -0.7)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rounds_of_few_pairs_and_empty_matrices_stay_as_they_are() -> None:
    values, turns = np.full((4, 4), np.nan), np.full((4, 4), -1, np.int64)
    np.testing.assert_array_equal(without_round_effects(values, turns), values)
    for number in range(3):
        for a, b in circle_round(4, number):
            values[a, b] = values[b, a] = -0.1 * number
            turns[a, b] = turns[b, a] = number
    np.testing.assert_array_equal(without_round_effects(values, turns), values)


def test_rounds_are_levelled_around_their_middle_so_that_speeds_stay_speeds() -> None:
    """Two rounds are 5 % slower than the two others."""
    values, turns = np.full((16, 16), np.nan), np.full((16, 16), -1, np.int64)
    for number, speed in enumerate((0.0, 0.0, -0.05, -0.05)):
        for a, b in circle_round(16, number):
            values[a, b] = values[b, a] = speed
            turns[a, b] = turns[b, a] = number
    found = without_round_effects(values, turns)
    assert found[np.isfinite(found)] == pytest.approx(-0.025)
