"""Student's quantiles against tables and closed forms."""

import math

import pytest

from collbench.stats.median import t_quantile


@pytest.mark.parametrize(("degrees", "quantile"), [
    (1, 12.7062047362), (2, 4.3026527297), (3, 3.1824463053), (4, 2.7764451052), (5, 2.5705818356), (10, 2.2281388520), (30, 2.0422724563),
    (120, 1.9799304051),
])  # fmt: skip
def test_the_table_of_97_5_percent(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, rel=1e-9)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.99, 0.9995])
def test_closed_forms_of_one_and_two_degrees(probability):
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
    u = 2 * probability - 1
    assert t_quantile(probability, 2) == pytest.approx(u * math.sqrt(2 / (1 - u * u)), rel=1e-9)


def test_many_degrees_are_normal_and_broken_ones_lie_between():
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959963984540054, rel=1e-6)
    assert t_quantile(0.975, 3) < t_quantile(0.975, 2.5) < t_quantile(0.975, 2)


def test_it_is_symmetric():
    assert t_quantile(0.05, 7) == -t_quantile(0.95, 7)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0, 5), (1, 5), (0.9, 0.5), (0.9, math.nan), (math.nan, 5)])
def test_outside_there_is_none(probability, degrees):
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)
