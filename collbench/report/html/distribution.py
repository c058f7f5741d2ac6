"""The whole distribution of the cells whose times are doubtful, as steps: two values, a tail or a drift each look their own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from collbench.report.columns import doubtful, name_of, remarks, two_modes
from collbench.report.html.chart import Chart, Spot, Table
from collbench.report.html.draw import fixed_ticks, line, panel, spots, svg_of
from collbench.report.html.names import cut, series_name, telling
from collbench.report.html.ratio_axis import level, ratio_axis
from collbench.report.html.samples import Sampled, both_modes
from collbench.units import format_percent, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 6
_STEPS = 60  # of a curve
_SIZE, _MARGINS = (940, 290), (54, 380, 26, 40)
_MARKED = (0.05, 0.25, 0.5, 0.75, 0.95)
_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_MADE = (
    "For each time the share of a cell's samples that took no longer; times are divided by the cell's median. A steep rise is a value "
    "around which the samples gather, a level stretch between two rises lies between two values, a long slope at the top is a tail. "
    "Shown are the cells whose flags make their time doubtful: first those with two values, then those that scatter most. The strips "
    "show all cells."
)


def distribution(key: str, title: str, cells: Sequence[Sampled]) -> Chart | None:
    """The chart of the most doubtful cells of a table; None where none is, or all their samples are equal."""
    doubted = [cell for cell in cells if doubtful(cell.row) and cell.spread > 1]
    if not doubted:
        return None
    shown = sorted(doubted, key=lambda cell: (not two_modes(cell.row), -cell.spread))[:_MOST]
    words = telling([cell.row for cell in cells])
    named = [(cut(f"{name_of(cell.row)} {series_name(cell.row, words)}"), cell) for cell in shown]
    drawing, points = _drawing(key, title, named)
    return Chart(key, title, _says(named, len(doubted)), _MADE, drawing, _table(named), points, wide=True)


def _drawing(key: str, title: str, named: Sequence[tuple[str, Sampled]]) -> tuple[str, list[Spot]]:
    figure, axes = panel(*_SIZE, margins=_MARGINS)
    _axes(axes, [cell for _, cell in named])
    for number, (name, cell) in enumerate(named):
        shares = np.linspace(0, 1, min(_STEPS, len(cell.ordered)) + 1)
        levels = [level(cell.ratio(float(share))) for share in shares]
        axes.plot(levels, shares, label=name, markevery=max(1, len(shares) // 6), **line(number))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    marked = [(name, cell, share) for name, cell in named for share in _MARKED]
    texts = [f"{name}: {format_percent(100 * share)} took at most {cell.text(share)} µs" for name, cell, share in marked]
    points = spots(axes, [level(cell.ratio(share)) for _, cell, share in marked], [share for *_, share in marked], texts)
    return svg_of(figure, key, title), points


def _axes(axes: Axes, cells: Sequence[Sampled]) -> None:
    ratio_axis(axes, [level(cell.ratio(share)) for cell in cells for share in (0.005, 0.995)], upright=False)
    fixed_ticks(axes.yaxis, [0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylim(0, 1)
    axes.set_ylabel("samples up to here")


def _says(named: Sequence[tuple[str, Sampled]], doubted: int) -> str:
    """How many there are, and the worst of them."""
    name, worst = named[0]
    more = f"; shown are {len(named)} of them" if doubted > len(named) else ""
    what = (
        f"gathers around {both_modes(worst.row)}" if two_modes(worst.row) else f"scatters from {worst.text(0.01)} to {worst.text(0.99)} µs"
    )
    cells = "1 cell is" if doubted == 1 else f"{doubted} cells are"
    return f"{cells} doubtful{more}. {name} {what}."


def _table(named: Sequence[tuple[str, Sampled]]) -> Table:
    head = ("cell", "samples", *(f"{format_percent(100 * share)} up to µs" for share in _SHARES), "two values", "flags")
    rows = [
        [name, str(len(cell.ordered)), *(format_time(cell.at(share)) for share in _SHARES), both_modes(cell.row), remarks(cell.row)]
        for name, cell in named
    ]
    return Table(head, rows, frozenset(range(1, 9)), dict.fromkeys(range(len(rows)), "doubtful"))
