"""A table split by medians into a middle, rows, columns and what is left."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.analysis.pair_statistics import two_way, upper_medians


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
    assert np.nanmax(np.abs(found.rest)) == pytest.approx(0.0, abs=1e-9)


def test_a_place_of_two_cases_has_no_effect_of_its_own() -> None:
    values = table(6, ())
    values[0, 3:] = np.nan
    found = two_way(values)
    assert found.known_rows.tolist() == [False, True, True, True, True, True] and found.rows[0] == 0.0
