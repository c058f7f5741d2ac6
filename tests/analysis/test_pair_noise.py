"""How far cells and places of a pair matrix may be off by chance."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.analysis.pair_statistics import TAILS, noise_scale, of_medians, quantile, scale_of


def test_a_median_of_many_cells_is_known_better_by_the_root_of_their_number() -> None:
    assert of_medians(0.01, np.array([0, 1, 4, 100])) == pytest.approx([0.0134, 0.0134, 0.0067, 0.00134])


def test_the_scale_is_that_of_the_noise() -> None:
    rest = np.random.default_rng(1).standard_t(TAILS, 4000) * 0.01
    assert noise_scale(rest) == pytest.approx(0.01, rel=0.15)
    assert scale_of(rest) == pytest.approx(0.01, rel=0.1)


def test_up_to_a_tenth_of_slow_cells_are_exceptions_and_more_of_them_are_noise() -> None:
    rest = np.random.default_rng(1).standard_t(TAILS, 1000) * 0.01
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
    assert quantile(0.025, TAILS) == pytest.approx(2.776, abs=0.001)
    assert quantile(1e-30, TAILS) == quantile(1e-11, TAILS)
