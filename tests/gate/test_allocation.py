"""What the gate takes of an allocation's runs."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, allocations_in
from tests.gate.allocations import launch, launches
from tests.results.rows import make_row, make_times, not_measured, store


def test_launches_of_an_allocation_are_put_together_cell_by_cell(tmp_path: Path) -> None:
    (found,) = allocations_in([launches(tmp_path / "night", "night-1", {8: 1e-6, 1024: 4e-6}, {8: 3e-6}, {8: 2e-6, 1024: 5e-6})])
    assert (found.name, found.launches, found.unfinished) == ("night-1", 3, 0)
    by_size = {cell[COLUMNS.index("size_bytes")]: measured for cell, measured in found.cells.items()}
    assert by_size[8].medians_s == (1e-6, 3e-6, 2e-6)
    assert by_size[1024].medians_s == (4e-6, None, 5e-6)
    assert exp(by_size[8].time or 0) == pytest.approx(2e-6)
    assert exp(by_size[1024].time or 0) == pytest.approx(4.5e-6)
    assert found.canary_s == pytest.approx((6.5e-8,) * 3)
    assert found.facts["hosts"]["names"] == "node1, node2"


def test_a_run_without_an_allocation_is_one_of_its_own(tmp_path: Path) -> None:
    found = allocations_in([launch(tmp_path / "a", {8: 1e-6}), launch(tmp_path / "b", {8: 1e-6})])
    assert [each.name for each in found] == ["a", "b"]


def test_a_cell_that_no_launch_could_measure_says_why(tmp_path: Path) -> None:
    store(tmp_path / "a", [not_measured("no GPU"), make_row(8, time_s=make_times(1e-6))])
    (found,) = allocations_in([tmp_path / "a"])
    assert [(measured.na, measured.time is None) for measured in found.cells.values()] == [("no GPU", True), (None, False)]


def test_wrong_elements_are_summed(tmp_path: Path) -> None:
    for number, wrong in ((1, 0), (2, 5)):
        launch(tmp_path / f"launch-{number}", {8: 1e-6}, "night", wrong=wrong)
    (found,) = allocations_in([tmp_path])
    assert [measured.wrong for measured in found.cells.values()] == [5]


def test_launches_that_are_no_repetitions_are_refused(tmp_path: Path) -> None:
    launch(tmp_path / "launch-1", {8: 1e-6}, "night")
    store(tmp_path / "launch-2", [make_row(8)], allocation_id="night", collbench="0.2.0", hosts=["node1", "node2"])
    with pytest.raises(UsageError, match=r"software collbench: 0\.1\.0 → 0\.2\.0: launches of one allocation have to be alike"):
        allocations_in([tmp_path])


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"its allocation's name '\.\./x' cannot be that of a file"):
        allocations_in([launch(tmp_path / "a", {8: 1e-6}, "../x")])


def test_a_run_without_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no finished cell"):
        allocations_in([store(tmp_path / "a", [])])
