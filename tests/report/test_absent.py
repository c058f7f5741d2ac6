"""A backend that measures nothing is one line in what people read, and a record for each case in what programs read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from collbench.report.plan import PlanSummary
from collbench.report.writers import OneLinePerAbsentBackend, TableWriter
from collbench.results.row import Row
from tests.report.test_table import printed
from tests.results.rows import make_row, not_measured

WHY = "srun --mpi=pmix serves Open MPI, but mpi4py uses MPICH 5.0.2"
SIZES = (8, 1024, 1 << 20)
ONE = f"mpi, 3 cases: n/a ({WHY})"


def absent(backend: str = "mpi", why: str = WHY) -> list[Row]:
    return [replace(not_measured(why, backend=backend, device="cpu"), size_bytes=size) for size in SIZES]


def measured(backend: str = "gloo") -> list[Row]:
    return [make_row(size, backend=backend, device="cpu") for size in SIZES]


def lines(rows: list[Row], format: str = "table") -> list[str]:
    return printed(rows, format)[0].splitlines()


@pytest.mark.parametrize("rows", [[*absent(), *measured()], [*measured(), *absent()]], ids=["first", "last"])
def test_it_is_one_line(rows: list[Row]) -> None:
    found = lines(rows)
    assert [line for line in found if "n/a" in line] == [ONE] and sum(line.endswith(" ok") for line in found) == 3


def test_two_such_backends_are_two_lines() -> None:
    found = lines([*absent(), *absent("nccl", "no GPU here"), *measured()])
    assert [line for line in found if "n/a" in line] == [ONE, "nccl, 3 cases: n/a (no GPU here)"]


def test_a_backend_that_measures_something_keeps_its_rows_in_their_order() -> None:
    mixed = [absent("gloo")[0], measured()[1], absent("gloo")[2]]
    assert [("n/a" in line) for line in lines(mixed) if "n/a" in line or line.endswith(" ok")] == [True, False, True]


def test_different_reasons_keep_their_rows() -> None:
    rows = [*absent()[:2], *absent(why="another")[2:], *measured()]
    assert sum("n/a" in line for line in lines(rows)) == 3


def test_a_single_row_stays_a_row() -> None:
    assert [line.split()[:3] for line in lines([*absent()[:1], *measured()]) if "n/a" in line] == [["8", "B", "n/a"]]


def test_a_run_that_ends_early_counts_what_came() -> None:
    plan = PlanSummary.of([*absent(), *measured()])
    writer = OneLinePerAbsentBackend(TableWriter())
    writer.start(plan)
    assert [line for row in absent()[:2] for line in writer.row(row)] == []
    assert writer.end()[0].text == f"mpi, 2 cases: n/a ({WHY})"


def test_of_stored_rows_it_is_known_though_operations_come_first() -> None:
    rows = [replace(row, operation=operation) for operation in ("allgather", "allreduce") for row in [*absent(), *measured()]]
    writer = OneLinePerAbsentBackend(TableWriter(rows=rows), rows=rows)
    writer.start(PlanSummary.of(rows))
    found = [line.text for row in rows for line in writer.row(row)]
    assert found[0] == f"mpi, 6 cases: n/a ({WHY})" and sum(line.endswith(" ok") for line in found) == 6


def test_nccl_tests_text_has_one_comment() -> None:
    assert [line for line in lines([*absent(), *measured()], "nccl-tests") if "n/a" in line] == [f"# {ONE}"]


def test_programs_get_a_record_for_each_case() -> None:
    assert sum(json.loads(line)["na"] == WHY for line in lines([*absent(), *measured()], "json")) == 3
    assert sum(WHY in line for line in lines([*absent(), *measured()], "csv")) == 3
