"""The suite of suspects: it is one, and it has their cells and no others."""

from __future__ import annotations

import tomllib

from collbench.analysis.cells import cell_of
from collbench.gate.allocation import COLUMNS
from collbench.gate.confirm import confirm_suite, suspects
from collbench.gate.verdict import Suspicion, Verdict
from collbench.suite.form import check_form
from tests.gate.verdicts import verdict as made_up
from tests.results.rows import make_row

CELLS = [cell_of(make_row(size, backend=backend)) for backend in ("nccl", "mpi") for size in (8, 64 << 20, 128 << 20)]


def verdict(*suspicions: Suspicion) -> Verdict:
    return made_up(result="no verdict", suspicions=suspicions)


def suspect(kind: str, name: str, state: str = "suspected", cell: tuple[object, ...] = ()) -> Suspicion:
    return Suspicion(kind, name, dict(zip(COLUMNS, cell, strict=False)), (1.1,), 1.02, state)


def test_a_cell_a_group_and_the_whole() -> None:
    assert suspects(verdict(suspect("cell", "x", cell=CELLS[1])), CELLS) == [CELLS[1]]
    assert suspects(verdict(suspect("group", "allreduce on mpi, large messages")), CELLS) == CELLS[4:]
    assert suspects(verdict(suspect("whole", "all cells")), CELLS) == CELLS


def test_what_is_cleared_or_confirmed_needs_no_measuring() -> None:
    assert suspects(verdict(suspect("cell", "x", "cleared", CELLS[1]), suspect("whole", "all cells", "confirmed")), CELLS) == []


def test_the_suite_has_a_sweep_for_what_differs_in_size_only() -> None:
    text = confirm_suite([CELLS[1], CELLS[0], CELLS[4]])
    document = tomllib.loads(text)
    check_form(document, "confirm.toml")
    assert [(sweep["operations"], sweep["backends"], sweep["sizes"]) for sweep in document["sweeps"]] == [
        ("allreduce", "nccl", [8, 64 << 20]), ("allreduce", "mpi", [64 << 20]),
    ]  # fmt: skip
    assert document["sweeps"][0]["in_place"] is False


def test_uneven_traffic_is_named_as_left_out() -> None:
    text = confirm_suite([cell_of(make_row(8, operation="alltoallv", traffic="skew 2"))])
    assert "# left out, since a suite cannot name its traffic" in text
    assert "sweeps" not in tomllib.loads(text)
