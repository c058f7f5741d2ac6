"""What a round has in common is taken out of a matrix of pairs; what its places have is not."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.analysis.pair_rounds import levelled
from collbench.operations.tournament import circle_round


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


def test_levelled_speeds_stay_speeds() -> None:
    """Three rounds, of which two are 5 % slower: what is usual is that of most rounds."""
    n = 8
    turns = np.full((n, n), -1)
    values = np.full((n, n), np.nan)
    for a in range(n):
        for b in range(n):
            if a != b:
                turns[a, b] = (a + b) % 3
                values[a, b] = 10.0 - 0.05 * (turns[a, b] < 2)
    found = levelled(values, turns)
    assert np.nanmin(found) == pytest.approx(9.95) and np.nanmax(found) == pytest.approx(9.95)
