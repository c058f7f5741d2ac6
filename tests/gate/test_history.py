"""A history: levels, other changes at a step, and cases that are missing for a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.gate.history import CaseHistory, History, history
from tests.gate.histories import case, nights, upgraded


def named(found: History, name: str) -> CaseHistory:
    (series,) = (each for each in found.series if each.about.name == name)
    return series


def test_an_upgrade_changes_its_cases_and_their_group_only() -> None:
    found = history("base", upgraded())
    assert {each.about.name for each in found.series if each.steps} == {
        "allreduce on mpi, large messages", *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256)),
    }  # fmt: skip
    group = named(found, "allreduce on mpi, large messages")
    assert [(level.first, level.last) for level in group.levels] == [(0, 9), (10, 19)]
    assert group.trend == pytest.approx(1.05, abs=0.01)
    assert group.largest == pytest.approx(0.0488, abs=0.01)
    (step,) = group.steps
    assert [(each.a, each.b) for each in found.between(step.before, step.at)] == [("4.3", "5.0")]
    assert named(found, "all cases").largest == 0


def test_up_and_down_again_is_a_trend_of_one() -> None:
    found = history("base", nights(20, lambda number, backend, size: 1.1 if 7 <= number < 14 else 1.0))
    series = named(found, "allreduce 64 MiB gloo")
    assert [step.at for step in series.steps] == [7, 14]
    assert series.trend == pytest.approx(1.0, abs=0.01)
    assert found.between(6, 7) == []


def test_cases_that_appear_end_or_are_missing_for_a_time() -> None:
    gone = {8: range(3), 64: range(15, 20), 1024: (4, 5, 9)}
    found = history("base", nights(20, lambda number, backend, size: None if number in gone.get(size, ()) else 1.0))
    assert "night-4" in found.missing(named(found, "allreduce 8 B mpi"))
    assert "night-16" in found.missing(named(found, "allreduce 64 B mpi"))
    assert "missing in 3" in found.missing(named(found, "allreduce 1 KiB mpi"))
    assert found.missing(named(found, "allreduce 2 MiB mpi")) == ""
    assert not any(each.steps for each in found.series)


def test_a_case_that_was_never_measured_has_no_level() -> None:
    allocations = nights(6)
    for each in allocations:
        each.cases[case(8)] = each.cases[case(8)]._replace(medians_s=(None,) * 3, na="no such size")
    series = named(found := history("base", allocations), "allreduce 8 B mpi")
    assert (series.levels, series.trend, found.missing(series)) == ([], None, "never measured")


def test_one_allocation_is_a_history_without_a_change() -> None:
    found = history("base", nights(1))
    assert [each.trend for each in found.series] == [1.0] * len(found.series)


def test_a_step_has_the_change_of_the_machine_state() -> None:
    slower = nights(12, lambda number, backend, size: 1.2 if number >= 6 else 1.0)
    found = history("base", [replace(each, canary_s=(2.6e-7,) * 3) if number >= 6 else each for number, each in enumerate(slower)])
    (step,) = named(found, "all cases").steps
    assert "60 → 260 ns" in found.state(step)
    assert history("base", slower).state(step) == ""
    unknown = history("base", [replace(each, canary_s=(None,) * 3) for each in slower])
    assert unknown.state(step) == ""
