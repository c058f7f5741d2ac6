"""Two sides compared: the ratio and its interval, the word for it, what cannot be compared."""

from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.compare import CaseRatio, Comparison, compare, largest_first, worst_first
from collbench.analysis.outcome import Doubt, Outcome, outcome_by_limit, outcome_of
from collbench.errors import UsageError
from collbench.results.row import Times
from collbench.stats.launches import Ratio, ratio_of_launches
from tests.results.rows import make_row, make_times, not_measured, store


def launches(folder: Path, medians: list[float], size_bytes: int = 1024, allocation: str | None = None, **changes: Any) -> Path:
    """A folder of launches with one case each."""
    for number, p50 in enumerate(medians, start=1):
        rows = [make_row(size_bytes, time_s=make_times(p50), **changes)]
        store(folder / f"launch-{number}", rows, allocation_id=allocation or folder.name)
    return folder


def only_case(found: Comparison) -> CaseRatio:
    (case,) = found.cases
    return case


BEFORE = [1.00e-6, 1.01e-6, 0.99e-6, 1.00e-6, 1.02e-6]


@pytest.mark.parametrize(("factor", "outcome"), [(1.2, Outcome.SLOWER), (0.8, Outcome.FASTER), (1.0, Outcome.NO_CHANGE)])
def test_launches_on_both_sides(factor: float, outcome: Outcome, tmp_path: Path) -> None:
    after = [factor * p50 for p50 in BEFORE]
    case = only_case(compare(launches(tmp_path / "a", BEFORE), launches(tmp_path / "b", after)))
    assert (case.time, case.time.value) == (ratio_of_launches(BEFORE, after), pytest.approx(factor))
    assert (case.outcome, case.launches) == (outcome, True)
    assert case.bandwidth.value == pytest.approx(1 / factor)
    assert (case.bandwidth.low, case.bandwidth.high) == (1 / (case.time.high or 0), 1 / (case.time.low or 0))


def test_no_change_has_the_largest_difference_that_the_interval_allows_and_the_margin_decides(tmp_path: Path) -> None:
    a, b = launches(tmp_path / "a", BEFORE), launches(tmp_path / "b", BEFORE[::-1])
    case = only_case(compare(a, b))
    assert case.time.low < 1 < case.time.high
    assert case.within == max(case.time.high - 1, 1 - case.time.low) and 0.005 < case.within < 0.05
    assert [only_case(compare(a, b, margin)).outcome for margin in (0.05, 0.001)] == [Outcome.NO_CHANGE, Outcome.INCONCLUSIVE]


@pytest.mark.parametrize("factor", [1.0, 1.001, 1.12, 2.0, 0.5])
def test_one_launch_each_decides_nothing(factor: float, tmp_path: Path) -> None:
    found = compare(launches(tmp_path / "a", BEFORE[:1]), launches(tmp_path / "b", [factor * BEFORE[0]]))
    case = only_case(found)
    assert (case.outcome, case.doubt, case.within, case.launches) == (Outcome.INCONCLUSIVE, Doubt.ONE_RUN_EACH, None, False)
    assert case.time.value == pytest.approx(factor)
    assert found.summary.outcomes[Outcome.INCONCLUSIVE] == found.summary.one_run_each == 1


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.NO_CHANGE), (1.2, Outcome.SLOWER), (0.8, Outcome.FASTER)])
@pytest.mark.parametrize("single", ["a", "b"])
def test_the_launches_of_one_side_show_how_far_launches_differ(factor: float, outcome: Outcome, single: str, tmp_path: Path) -> None:
    of_a = BEFORE[:1] if single == "a" else BEFORE
    of_b = [factor * p50 for p50 in (BEFORE[:1] if single == "b" else BEFORE)]
    case = only_case(compare(launches(tmp_path / "a", of_a), launches(tmp_path / "b", of_b)))
    assert (case.outcome, case.launches, case.scatter) == (outcome, False, 5)


@pytest.mark.parametrize("after_s", [2.30e-6, 2.31e-6])
def test_imported_launches_that_were_rounded_to_one_figure_decide_nothing(after_s: float, tmp_path: Path) -> None:
    a, b = (launches(tmp_path / name, [time_s] * 3, flags=("imported",)) for name, time_s in (("a", 2.30e-6), ("b", after_s)))
    case = only_case(compare(a, b))
    assert (case.outcome, case.doubt, case.within) == (Outcome.INCONCLUSIVE, Doubt.NO_INTERVAL, None)
    b = launches(tmp_path / "c", [2.4e-6, 2.41e-6, 2.4e-6], flags=("imported",))
    assert only_case(compare(a, b)).outcome is Outcome.SLOWER


