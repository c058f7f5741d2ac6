"""A history: levels, other changes at a step, and cases that are missing for a time."""

from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.gating.allocation import CaseTimes
from collbench.gating.baseline import Baseline, CaseGroup, Figures, Scheme, add_all
from collbench.gating.history import (
    CASE,
    GROUP,
    WHOLE,
    BaselineDiff,
    CaseHistory,
    History,
    HistoryMatrix,
    SeriesSubject,
    between_allocations,
    between_baselines,
    common,
    dated_in,
    distinct_names,
    drawn,
    history,
    history_matrix,
    median_variance,
    scatter,
    steps,
    typical,
)
from collbench.gating.rule import floors_of
from tests.conftest import needs_plugin
from tests.gate.allocations import edit_info, launch, launches
from tests.gate.histories import SIZES, case, nights, upgraded

SLOWER = {"allreduce on mpi, large messages", *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256))}


def named(found: History, name: str) -> CaseHistory:
    (series,) = (each for each in found.series if each.about.name == name)
    return series


def test_an_upgrade_changes_its_cases_and_their_group_only() -> None:
    found = history("base", upgraded())
    assert {each.about.name for each in found.series if each.steps} == SLOWER
    group = named(found, "allreduce on mpi, large messages")
    assert [(level.first, level.last) for level in group.levels] == [(0, 9), (10, 19)]
    assert (group.trend, group.largest) == (pytest.approx(1.05, abs=0.01), pytest.approx(0.0488, abs=0.01))
    (step,) = group.steps
    assert [(each.a, each.b) for each in found.between(step.before, step.at)] == [("4.3", "5.0")]
    assert named(found, "all cases").largest == 0


def test_a_step_has_its_trend_and_the_change_of_the_machine_state() -> None:
    found = history("base", nights(20, lambda number, backend, size: 1.1 if 7 <= number < 14 else 1.0))
    series = named(found, "allreduce 64 MiB gloo")
    assert ([step.at for step in series.steps], series.trend) == ([7, 14], pytest.approx(1.0, abs=0.01))
    assert found.between(6, 7) == []
    slower = nights(12, lambda number, backend, size: 1.2 if number >= 6 else 1.0)
    found = history("base", [replace(each, canary_s=(2.6e-7,) * 3) if number >= 6 else each for number, each in enumerate(slower)])
    (step,) = named(found, "all cases").steps
    assert "60 → 260 ns" in found.state(step)
    unknown = history("base", [replace(each, canary_s=(None,) * 3) for each in slower])
    assert history("base", slower).state(step) == unknown.state(step) == ""


def test_cases_that_are_missing_or_were_measured_once_are_no_change() -> None:
    gone = {8: range(3), 64: range(15, 20), 1024: (4, 5, 9)}
    found = history("base", nights(20, lambda number, backend, size: None if number in gone.get(size, ()) else 1.0))
    assert "night-4" in found.missing(named(found, "allreduce 8 B mpi"))
    assert "night-16" in found.missing(named(found, "allreduce 64 B mpi"))
    assert "missing in 3" in found.missing(named(found, "allreduce 1 KiB mpi"))
    assert found.missing(named(found, "allreduce 2 MiB mpi")) == ""
    assert not any(each.steps for each in found.series)
    allocations = nights(6)
    for each in allocations:
        each.cases[case(8)] = each.cases[case(8)]._replace(medians_s=(None,) * 3, na="no such size")
    series = named(found := history("base", allocations), "allreduce 8 B mpi")
    assert (series.levels, series.trend, found.missing(series)) == ([], None, "never measured")
    assert {each.trend for each in history("base", nights(1)).series} == {1.0}


# Allocations as series: names, what is common, and how much is chance.


def test_the_order_and_the_names_of_series() -> None:
    sheet = history_matrix(nights(4))
    groups = [f"allreduce on {backend}, {size_class} messages" for backend in ("gloo", "mpi") for size_class in ("small", "large")]
    assert [about.name for about in sheet.abouts if about.kind != CASE] == ["all cases", *groups]
    cases = [case(size, backend) for backend in ("gloo", "mpi") for size in SIZES]
    assert [about.case for about in sheet.abouts if about.kind == CASE] == cases
    assert sheet.values.shape == (4, 5 + 2 * len(SIZES))
    assert np.exp(sheet.floors[[0, 1, 2, 5, 11]]) == pytest.approx([1.015, 1.03, 1.01, 1.05, 1.02])
    sheet = history_matrix(nights(4, lambda number, backend, size: 1.0 if backend == "mpi" and size <= 64 else None))
    assert [about.kind for about in sheet.abouts] == [CASE, CASE]
    alike = [case(8), case(8, mode="batched"), case(64)]
    assert distinct_names(alike) == ["allreduce 8 B mpi (mode isolated)", "allreduce 8 B mpi (mode batched)", "allreduce 64 B mpi"]


