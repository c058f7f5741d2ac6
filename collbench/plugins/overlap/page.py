"""The section "Overlap": how much of each operation a computation hides, by backend and size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from collbench.analysis.concerns import DOUBTFUL, Concern
from collbench.plugins.overlap.records import overlap_of
from collbench.plugins.overlap.text import overlap_frame, overlap_lines, overlaps_of
from collbench.report.cases import name_of
from collbench.report.frame import printable
from collbench.report.html.chart import Section, Table
from collbench.report.plan import in_print_order

if TYPE_CHECKING:
    from collbench.report.material import Material
    from collbench.results.row import Row


def section(material: Material) -> Section | None:
    """Return the section, or None if no run measured an overlap."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    rows_of_runs = [(run, [row for row, _ in overlaps_of(run.rows)]) for run in material.runs]
    measured = [(run, rows) for run, rows in rows_of_runs if rows]
    for run, rows in measured:
        name = printable(run.path.resolve().name) if len(measured) > 1 else "each case"
        tables.append((name, Table.of(overlap_frame(in_print_order(rows)))))
        texts += overlap_lines(rows)
    return Section("overlap", "Overlap with computation", list(dict.fromkeys(texts)), tables) if tables else None


def concerns(material: Material) -> Iterator[Concern]:
    """Yield why overlaps are inconclusive."""
    for run in material.runs:
        for row in run.rows:
            yield from concerns_of(row)


def concerns_of(row: Row) -> Iterator[Concern]:
    """Yield why the overlap of a row is inconclusive."""
    overlap = overlap_of(row.overlap)
    if overlap and overlap.doubt:
        yield Concern(DOUBTFUL, f"overlap inconclusive: {overlap.doubt.render()}", f"{name_of(row)} on {row.backend}")