def beside(folder: Path, medians: list[float], **info: Any) -> list[Path]:
    """Single runs of one case in a folder."""
    rows = [make_row(1024, time_s=make_times(p50)) for p50 in medians]
    info = {"hosts": ["n1"], **info}
    return [store(folder / f"run-{number}", [row], allocation_id=f"{number}", **info) for number, row in enumerate(rows)]


@pytest.mark.parametrize(("earlier", "factor", "outcome"), [
    (BEFORE, 2.0, Outcome.SLOWER), (BEFORE, 0.5, Outcome.FASTER), (BEFORE, 1.02, Outcome.INCONCLUSIVE),
    ([1e-6, 1.5e-6, 0.7e-6, 2e-6], 2.0, Outcome.INCONCLUSIVE),  # launches of this case differ by as much
    (BEFORE[:2], 2.0, Outcome.INCONCLUSIVE),  # two show too little
    ([1e-6] * 5, 2.0, Outcome.INCONCLUSIVE),  # rounded figures show no scatter
])  # fmt: skip
def test_earlier_runs_in_the_folder_show_how_far_launches_differ(earlier: list[float], factor: float, outcome: Outcome, tmp_path: Path):
    *_, a, b = beside(tmp_path, [*earlier, 1e-6, factor * 1e-6])
    assert only_case(compare(a, b)).outcome is outcome


@pytest.mark.parametrize("other", [{"hosts": ["n2"]}, {"collbench": "0.0"}, {"operation": "broadcast"}, {"slowed": ["by=10%"]}])
def test_runs_of_another_kind_in_the_folder_show_nothing(other: dict[str, Any], tmp_path: Path) -> None:
    beside(tmp_path / "runs", BEFORE, **other)
    a, b = (store(tmp_path / "runs" / name, [make_row(1024, time_s=make_times(p50))], allocation_id=name, hosts=["n1"], collbench="1.0")
            for name, p50 in (("a", 1e-6), ("b", 2e-6)))  # fmt: skip
    case = only_case(compare(a, b))
    assert (case.outcome, case.scatter) == (Outcome.INCONCLUSIVE, 0)


@pytest.mark.parametrize(("low", "high"), [(None, None), (1e-320, 3e-6), (3e-6, 1e-6)])
def test_without_an_interval_that_a_clock_gives_nothing_is_claimed(low: float | None, high: float | None, tmp_path: Path) -> None:
    without = Times(2e-6, low, high, 1e-6, 3e-6, 3e-6, 3e-6)
    case = only_case(compare(store(tmp_path / "a", [make_row(8)]), store(tmp_path / "b", [make_row(8, time_s=without)])))
    assert (case.outcome, case.doubt, case.within) == (Outcome.INCONCLUSIVE, Doubt.ONE_RUN_EACH, None)


@pytest.mark.parametrize(("low", "high", "outcome"), [
    (1.02, 1.04, Outcome.SLOWER), (0.96, 0.98, Outcome.FASTER), (0.96, 1.04, Outcome.NO_CHANGE),
    (0.94, 1.04, Outcome.INCONCLUSIVE), (0.94, 8.8, Outcome.INCONCLUSIVE), (None, None, Outcome.INCONCLUSIVE),
])  # fmt: skip
def test_the_interval_decides_the_outcome(low: float | None, high: float | None, outcome: Outcome) -> None:
    assert outcome_of(low, high, 0.05) is outcome


@pytest.mark.parametrize(("factors", "limit", "outcome"), [
    ([1.2, 1.2], 1.05, Outcome.SLOWER), ([0.8], 1.05, Outcome.FASTER), ([1.03], 1.05, Outcome.NO_CHANGE),
    ([1.03], 1.3, Outcome.INCONCLUSIVE), ([1.2, 1.01], 1.05, Outcome.INCONCLUSIVE), ([1.02, 1.0], 1.01, Outcome.NO_CHANGE),
    ([None], 1.05, Outcome.INCONCLUSIVE), ([1.0], None, Outcome.INCONCLUSIVE),
])  # fmt: skip
def test_a_noise_limit_decides_the_outcome(factors: list[float | None], limit: float | None, outcome: Outcome) -> None:
    assert outcome_by_limit(factors, limit, 0.05) is outcome