def test_what_is_common_and_what_a_case_shows_itself() -> None:
    cases, slower = np.array([0.0, 5.0, 10.0, -3.0]), np.array([0.0, 0.1, 0.1, 0.0, 0.2])
    times = cases + slower[:, None]
    whole = common(times)
    assert whole - whole[0] == pytest.approx(slower)
    times[1, 0] = times[4, 2] = np.nan
    times[2, :2] = np.nan
    partly = common(times)
    assert np.isnan(partly[2])
    assert np.delete(partly - partly[0], 2) == pytest.approx(np.delete(slower, 2))
    scheme = Scheme.of_cases([CaseGroup("mpi", "allreduce", "large")] * 4)
    values = np.zeros((6, 4))
    values[:, 3] = np.nan
    found = drawn(np.array([1.0, 1.0, 4.0, np.nan]), values, scheme)
    assert found == pytest.approx([(8 * 2 + 5) / 13, (8 * 2 + 5) / 13, 4.0, 2.0])


def test_the_variance_of_a_median_follows_from_the_launches_of_enough_allocations() -> None:
    launches = np.array([[0.0, 0.1, 0.2], [0.1, np.nan, np.nan]])
    assert median_variance(launches) == pytest.approx([np.pi / 2 * 0.01 / 3, np.nan], nan_ok=True)
    sheet = history_matrix(nights(6))
    assert np.isnan(sheet.variance([0, 1])).all()
    assert np.isfinite(sheet.variance([0, 1, 2])).all()
    assert {about.kind for about in sheet.abouts} == {WHOLE, GROUP, CASE}
    nervous, scattering = nights(6), case(64 << 20)
    for each in nervous:
        low, middle, high = each.cases[scattering].medians_s
        each.cases[scattering] = CaseTimes((0.9 * low, middle, 1.1 * high))
    place = [about.case for about in sheet.abouts].index(scattering)
    assert history_matrix(nervous).variance()[place] > 20 * sheet.variance()[place]


# Steps in series: found where they are, at their place, and hardly ever where nothing changed.

FLOOR = np.array([0.02])


def series(*levels: tuple[int, float], noise: float = 0.003, seed: int = 0) -> Figures:
    """[allocations × 1] so many of each level."""
    values = np.concatenate([np.full(count, level) for count, level in levels])
    return np.asarray(values + np.random.default_rng(seed).normal(0, noise, len(values)))[:, None]


def places(values: Figures, floor: Figures = FLOOR) -> list[tuple[int, int]]:
    (found,) = steps(values, scatter(values), floor)
    return [(step.before, step.at) for step in found]


def test_a_step_is_found_at_its_place_with_its_size_despite_unmeasured_allocations() -> None:
    values = series((10, 0.0), (10, 0.05))
    ((step,),) = steps(values, scatter(values), FLOOR)
    assert (step.before, step.at, step.limit) == (9, 10, 0.02)
    assert step.change == pytest.approx(0.05, abs=3 * step.error)
    assert step.error == pytest.approx(0.003 * sqrt(np.pi / 2 * 2 / 10), rel=0.4)
    values[[0, 4, 9, 10, 11, 19]] = np.nan
    assert places(values) == [(8, 12)]


QUIET = {"noise": 1e-4}


@pytest.mark.parametrize(("values", "floor", "expected"), [
    (series((7, 0.0), (6, 0.05), (7, 0.0)), FLOOR, [(6, 7), (12, 13)]),  # up and down again
    (series((5, 0.0), (5, -0.1)), FLOOR, [(4, 5)]),  # faster
    (series((10, 0.0), (10, 0.015), **QUIET), FLOOR, []),  # significant, but small
    (series((10, 0.0), (10, 0.015), **QUIET), FLOOR / 2, [(9, 10)]),
    (series((10, 0.0), (10, 0.1), (10, 0.115), **QUIET), FLOOR, [(9, 10)]),  # the second one is small
    # a level takes three allocations
    (series((8, 0.0), (2, 0.1), (8, 0.0)), FLOOR, []), (series((8, 0.0), (2, 0.1)), FLOOR, []),
    (series((3, 0.0), (3, 0.1)), FLOOR, [(2, 3)]), (series((3, 0.0), (2, 0.1)), FLOOR, []), (np.full((8, 1), np.nan), FLOOR, []),
])  # fmt: skip
def test_where_a_series_has_steps(values: Figures, floor: Figures, expected: list[tuple[int, int]]) -> None:
    assert places(values, floor) == expected


