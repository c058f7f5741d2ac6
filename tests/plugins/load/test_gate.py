"""Runs of interference against one another and against a baseline: a larger factor is a regression, and so is a slower victim alone."""

import json
from datetime import date
from pathlib import Path

import pytest

from collbench.analysis.compare import compare
from collbench.analysis.launches import case_of
from collbench.analysis.outcome import Doubt, Outcome
from collbench.gating.allocation import allocations_in, allocations_of, name_of
from collbench.gating.baseline import add_all, load
from collbench.gating.history import dated_in, history
from collbench.gating.judge import judge
from collbench.gating.verdict import PASSED, REGRESSION, UNDECIDED
from collbench.operations.case import parse_split
from collbench.plugins.load.records import LoadRow
from collbench.plugins.store.database import open_store
from collbench.plugins.store.reading import RunSelection, load_runs, select_runs
from collbench.results.row import UNDER_LOAD, CaseKey
from tests.cli.command import run_here
from tests.plugins.load.loads import PLAN, load_run, nights, simulated_row
from tests.plugins.store.runs import added

TODAY = date(2026, 11, 30)


def outcomes(a: Path, b: Path) -> dict[str, Outcome | None]:
    return {case.a.mode: case.outcome for case in compare(a, b).cases}


def side(folder: Path, factor: float, *, alone_s: float = 1e-5) -> Path:
    for launch in range(1, 4):
        row = simulated_row(launch, factor * (1 + 0.002 * launch), alone_s=alone_s)
        load_run(folder / f"launch-{launch}", row, allocation_id=folder.name, started_utc=f"2026-11-0{launch}T02:00:00Z")
    return folder


@pytest.mark.parametrize(("factor", "alone_s", "expected"), [
    (2.0, 1e-5, (Outcome.NO_CHANGE, Outcome.NO_CHANGE)), (2.6, 1e-5, (Outcome.NO_CHANGE, Outcome.SLOWER)),
    (2.0, 1.3e-5, (Outcome.SLOWER, Outcome.NO_CHANGE)),  # all times are longer, and the factor is the same
    (1.4, 1e-5, (Outcome.NO_CHANGE, Outcome.FASTER)),
])  # fmt: skip
def test_a_comparison_has_the_factor_and_the_time_alone(factor, alone_s, expected, tmp_path):
    a = side(tmp_path / "a", 2.0)
    b = side(tmp_path / "b", factor, alone_s=alone_s)
    found = compare(a, b)
    assert outcomes(a, b) == {"isolated": expected[0], UNDER_LOAD: expected[1]}
    ratio = next(case.time for case in found.cases if case.a.mode == UNDER_LOAD)
    assert ratio is not None and ratio.low is not None and ratio.high is not None and ratio.low <= factor / 2 <= ratio.high


def test_several_launches_have_the_interval_over_them(tmp_path: Path) -> None:
    found = compare(side(tmp_path / "a", 2.0), side(tmp_path / "b", 2.5))
    (case,) = (each for each in found.cases if each.a.mode == UNDER_LOAD)
    assert case.launches and case.outcome is Outcome.SLOWER and case.a.launches == 3
    assert case.a.interference["low"] < case.a.interference["factor"] < case.a.interference["high"]


@pytest.mark.parametrize("kind", [{"crowded": True}, {"blocks": 3}])
def test_an_inconclusive_row_accuses_nothing(kind: dict[str, int], tmp_path: Path) -> None:
    a = load_run(tmp_path / "a", simulated_row(1, 2.0))
    b = load_run(tmp_path / "b", simulated_row(2, 5.0, **kind))  # type: ignore[arg-type]
    (case,) = (each for each in compare(a, b).cases if each.a.mode == UNDER_LOAD)
    assert (case.outcome, case.doubt, case.time) == (Outcome.INCONCLUSIVE, Doubt.OF_A_SIDE, None)
    add_all(tmp_path / "base", allocations_in(nights(tmp_path, 6)))
    verdict = judge(load(tmp_path / "base"), allocations_in([b]), [], TODAY)
    assert verdict.result == UNDECIDED and not [each for each in verdict.suspicions if "under load" in each.name]


@pytest.mark.parametrize(("factor", "alone_s", "result", "mode"), [
    (2.0, 1e-5, PASSED, ""), (2.6, 1e-5, REGRESSION, UNDER_LOAD), (2.0, 1.4e-5, REGRESSION, "isolated"),
])  # fmt: skip
def test_the_gate_confirms_a_larger_factor_and_a_slower_victim(factor, alone_s, result, mode, tmp_path):
    add_all(tmp_path / "base", allocations_in(nights(tmp_path, 8)))
    candidate = nights(tmp_path, 3, factor, first=20, alone_s=alone_s)
    verdict = judge(load(tmp_path / "base"), allocations_in(candidate), [], TODAY)
    assert verdict.result == result
    confirmed = {each.case["mode"] for each in verdict.suspicions if each.kind == "cell"}
    assert confirmed == ({mode} if mode else set())


