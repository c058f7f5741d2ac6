"""The runs of an allocation, as the gate reads them."""

import re
from math import exp
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gating.allocation import allocation_from, allocations_in
from collbench.results.reader import read_run
from tests.gate.allocations import edit_info, launch, launches
from tests.results.rows import COPY, make_row, make_times, not_measured, store


def test_launches_of_an_allocation_are_combined_case_by_case(tmp_path: Path) -> None:
    (found,) = allocations_in([launches(tmp_path / "night", "night-1", {8: 1e-6, 1024: 4e-6}, {8: 3e-6}, {8: 2e-6, 1024: 5e-6})])
    assert (found.name, found.launches, found.unfinished) == ("night-1", 3, 0)
    by_size = {case.size_bytes: measured for case, measured in found.cases.items()}
    assert (by_size[8].medians_s, by_size[1024].medians_s) == ((1e-6, 3e-6, 2e-6), (4e-6, None, 5e-6))
    assert exp(by_size[8].log_time or 0) == pytest.approx(2e-6)
    assert exp(by_size[1024].log_time or 0) == pytest.approx(4.5e-6)
    assert (found.canary_s, found.facts["hosts"]["names"]) == (pytest.approx((6.5e-8,) * 3), "node1, node2")


def test_runs_of_their_own_cases_without_a_time_and_wrong_elements(tmp_path: Path) -> None:
    found = allocations_in([launch(tmp_path / "a", {8: 1e-6}), launch(tmp_path / "b", {8: 1e-6})])
    assert [each.name for each in found] == ["a", "b"]
    store(tmp_path / "second" / "a", [not_measured("no GPU"), make_row(8, time_s=make_times(1e-6))])
    (found,) = allocations_in([tmp_path / "second" / "a"])
    assert [(measured.na, measured.log_time is None) for measured in found.cases.values()] == [("no GPU", True), (None, False)]
    for number, wrong in ((1, 0), (2, 5)):
        launch(tmp_path / "third" / "night" / f"launch-{number}", {8: 1e-6}, "night", wrong=wrong)
    for path in (tmp_path / "third" / "night", store(tmp_path / "third" / "a", [make_row(8, wrong=5), make_row(8)])):
        (found,) = allocations_in([path])
        assert [measured.wrong for measured in found.cases.values()] == [5]


def test_launches_of_different_software_and_a_run_without_rows_are_rejected(tmp_path: Path) -> None:
    launch(tmp_path / "launch-1", {8: 1e-6}, "night")
    store(tmp_path / "launch-2", [make_row(8)], allocation_id="night", collbench="0.2.0", hosts=["node1", "node2"])
    with pytest.raises(UsageError, match=r"0\.1\.0 → 0\.2\.0"):
        allocations_in([tmp_path])
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "a"))):
        allocations_in([store(tmp_path / "a", [])])


def test_missing_and_unreadable_launches_are_rejected_unless_the_others_are_given(tmp_path: Path) -> None:
    night = launches(tmp_path / "night", "night-1", {8: 1e-6}, {8: 1e-6})
    (night / "launch-3").mkdir()
    with pytest.raises(UsageError, match="launch-3 "):
        allocations_in([night])
    assert allocations_in([night / "launch-1", night / "launch-2"])[0].launches == 2
    (night / "launch-3").rmdir()
    edit_info(night / "launch-1", launches=3)
    with pytest.raises(UsageError, match="night holds 2 of 3 "):
        allocations_in([night])


def test_allocations_are_ordered_by_their_start_in_any_time_zone_if_it_is_valid(tmp_path: Path) -> None:
    for name, began in (("a", "2026-11-20T10:00:00+02:00"), ("b", "2026-11-20T07:00:00Z"), ("c", "2026-11-20T09:00:00")):
        edit_info(launch(tmp_path / name, {8: 1e-6}), started_utc=began)
    named = [tmp_path / name for name in "cab"]
    assert [each.name for each in allocations_in(named)] == ["b", "a", "c"]
    edit_info(tmp_path / "b", started_utc=None)
    assert [each.name for each in allocations_in(named)] == ["c", "a", "b"]
    for invalid in ("yesterday", 7, None):
        edit_info(tmp_path / "b", started_utc=invalid)
        assert allocations_in([tmp_path / "b"])[0].began_utc == "", invalid