def test_the_scatter_is_without_steps_and_the_largest_square() -> None:
    random = np.random.default_rng(1)
    squares = random.normal(0, 1, (19, 4000)) ** 2
    assert typical(squares).mean() == pytest.approx(1.0, abs=0.03)
    squares[3] = 1e6
    assert typical(squares).mean() == pytest.approx(1.25, abs=0.05)  # now the largest by chance is kept
    assert np.isnan(typical(np.array([[1.0]]))).all()
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


def marks(scheme: Scheme, launches: Figures) -> list[list[int]]:
    """Where the series of these launches have steps: all cases, each group, each case."""
    times, floors = np.median(launches, axis=1), floors_of(scheme)
    groups = [SeriesSubject("group", str(group), group) for group in scheme.groups]
    abouts = (SeriesSubject("whole", "all cases"), *groups, *(SeriesSubject("cell", "", scheme.groups[number]) for number in scheme.of))
    columns = np.column_stack([common(times), *(common(times[:, members]) for members in scheme.members), times])
    all_floors = np.concatenate([[floors.whole], floors.groups, floors.cases])
    sheet = HistoryMatrix(abouts, columns, all_floors, median_variance(np.moveaxis(launches, 1, 2)))
    return [[step.at for step in each] for each in steps(sheet.values, sheet.variance(), sheet.floors)]