def test_faster_victims_are_no_slowdown_and_one_launch_or_wide_intervals_decide_nothing(tmp_path: Path) -> None:
    """The time under load stays, and the factor grows: that is a regression of the factor, and the time alone is an improvement."""
    a = side(tmp_path / "a", 2.0)
    b = side(tmp_path / "b", 4.0, alone_s=5e-6)
    assert outcomes(a, b) == {"isolated": Outcome.FASTER, UNDER_LOAD: Outcome.SLOWER}
    a = load_run(tmp_path / "second" / "a", simulated_row(1, 2.0))
    b = load_run(tmp_path / "second" / "b", simulated_row(2, 4.0))
    assert outcomes(a, b) == {"isolated": Outcome.INCONCLUSIVE, UNDER_LOAD: Outcome.INCONCLUSIVE}
    a, b = (
        load_run(tmp_path / "third" / name, simulated_row(seed, factor, noise=0.9)) for name, seed, factor in (("a", 1, 1.0), ("b", 2, 1.2))
    )
    assert outcomes(a, b)[UNDER_LOAD] is Outcome.INCONCLUSIVE


def keys(plan: LoadRow) -> list[CaseKey]:
    return [case_of(row) for row in simulated_row(1, 2.0, plan=plan)[1]]


@pytest.mark.parametrize("change", [
    {"aggressors": "ring"}, {"level": 0.5}, {"message_bytes": 8192}, {"others": (1,)}, {"victims": (0,)}, {"other_nodes": 1}, {"nodes": 5},
    {"size_bytes": 16}, {"split": str(parse_split("MOD 2"))}, {"backend": "gloo"}, {"victim": "reduce"},
])  # fmt: skip
def test_a_change_of_the_meaning_is_another_case(change: dict[str, object]) -> None:
    other = keys(PLAN.replace(**change))  # type: ignore[arg-type]
    if "victim" in change:  # the operation comes from the request
        other = [each._replace(operation="reduce") for each in other]
    assert len({*keys(PLAN), *other}) == 4
    assert keys(PLAN.replace(preset="gpcnet-allreduce")) == keys(PLAN)


def test_cases_that_differ_in_the_aggressors_have_names_of_their_own() -> None:
    cases = [case for change in ({}, {"level": 0.5}, {"aggressors": "ring"}) for case in keys(PLAN.replace(**change))]  # type: ignore[arg-type]
    assert len(set(map(name_of, cases))) == 6
    assert name_of(cases[0]._replace(mode="isolated", traffic="even")) == "allreduce 8 B mpi"


def test_a_history_and_a_baseline_hold_factors(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    nights(folder, 8)
    nights(folder, 8, 2.6, first=9)
    found = history("runs", *dated_in(folder))  # type: ignore[arg-type]
    stepped = {each.about.name for each in found.series if each.steps}
    assert stepped and all("under load" in name or "against" in name for name in stepped)
    shown = run_here(tmp_path, "history", str(folder))
    assert shown.returncode == 0 and "2.59×" in shown.stdout
    assert run_here(tmp_path, "history", str(folder), "--html", "page.html").returncode == 0
    add_all(tmp_path / "base", allocations_in([folder / f"night-{day}" for day in range(1, 7)]))
    for format in ("table", "json"):
        line = run_here(tmp_path, "baseline", "show", str(tmp_path / "base"), "--format", format)
        assert line.returncode == 0 and ("2×" in line.stdout or '"factor"' in line.stdout)


def test_a_store_keeps_the_factor(tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    paths = nights(tmp_path / "runs", 4)
    added(name, *paths)
    database = open_store(name)
    try:
        runs = load_runs(database, select_runs(database, RunSelection()))
    finally:
        database.close()
    stored, folders = allocations_of(runs), allocations_in(paths)
    assert [dict(each.cases) for each in stored] == [dict(each.cases) for each in folders]


def test_the_outputs_of_a_comparison_have_the_factors(tmp_path: Path) -> None:
    a = load_run(tmp_path / "a", simulated_row(1, 2.0))
    b = load_run(tmp_path / "b", simulated_row(2, 2.6))
    table = run_here(tmp_path, "compare", str(a), str(b))
    assert table.returncode == 0 and "2×" in table.stdout and "2.6×" in table.stdout and "factor of allreduce 8 B" in table.stdout
    found = json.loads(run_here(tmp_path, "compare", str(a), str(b), "--format", "json").stdout)
    (case,) = (each for each in found["cells"] if each["mode"] == UNDER_LOAD)
    assert case["a"]["factor"] == pytest.approx(2, rel=0.02) and case["b"]["factor_low"] < 2.6 < case["b"]["factor_high"] * 1.01
    assert case["time_ratio"]["value"] == pytest.approx(1.3, rel=0.02) and case["busbw_ratio"]["value"] is None
    for format in ("csv", "markdown"):
        assert run_here(tmp_path, "compare", str(a), str(b), "--format", format).returncode == 0
