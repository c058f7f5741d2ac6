"""How the samples of each cell are distributed: a strip per cell, and the whole distribution of those that are doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from collbench.report.columns import name_of
from collbench.report.flags import printable
from collbench.report.html.chart import Chart, Section
from collbench.report.html.distribution import distribution
from collbench.report.html.material import Material
from collbench.report.html.names import cut
from collbench.report.html.samples import Sampled, sampled
from collbench.report.html.series import series_of
from collbench.report.html.strips import Strips, strips
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.analysis.launches import Launches

_PER_CHART, _MOST_SERIES = 4, 48  # so many colours there are; and of an operation as many as its other charts show
_NAMED = 3


def section(material: Material) -> Section | None:
    """The section, or None where no run has samples or should have them: most imported rows have none, which another section says."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, table in enumerate(material.drawn):
        cells, without = sampled(material, table)
        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        charts += _charts(f"spread-{number}", where, cells)
        lost = [row for row in without if "imported" not in row.flags]
        texts += [_without(table, lost)] if lost else []
    return Section("spread", "How the samples are spread", texts, (), charts) if charts or texts else None


def _charts(key: str, where: str, cells: Sequence[Sampled]) -> Iterator[Chart]:
    """Of each operation the strips of all its cells, a few series to a chart; then the doubtful cells of all operations."""
    backends = sorted({cell.row.backend for cell in cells})
    for number, operation in enumerate(dict.fromkeys(cell.row.operation for cell in cells)):
        series = _series([cell for cell in cells if cell.row.operation == operation], backends)
        for first in range(0, min(len(series), _MOST_SERIES), _PER_CHART):
            shown = series[first : first + _PER_CHART]
            name = f"{cut(operation)} {shown[0].name}" if len(shown) == 1 else cut(operation)
            yield strips(f"{key}-{number}-{first}", f"{name}: spread of the samples{where}", shown)
    doubtful = distribution(f"{key}-doubtful", f"doubtful cells: distribution of the samples{where}", cells)
    if doubtful:
        yield doubtful


def _series(cells: Sequence[Sampled], backends: Sequence[str]) -> list[Strips]:
    """An operation's cells as the series that the other charts have."""
    by_row = {id(cell.row): cell for cell in cells}
    series = series_of([cell.row for cell in cells], backends)
    return [Strips(each.label, each.number, [by_row[id(row)] for row in each.rows]) for each in series]


def _without(table: Launches, rows: Sequence[Row]) -> str:
    """Which cells are missing here, and why."""
    first = ", ".join(f"{name_of(row)} {row.backend}" for row in rows[:_NAMED])
    cells = "1 cell has a time but no samples" if len(rows) == 1 else f"{len(rows)} cells have a time but no samples"
    more = ", …" if len(rows) > _NAMED else ""
    return printable(f"{table.name}: {cells} (samples.bin is not whole) and so no strip: {first}{more}.")
