"""Guidelines of self-consistent performance: which operations take longer than what can replace them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.guidelines import ALTERNATIVES, GuidelineCheck, guideline_checks
from collbench.operations.registry import operations
from collbench.report.guidelines import compared_consistency, consistency_frame
from collbench.report.material import Material
from collbench.report.runs import markdown_text
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.results.rows import make_row, make_times, store

KIB = 1 << 10


def row(operation: str, p50: float, size: int = 64 * KIB, **changes: Any) -> Row:
    """A row with an interval of ±1 % of its median."""
    values = {"ranks": 4, "flags": (), "time_s": make_times(p50), **changes}
    return make_row(size, operation=operation, **values)


def violated(rows: list[Row]) -> list[GuidelineCheck]:
    return [check for check in guideline_checks(rows) if check.is_violated]


BAD_ALLREDUCE = [row("allreduce", 80e-6), row("reduce", 20e-6), row("broadcast", 20e-6)]


def test_an_operation_that_takes_longer_than_what_replaces_it_is_a_violation() -> None:
    (violation,) = violated(BAD_ALLREDUCE)
    assert violation.row.operation == "allreduce"
    assert [part.operation for part in violation.instead] == ["reduce", "broadcast"]
    assert violation.instead_s == pytest.approx(40e-6)
    assert violation.ratio == pytest.approx(2.0)
    assert violation.low == pytest.approx(2 * 0.99 / 1.01, rel=1e-3) and violation.high == pytest.approx(2 * 1.01 / 0.99, rel=1e-3)


def test_a_smaller_size_that_takes_longer_than_a_larger_one_is_a_violation() -> None:
    (violation,) = violated([row("allgather", 50e-6, 4 * KIB), row("allgather", 30e-6, 16 * KIB)])
    assert violation.larger
    assert (violation.row.size_bytes, violation.instead[0].size_bytes) == (4 * KIB, 16 * KIB)


@pytest.mark.parametrize("changes", [
    pytest.param({"backend": "gloo"}, id="another backend"), pytest.param({"ranks": 8}, id="other ranks"),
    pytest.param({"mode": "batched"}, id="another mode"), pytest.param({"flags": ("drift",)}, id="doubtful"),
    pytest.param({"wrong": 3}, id="wrong data"), pytest.param({"algorithm": "tree"}, id="a forced algorithm"),
    pytest.param({"time_s": replace(make_times(20e-6), ci_low=None, ci_high=None)}, id="no interval"),
    pytest.param({"time_s": make_times(59e-6)}, id="within what launches differ by"),
])  # fmt: skip
def test_what_proves_no_violation(changes: dict[str, Any]) -> None:
    rows = [row("allreduce", 80e-6), row("reduce", 20e-6), replace(row("broadcast", 20e-6), **changes)]
    assert violated(rows) == []


def test_every_guideline_names_operations_of_collbench() -> None:
    names = {operation for operation, _ in ALTERNATIVES} | {part for _, parts in ALTERNATIVES for part in parts}
    assert names <= operations().keys()


def test_the_table_and_the_comparison_show_it(tmp_path: Path) -> None:
    healthy = [replace(BAD_ALLREDUCE[0], time_s=make_times(35e-6)), *BAD_ALLREDUCE[1:]]
    frame = consistency_frame(BAD_ALLREDUCE)
    assert len(frame.records) == 1
    assert consistency_frame(healthy) is None
    assert consistency_frame([row("allreduce", 80e-6)]) is None, "one operation of one size has nothing to compare"
    assert len(compared_consistency(healthy, BAD_ALLREDUCE)) == 1
    assert compared_consistency(BAD_ALLREDUCE, BAD_ALLREDUCE) == []
    nearly = [replace(BAD_ALLREDUCE[0], time_s=replace(make_times(41e-6), ci_high=82e-6)), *BAD_ALLREDUCE[1:]]
    assert compared_consistency(nearly, BAD_ALLREDUCE) == [], "the intervals of both ratios overlap"
    run = read_run(store(tmp_path / "run", BAD_ALLREDUCE))
    assert "reduce + broadcast" in markdown_text(Material([run], Path()))
