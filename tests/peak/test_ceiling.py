"""Which limit a curve is set against."""

from __future__ import annotations

import pytest

from collbench.peak.ceiling import given, model_of, nothing

GIVEN_GB_PER_S = 12.5


@pytest.mark.parametrize(
    ("points", "model"),
    [
        ([(40.0, 50.0, 60.0)], "ring"),
        ([(50.0, 50.0, 60.0)], "ring"),
        ([(55.0, 50.0, 60.0)], "bound"),
        ([(60.0, 50.0, 60.0)], "bound"),
        ([(65.0, 50.0, 60.0)], "doubtful"),
        ([(55.0, 50.0, None)], "ring"),
        ([(55.0, None, 60.0)], "bound"),
        ([(55.0, None, None)], "bound"),
        ([(65.0, 50.0, 60.0), (10.0, 50.0, 60.0)], "doubtful"),
    ],
)
def test_the_best_point_of_a_curve_decides(points: list[tuple[float, float | None, float | None]], model: str) -> None:
    assert model_of(points) == model


def test_a_ceiling_is_given_in_gigabytes_per_second() -> None:
    assert given(GIVEN_GB_PER_S).bytes_per_s == 12.5e9
    assert nothing("no link").bytes_per_s is None and nothing("no link").limited_by == "no link"
