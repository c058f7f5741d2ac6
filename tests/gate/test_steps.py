"""Steps in series: found where they are, at their place, and hardly ever where nothing changed."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.gate.baseline import Figures, Scheme
from collbench.gate.history import LEAST, HistoryMatrix, SeriesSubject, common, median_variance, scatter, steps, typical
from collbench.gate.rule import floors_of
from collbench.gate.self_test import Cluster, Noise, default_scheme

FLOOR = np.array([0.02])


def series(*levels: tuple[int, float], noise: float = 0.003, seed: int = 0) -> Figures:
    """[allocations × 1] so many of each level."""
    values = np.concatenate([np.full(count, level) for count, level in levels])
    return np.asarray(values + np.random.default_rng(seed).normal(0, noise, len(values)))[:, None]


def places(values: Figures, floor: Figures = FLOOR) -> list[tuple[int, int]]:
    (found,) = steps(values, scatter(values), floor)
    return [(step.before, step.at) for step in found]


def test_a_step_is_found_at_its_place_with_its_size_and_interval() -> None:
    values = series((10, 0.0), (10, 0.05))
    ((step,),) = steps(values, scatter(values), FLOOR)
    assert (step.before, step.at) == (9, 10)
    assert step.change == pytest.approx(0.05, abs=3 * step.error)
    assert step.error == pytest.approx(0.003 * sqrt(np.pi / 2 * 2 / 10), rel=0.4)
    assert step.limit == 0.02


def test_up_and_down_again_and_faster() -> None:
    assert places(series((7, 0.0), (6, 0.05), (7, 0.0))) == [(6, 7), (12, 13)]
    assert places(series((5, 0.0), (5, -0.1))) == [(4, 5)]


def test_a_significant_but_small_difference_is_not_a_step() -> None:
    assert places(series((10, 0.0), (10, 0.015), noise=1e-4)) == []
    assert places(series((10, 0.0), (10, 0.015), noise=1e-4), FLOOR / 2) == [(9, 10)]


def test_a_level_takes_three_allocations() -> None:
    assert LEAST == 3
    assert places(series((8, 0.0), (2, 0.1), (8, 0.0))) == []
    assert places(series((8, 0.0), (2, 0.1))) == []
    assert places(series((3, 0.0), (3, 0.1))) == [(2, 3)]
    assert places(series((3, 0.0), (2, 0.1))) == []


def test_unmeasured_allocations_neither_make_nor_hide_a_step() -> None:
    values = series((10, 0.0), (10, 0.05))
    values[[0, 4, 9, 10, 11, 19]] = np.nan
    assert places(values) == [(8, 12)]
    assert places(np.full((8, 1), np.nan)) == []


def test_the_largest_square_is_left_out_and_the_rest_made_up_for() -> None:
    random = np.random.default_rng(1)
    squares = random.normal(0, 1, (19, 4000)) ** 2
    assert typical(squares).mean() == pytest.approx(1.0, abs=0.03)
    squares[3] = 1e6
    assert typical(squares).mean() == pytest.approx(1.25, abs=0.05)  # now the largest by chance is kept
    assert np.isnan(typical(np.array([[1.0]]))).all()


def test_a_step_does_not_count_as_scatter() -> None:
    with_a_step, without = scatter(series((10, 0.0), (10, 0.5))), scatter(series((20, 0.0)))
    assert (with_a_step / without).item() == pytest.approx(1.0, abs=0.5)  # with the step it were 1500


@given(st.lists(st.floats(-60, 60) | st.just(float("nan")), min_size=1, max_size=14))
@settings(max_examples=60, deadline=None)
def test_for_any_values_steps_are_in_order_and_between_measured_allocations(values: list[float]) -> None:
    column = np.array(values)[:, None]
    (found,) = steps(column, scatter(column), FLOOR)
    ends = [place for step in found for place in (step.before, step.at)]
    assert ends == sorted(set(ends))
    assert np.isfinite(column[ends, 0]).all()
    assert all(abs(step.change) > step.limit for step in found)


def made_up(cluster: Cluster, count: int, random: np.random.Generator) -> Figures:
    """[allocations × launches × cases] ln of time, three launches each."""
    noise, cases = cluster.noise, len(cluster.launch)
    between = random.normal(0, 1, (count, cases)) * cluster.allocation + random.normal(0, noise.allocation_common, (count, 1))
    return np.asarray(cluster.launches(count, 3, random) + between[:, None, :])


def sheet(scheme: Scheme, launches: Figures) -> HistoryMatrix:
    """As `history_matrix` makes it of allocations."""
    times, floors = np.median(launches, axis=1), floors_of(scheme)
    abouts = (
        SeriesSubject("whole", "all cases"), *(SeriesSubject("group", str(group), group) for group in scheme.groups),
        *(SeriesSubject("cell", "", scheme.groups[number]) for number in scheme.of),
    )  # fmt: skip
    columns = np.column_stack([common(times), *(common(times[:, members]) for members in scheme.members), times])
    return HistoryMatrix(
        abouts, columns, np.concatenate([[floors.whole], floors.groups, floors.cases]), median_variance(np.moveaxis(launches, 1, 2))
    )


def table(trials: int, count: int, seed: int) -> dict[str, float]:
    """How often something is marked where nothing changed, and how often a change in the middle is, at its place."""
    scheme, random = default_scheme(), np.random.default_rng(seed)
    cases, large = 1 + len(scheme.groups), np.flatnonzero(scheme.classes[scheme.of] == 2)
    found = dict.fromkeys(("false case", "false group", "case 5 %", "case 10 %", "group 2 %", "group 5 %"), 0)
    for _ in range(trials):
        launches = made_up(Cluster.draw(Noise(), scheme, random), count, random)
        quiet = _marks(sheet(scheme, launches))
        found["false case"] += any(quiet[cases:])
        found["false group"] += any(quiet[:cases])
        chosen = int(random.choice(large))
        group = int(scheme.of[chosen])
        for percent, members, marked in ((5, [chosen], cases + chosen), (10, [chosen], cases + chosen),
                                         (2, scheme.members[group], 1 + group), (5, scheme.members[group], 1 + group)):  # fmt: skip
            slower = launches.copy()
            slower[count // 2 :, :, members] += log(1 + percent / 100)
            kind = "case" if marked >= cases else "group"
            found[f"{kind} {percent} %"] += any(abs(at - count // 2) <= 1 for at in _marks(sheet(scheme, slower))[marked])
    return {name: number / trials for name, number in found.items()}


def _marks(made: HistoryMatrix) -> list[list[int]]:
    return [[step.at for step in each] for each in steps(made.values, made.variance(), made.floors)]


def test_a_sample_of_simulated_histories() -> None:
    """The whole table is the next test's."""
    shares = table(2, 20, seed=3)
    assert shares["false group"] == 0
    assert shares["group 5 %"] == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "false_case", "least"),
    [
        (20, 0.03, {"case 5 %": 0.85, "case 10 %": 0.95, "group 2 %": 0.8, "group 5 %": 0.99}),
        (8, 0.03, {"case 10 %": 0.75, "group 5 %": 0.95}),
    ],
)
def test_simulated_histories(count: int, false_case: float, least: dict[str, float]) -> None:
    shares = table(300, count, seed=1)
    print(count, shares)
    assert shares["false case"] <= false_case
    assert shares["false group"] <= 0.01
    for name, share in least.items():
        assert shares[name] >= share, name