def table(trials: int, count: int, seed: int) -> dict[str, float]:
    """How often something is marked where nothing changed, and how often a change in the middle is, at its place."""
    from collbench.plugins.selftest.self_test import Cluster, Noise, default_scheme

    scheme, random = default_scheme(), np.random.default_rng(seed)
    noise, cases, large = Noise(), 1 + len(scheme.groups), np.flatnonzero(scheme.classes[scheme.of] == 2)
    found = dict.fromkeys(("false case", "false group", "case 5 %", "case 10 %", "group 2 %", "group 5 %"), 0)
    for _ in range(trials):
        cluster = Cluster.draw(noise, scheme, random)
        own, of_all = random.normal(0, 1, (count, len(scheme.of))), random.normal(0, noise.allocation_common, (count, 1))
        between = own * cluster.allocation + of_all
        launches = cluster.launches(count, 3, random) + between[:, None, :]
        quiet = marks(scheme, launches)
        found["false case"] += any(quiet[cases:])
        found["false group"] += any(quiet[:cases])
        chosen = int(random.choice(large))
        group = int(scheme.of[chosen])
        for kind, percent in (("case", 5), ("case", 10), ("group", 2), ("group", 5)):
            members, marked = ([chosen], cases + chosen) if kind == "case" else (scheme.members[group], 1 + group)
            slower = launches.copy()
            slower[count // 2 :, :, members] += log(1 + percent / 100)
            found[f"{kind} {percent} %"] += any(abs(at - count // 2) <= 1 for at in marks(scheme, slower)[marked])
    return {name: number / trials for name, number in found.items()}


@needs_plugin("selftest")
def test_a_sample_of_simulated_histories() -> None:
    """The whole table is the next test's."""
    shares = table(2, 20, seed=3)
    assert (shares["false group"], shares["group 5 %"]) == (0, 1)


@pytest.mark.long
@needs_plugin("selftest")
@pytest.mark.parametrize(("count", "false_case", "least"), [
    (20, 0.03, {"case 5 %": 0.85, "case 10 %": 0.95, "group 2 %": 0.8, "group 5 %": 0.99}),
    (8, 0.03, {"case 10 %": 0.75, "group 5 %": 0.95}),
])  # fmt: skip
def test_simulated_histories(count: int, false_case: float, least: dict[str, float]) -> None:
    shares = table(300, count, seed=1)
    assert shares["false case"] <= false_case and shares["false group"] <= 0.01
    for name, share in least.items():
        assert shares[name] >= share, name


# The allocations of a history: a baseline, or runs in a folder, in the order of their start.


def test_a_baseline_and_its_notes(tmp_path: Path) -> None:
    allocations = nights(10)
    add_all(tmp_path / "base", allocations)
    found, notes = dated_in(tmp_path / "base")
    assert ([each.name for each in found], notes) == ([f"night-{number}" for number in range(1, 11)], [])
    add_all(tmp_path / "other", [*allocations[:5], replace(allocations[5], canary_s=(6e-8, 2.6e-7, 6e-8))])
    (note,) = dated_in(tmp_path / "other")[1]
    assert note.startswith("night-6: ") and "state probe" in note


def test_runs_and_folders_of_launches(tmp_path: Path) -> None:
    edit_info(launch(tmp_path / "z", {8: 1e-6}, "first"), started_utc="2026-11-01T03:00:00+00:00")
    for run in sorted(launches(tmp_path / "a", "second", {8: 1e-6}, {8: 1e-6}).iterdir()):
        edit_info(run, started_utc=f"2026-11-02T0{run.name[-1]}:00:00+00:00")
    (tmp_path / "notes").mkdir()
    found, notes = dated_in(tmp_path)
    assert [(each.name, each.launches) for each in found] == [("first", 1), ("second", 2)]
    assert len(notes) == 1 and notes[0].startswith("2 allocations: ")
    assert [each.name for each in dated_in(tmp_path / "a")[0]] == ["second"]


def test_unreadable_undated_and_wrong_runs_are_noted_and_alone_they_are_no_history(tmp_path: Path) -> None:
    (launches(tmp_path / "torn", "torn", {8: 1e-6}) / "launch-2").mkdir()
    edit_info(launch(tmp_path / "undated", {8: 1e-6}, "undated"), started_utc=None)
    for name, words in (("undated", "no allocation"), ("torn", "launch-2")):
        with pytest.raises(UsageError, match=words):
            dated_in(tmp_path / name)
    launch(tmp_path / "wrong", {8: 1e-6}, "wrong", wrong=3)
    launch(tmp_path / "slowed", {8: 1e-6}, "slowed", flags=("slowed",))
    found, notes = dated_in(tmp_path)
    assert {each.name for each in found} == {"wrong", "slowed"}
    assert notes[0].startswith("left out: ") and "launch-2" in notes[0]
    assert notes[1:4] == ["undated: no start time; left out", "wrong: wrong data", "slowed: slowed on purpose"]


BASE = Baseline(Path("base"), upgraded(12, 6, by=1.1))


def beyond(moves: BaselineDiff) -> set[str]:
    return {each.about.name for each in moves.moved if each.beyond}


def test_two_allocations_around_an_upgrade_and_equal_ones() -> None:
    moves = between_allocations(BASE, "night-6", "night-7")
    assert (beyond(moves), [(each.a, each.b) for each in moves.changes]) == (SLOWER, [("4.3", "5.0")])
    slow = next(each for each in moves.moved if each.about.case == case(64 << 20))
    assert (slow.factor, slow.limit) == (pytest.approx(1.1, abs=0.02), pytest.approx(1.02, abs=0.02))
    assert beyond(between_allocations(BASE, "night-1", "night-6")) == set()
    assert beyond(between_allocations(BASE, "night-7", "night-6")) == SLOWER
    first, second = nights(2)
    del second.cases[case(8)], first.cases[case(64)]
    moves = between_allocations(Baseline(Path("base"), [first, replace(second)]), "night-1", "night-2")
    assert [each.name for each in moves.only_old] == ["allreduce 8 B mpi"]
    assert [each.name for each in moves.only_new] == ["allreduce 64 B mpi"]
    assert not {"allreduce 8 B mpi", "allreduce 64 B mpi"} & {each.about.name for each in moves.moved}


def test_the_noise_limit_of_two_baselines_follows_from_each_and_single_allocations_have_none() -> None:
    before, after = Baseline(Path("a"), BASE.allocations[:6]), Baseline(Path("b"), BASE.allocations[6:])
    moves = between_baselines(before, after)
    assert (beyond(moves), [len(side) for side in moves.sides]) == (SLOWER, [6, 6])
    halves = [Baseline(Path(name), nights(6, seed=seed)) for name, seed in (("a", 1), ("b", 2))]
    assert beyond(between_baselines(*halves)) == set()
    old, new = (Baseline(Path(each.name), [each]) for each in BASE.allocations[5:7])
    moves = between_baselines(old, new)
    assert ({each.limit for each in moves.moved}, beyond(moves)) == ({None}, set())


def test_a_side_that_is_missing_or_named_twice_is_rejected() -> None:
    with pytest.raises(UsageError, match="night-1, night-2"):
        between_allocations(BASE, "night-1", "night-99")
    with pytest.raises(UsageError, match=r"night-1 .*twice"):
        between_allocations(BASE, "night-1", "night-1")
    with pytest.raises(UsageError, match=r"base .*twice"):
        between_baselines(BASE, BASE)
