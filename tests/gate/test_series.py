"""Allocations as series: names, what is common, and how much is chance."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.gate.baseline import CaseGroup, Scheme
from collbench.gate.history import CELL, GROUP, WHOLE, common, distinct_names, drawn, history_matrix, median_variance
from tests.gate.histories import SIZES, case, nights


def test_all_cases_come_first_then_groups_then_cases() -> None:
    sheet = history_matrix(nights(4))
    assert [about.name for about in sheet.abouts if about.kind != CELL] == [
        "all cases", "allreduce on gloo, small messages", "allreduce on gloo, large messages",
        "allreduce on mpi, small messages", "allreduce on mpi, large messages",
    ]  # fmt: skip
    assert [about.case for about in sheet.abouts if about.kind == CELL] == [
        case(size, backend) for backend in ("gloo", "mpi") for size in SIZES
    ]
    assert sheet.values.shape == (4, 5 + 2 * len(SIZES))
    assert np.exp(sheet.floors[[0, 1, 2, 5, 11]]) == pytest.approx([1.015, 1.03, 1.01, 1.05, 1.02])


def test_two_cases_are_not_a_group() -> None:
    sheet = history_matrix(nights(4, lambda number, backend, size: 1.0 if backend == "mpi" and size <= 64 else None))
    assert [about.kind for about in sheet.abouts] == [CELL, CELL]


def test_cases_of_one_name_are_distinguished() -> None:
    alike = [case(8), case(8, mode="batched"), case(64)]
    assert distinct_names(alike) == ["allreduce 8 B mpi (mode isolated)", "allreduce 8 B mpi (mode batched)", "allreduce 64 B mpi"]


def test_missing_values_do_not_change_the_common_part() -> None:
    cases, slower = np.array([0.0, 5.0, 10.0, -3.0]), np.array([0.0, 0.1, 0.1, 0.0, 0.2])
    times = cases + slower[:, None]
    whole = common(times)
    assert whole - whole[0] == pytest.approx(slower)
    times[1, 0] = times[4, 2] = np.nan
    times[2, :2] = np.nan
    partly = common(times)
    assert np.isnan(partly[2])
    assert np.delete(partly - partly[0], 2) == pytest.approx(np.delete(slower, 2))


def test_a_case_is_drawn_to_its_group_but_never_below_what_it_shows_itself() -> None:
    scheme = Scheme.of_cases([CaseGroup("mpi", "allreduce", "large")] * 4)
    values = np.zeros((6, 4))
    values[:, 3] = np.nan
    found = drawn(np.array([1.0, 1.0, 4.0, np.nan]), values, scheme)
    assert found == pytest.approx([(8 * 2 + 5) / 13, (8 * 2 + 5) / 13, 4.0, 2.0])


def test_the_variance_of_a_median_follows_from_the_launches() -> None:
    launches = np.array([[0.0, 0.1, 0.2], [0.1, np.nan, np.nan]])
    assert median_variance(launches) == pytest.approx([np.pi / 2 * 0.01 / 3, np.nan], nan_ok=True)


def test_a_case_with_scattering_launches_is_marked(seed: int = 2) -> None:
    quiet = nights(8, seed=seed)
    nervous = nights(8, seed=seed)
    for each in nervous:
        measured = each.cases[case(64 << 20)]
        each.cases[case(64 << 20)] = measured._replace(
            medians_s=tuple(time * f for time, f in zip(measured.medians_s, (0.9, 1, 1.1), strict=True))
        )
    place = next(number for number, about in enumerate(history_matrix(quiet).abouts) if about.case == case(64 << 20))
    assert history_matrix(nervous).variance()[place] > 20 * history_matrix(quiet).variance()[place]


def test_too_few_allocations_have_no_limits() -> None:
    sheet = history_matrix(nights(6))
    assert np.isnan(sheet.variance([0, 1])).all()
    assert np.isfinite(sheet.variance([0, 1, 2])).all()
    assert {about.kind for about in sheet.abouts} == {WHOLE, GROUP, CELL}