def test_slowed_and_imported_allocations_are_marked(tmp_path: Path) -> None:
    store(tmp_path / "a", [make_row(8, flags=("slowed",)), make_row(1024)], slowed=["by=10%", 7, "by=2% sizes=8"])
    store(tmp_path / "b", [make_row(8, flags=("slowed",))], slowed="by=10%")
    store(tmp_path / "c", [make_row(8)], slowed=["by=10%"])
    assert [each.slowed for each in allocations_in([tmp_path / name for name in "abc"])] == ["by=10%; by=2% sizes=8", "unknown", ""]
    store(tmp_path / "second" / "a", [make_row(8, flags=("imported",))])
    assert allocations_in([tmp_path / "second" / "a"])[0].imported


def test_percentages_of_the_ceiling_are_kept_by_launch_if_all_have_one_model(tmp_path: Path) -> None:
    for number, share in enumerate((80.0, 84.0, 82.0), 1):
        launch(tmp_path / f"launch-{number}", {8: 1e-6}, "night", percent_of_ceiling=share)
    (shown,) = allocations_in([tmp_path])[0].shown.values()
    assert (shown.percent, shown.percents) == (82.0, (80.0, 84.0, 82.0))
    launch(tmp_path / "launch-4", {8: 1e-6}, "night", ceiling=COPY)
    (shown,) = allocations_in([tmp_path])[0].shown.values()
    assert (shown.percent, shown.percents) == (None, (None,) * 4)


@pytest.mark.parametrize(("code", "wrong", "finished", "unfinished"), [
    (0, 0, True, 0), (None, 0, True, 0), (130, 0, True, 1), (4, 0, True, 1), (4, 3, True, 0), (0, 0, False, 1), (4, 3, False, 1),
])  # fmt: skip
def test_a_launch_without_a_regular_end_is_unfinished(tmp_path, code, wrong, finished, unfinished):
    launch(tmp_path / "launch-1", {8: 1e-6}, "night")
    second = launch(tmp_path / "launch-2", {8: 1e-6}, "night", wrong=wrong)
    edit_info(second, exit_code=code)
    if not finished:
        (second / "run.json").write_text((second / "run.json").read_text().replace('"finished_utc"', '"ignored"'))
    (found,) = allocations_in([tmp_path])
    assert (found.unfinished, found.stopped) == (unfinished, (str(second),) * unfinished)


def test_facts_starts_and_percentages_are_those_of_all_launches(tmp_path: Path) -> None:
    launch(tmp_path / "launch-1", {8: 1e-6}, "night")
    assert [each.checked for each in allocations_in([tmp_path])[0].shown.values()] == [True]
    for number, (checked, wrong) in enumerate(((0, None), (1, None)), 2):
        other = launch(tmp_path / f"launch-{number}", {8: 1e-6}, "night", checked=checked, wrong=wrong)
        assert [each.checked for each in allocations_in([tmp_path / "launch-1", other])[0].shown.values()] == [False]
    launch(tmp_path / "night" / "launch-1", {8: 1e-6}, "night")
    edit_info(launch(tmp_path / "night" / "launch-2", {8: 1e-6}, "night"), backends={"nccl": {"version": "2.30"}})
    assert allocations_in([tmp_path / "night"])[0].facts["software"]["nccl version"] == "2.30"


def test_later_launches_add_facts_and_the_first_one_the_start(tmp_path: Path) -> None:
    times = ("2026-11-20T10:00:00Z", "2026-11-20T09:00:00Z", "2026-11-20T11:00:00Z")
    runs = [
        store(tmp_path / f"launch-{number}", [make_row(8)], allocation_id="night", started_utc=when) for number, when in enumerate(times)
    ]
    assert allocation_from([read_run(run) for run in runs]).began_utc == times[1]