def test_single_runs_without_intervals_come_largest_change_first(tmp_path: Path) -> None:
    def of(name: str, *medians_us: float) -> Path:
        times = [Times(p50 * 1e-6, None, None, 1e-6, 3e-6, 3e-6, 3e-6) for p50 in medians_us]
        return store(tmp_path / name, [make_row(8 << place, time_s=each) for place, each in enumerate(times)])

    found = compare(of("a", 2, 2, 2), of("b", 1.9, 4, 1))
    assert found.without_intervals and found.summary.one_run_each == 3
    assert [case.a.size_bytes for case in largest_first(found.cases)] == [16, 32, 8]


def test_cases_of_one_side_and_not_available_ones_are_kept(tmp_path: Path) -> None:
    a = store(tmp_path / "a", [make_row(8), make_row(16), make_row(32, dtype="int8"), not_measured("no memory", size_bytes=64)])
    b = store(tmp_path / "b", [make_row(8), make_row(16, mode="pipelined"), make_row(64)])
    found = compare(a, b)
    assert [(case.a.size_bytes, case.outcome) for case in found.cases] == [(8, Outcome.INCONCLUSIVE), (64, None)]
    assert [row.size_bytes for row in found.only_a] == [16, 32]
    assert [(row.size_bytes, row.mode) for row in found.only_b] == [(16, "pipelined")]


@pytest.mark.parametrize(("of_a", "of_b", "differs"), [(65, 77, False), (65, 79, True), (260, 65, True), (None, 65, False)])
def test_another_state_of_the_machine_is_flagged(of_a: float | None, of_b: float, differs: bool, tmp_path: Path) -> None:
    probes = [{"before": ns and ns * 1e-9, "after": ns and ns * 1e-9} for ns in (of_a, of_b)]
    a, b = (store(tmp_path / name, [make_row(8, canary_s=probe)]) for name, probe in zip("ab", probes, strict=True))
    assert only_case(compare(a, b)).state_differs == differs


@pytest.mark.parametrize(("changes", "expected"), [
    ({"ranks": 8}, "ranks 4 → 8"), ({"buffers": "rotating", "mode": "pipelined"}, "mode isolated → pipelined, buffers fixed → rotating"),
    ({"in_place": True}, "in place no → yes"), ({"size_bytes": 16}, "size bytes 8 → 16"), ({"root": 1}, "root none → 1"),
    ({"algorithm": "tree"}, "algorithm auto → tree"),
    ({"registration": "symmetric", "protocol": "ll"}, "registration none → symmetric, protocol auto → ll"),
])  # fmt: skip
def test_sides_without_a_common_case_report_what_differs(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    a, b = store(tmp_path / "a", [make_row(8)]), store(tmp_path / "b", [make_row(**{"size_bytes": 8, **changes})])
    with pytest.raises(UsageError) as refused:
        compare(a, b)
    assert str(refused.value) == f"{a} and {b} have no case in common: {expected}"


def test_sides_whose_parts_agree_but_never_at_once(tmp_path: Path) -> None:
    a = store(tmp_path / "a", [make_row(8), make_row(16, dtype="int8")])
    b = store(tmp_path / "b", [make_row(16), make_row(8, dtype="int8")])
    with pytest.raises(UsageError, match="operation, backend, type and size"):
        compare(a, b)
    with pytest.raises(UsageError, match="no finished"):
        compare(a, store(tmp_path / "c", []))


def test_a_side_is_one_allocation_under_equal_conditions_and_named_once(tmp_path: Path) -> None:
    a = launches(tmp_path / "a", BEFORE)
    with pytest.raises(UsageError, match="the same folder"):
        compare(a, a / ".." / "a")
    with pytest.raises(UsageError, match="named twice"):
        compare(a, a / "launch-2")
    mixed = launches(tmp_path / "b", BEFORE[:1])
    store(mixed / "launch-2", [make_row(1024)], allocation_id="another")
    with pytest.raises(UsageError, match=r"different allocations.*--allocation"):
        compare(a, mixed)
    store(tmp_path / "c" / "launch-1", [make_row(1024)], allocation_id="c", collbench="1")
    store(tmp_path / "c" / "launch-2", [make_row(1024)], allocation_id="c", collbench="2")
    with pytest.raises(UsageError, match="software collbench: 1 → 2"):
        compare(a, tmp_path / "c")


def test_surely_slower_goes_before_perhaps_much_slower() -> None:
    def case(low: float, value: float, high: float) -> CaseRatio:
        return CaseRatio(make_row(8), make_row(8), Ratio(value, low, high, 3), True, (None, None))

    sure, perhaps, faster, much_faster = case(1.2, 1.3, 1.4), case(1.01, 3, 9), case(0.8, 0.9, 0.95), case(0.1, 0.2, 0.3)
    assert worst_first([much_faster, perhaps, faster, sure]) == [sure, perhaps, faster, much_faster]
