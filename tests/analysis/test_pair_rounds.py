"""What a round has in common is taken out of a matrix of pairs; what its places have is not."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.analysis.pair_statistics import levelled
from collbench.operations.groups import circle_round


def test_a_slow_round_becomes_a_usual_one_and_a_slow_place_stays_slow() -> None:
    n = 16
    values, turns = np.full((n, n), np.nan), np.full((n, n), -1, np.int64)
    for number in range(8):
        for a, b in circle_round(n, number):
            values[a, b] = values[b, a] = (-0.7 if 3 in (a, b) else 0.0) - (0.08 if number == 2 else 0.0)
            turns[a, b] = turns[b, a] = number
    found = levelled(values, turns)
    expected = np.where(np.isnan(values), np.nan, 0.0)
    expected[3] = expected[:, 3] = np.where(np.isnan(values[3]), np.nan, -0.7)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rounds_of_few_pairs_and_empty_matrices_stay_as_they_are() -> None:
    values, turns = np.full((4, 4), np.nan), np.full((4, 4), -1, np.int64)
    np.testing.assert_array_equal(levelled(values, turns), values)
    for number in range(3):
        for a, b in circle_round(4, number):
            values[a, b] = values[b, a] = -0.1 * number
            turns[a, b] = turns[b, a] = number
    np.testing.assert_array_equal(levelled(values, turns), values)


def test_rounds_are_levelled_around_their_middle_so_that_speeds_stay_speeds() -> None:
    """Two rounds are 5 % slower than the two others."""
    values, turns = np.full((16, 16), np.nan), np.full((16, 16), -1, np.int64)
    for number, speed in enumerate((0.0, 0.0, -0.05, -0.05)):
        for a, b in circle_round(16, number):
            values[a, b] = values[b, a] = speed
            turns[a, b] = turns[b, a] = number
    found = levelled(values, turns)
    assert found[np.isfinite(found)] == pytest.approx(-0.025)
