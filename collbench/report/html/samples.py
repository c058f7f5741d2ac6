"""The samples behind the rows, for what shows how they are distributed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.analysis.launches import cell_of, time_of
from collbench.errors import UsageError
from collbench.report.cells import NOTHING, doubtful, name_of, printable, remarks, size_of, two_modes
from collbench.report.html.chart import (
    PAPER,
    Chart,
    Section,
    Spot,
    Table,
    cut,
    fixed_ticks,
    level,
    line,
    panel,
    ratio_axis,
    series_name,
    size_axis,
    spots,
    svg_of,
    telling,
    x_of_size,
)
from collbench.report.html.material import Material
from collbench.report.html.sweep import series_of
from collbench.results.row import Row
from collbench.stats.median import quantile, sound
from collbench.units import format_percent, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from collbench.analysis.launches import Launches
    from collbench.results.reader import Run


@dataclass(frozen=True)
class Sampled:
    """A cell with its samples in seconds, ascending (at least one); of several launches those of all. `time_s` is the row's median."""

    row: Row
    ordered: NDArray[np.float64]
    time_s: float

    def at(self, share: float) -> float:
        """A quantile in seconds; `share` from 0 to 1."""
        return quantile(self.ordered, share)

    def ratio(self, share: float) -> float:
        """A quantile over the row's median."""
        return self.at(share) / self.time_s

    def text(self, share: float) -> str:
        """A quantile in µs, as text."""
        return format_time(self.at(share))

    @property
    def spread(self) -> float:
        """The 99th percentile over the first."""
        return self.at(0.99) / self.at(0.01)


def sampled(material: Material, table: Launches) -> tuple[list[Sampled], list[Row]]:
    """The table's cells in print order, and the rows with a time whose samples are not there (imported, or samples.bin was cut)."""
    there: list[Sampled] = []
    without: list[Row] = []
    stored = _stored(table)
    for row in material.rows(table):
        time_s = time_of(row)
        if time_s is None or row.size_bytes < 0:
            continue
        parts = [part for run, each in stored.get(cell_of(row), ()) if len(part := _samples(run, each))]
        if parts:
            there.append(Sampled(row, np.sort(np.concatenate(parts)), time_s))
        else:
            without.append(row)
    return there, without


def both_modes(row: Row) -> str:
    """The two values that the samples gather around: "2.345 µs (82 %) and 10.70 µs (18 %)"; a dash where there is one."""
    return " and ".join(f"{format_time(time_s)} µs ({format_percent(100 * share)})" for time_s, share in two_modes(row)) or NOTHING


def _stored(table: Launches) -> dict[tuple[object, ...], list[tuple[Run, Row]]]:
    found: dict[tuple[object, ...], list[tuple[Run, Row]]] = {}
    for run, row in _rows(table):
        found.setdefault(cell_of(row), []).append((run, row))
    return found


def _rows(table: Launches) -> Iterator[tuple[Run, Row]]:
    for run in table.runs:
        yield from ((run, row) for row in run.rows)


def _samples(run: Run, row: Row) -> NDArray[np.float64]:
    """The row's samples that a clock can give; none where they were not stored, or are no series of numbers."""
    try:
        stored = run.array(row, "max_s")
    except UsageError:
        return np.empty(0)
    series = sound(stored.astype(np.float64)) if stored.ndim == 1 else np.empty(0)
    return series[(series > 1e-15) & (series < 1e12)]


# The whole distribution of the cells whose times are doubtful, as steps: two values, a tail or a drift each look their own way.

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


# A strip per cell: between which times its samples lie, against their median, over the message size.

_WIDE_FROM = 48  # strips: narrower ones run into one another
_WIDTH, _WIDE, _HEIGHT, _LEGEND_ROW = 460, 940, 270, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 26, 40
_LETTER = 6.0
_FILLED = 0.8  # of the space from one size to the next
_STRIPS_SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
_HEAD = ("series", "size", "samples", "least µs", "1 % µs", "25 % µs", "median µs", "75 % µs", "99 % µs", "most µs", "two values", "flags")
_STRIPS_MADE = (
    "A sample is one iteration's time, the maximum over the ranks; all that were stored are counted, of several launches those of "
    "all. Each is divided by the median that the tables show. The thin strip holds the middle 98 % of a cell's samples, the thick one "
    "the middle half, the mark stands at the median; it is open where a flag says that the time is not what it seems. Where the samples "
    "gather around two values (a valley between them that chance does not make), two diamonds stand at these, and no median. Strips "
    "that reach beyond the axis end at its edge; the table has the times."
)


@dataclass(frozen=True)
class Strips:
    """A series: its name, how it is drawn (`draw.line`), and its cells (at least one), ascending in size."""

    name: str
    number: int
    cells: Sequence[Sampled]


@dataclass(frozen=True)
class _Strip:
    """A cell as drawn: x in units of the size axis."""

    cell: Sampled
    x: float

    def level(self, share: float) -> float:
        """A quantile as it is drawn: log2 of its ratio to the median, within what an axis may show."""
        return level(self.cell.ratio(share))


def strips(key: str, title: str, series: Sequence[Strips]) -> Chart:
    """The chart of some series (at most four, each with at least one cell) of one operation."""
    drawing, points, wide = _drawing_strips(key, title, series)
    return Chart(key, title, _says_strips(series), _STRIPS_MADE, drawing, _table_strips(series), points, wide=wide)


def _drawing_strips(key: str, title: str, series: Sequence[Strips]) -> tuple[str, list[Spot], bool]:
    """(drawing, spots, whether it is wide)."""
    cells = [cell for each in series for cell in each.cells]
    wide = len(cells) >= _WIDE_FROM
    width = _WIDE if wide else _WIDTH
    rows = _legend_rows([each.name for each in series], width)
    figure, axes = panel(width, _HEIGHT + rows * _LEGEND_ROW, (_LEFT, _RIGHT, _TOP + rows * _LEGEND_ROW, _BOTTOM))
    placed = _placed(series)
    _axes_strips(axes, [strip for own in placed for strip in own])
    pixels = (width - _LEFT - _RIGHT) / (axes.get_xlim()[1] - axes.get_xlim()[0])
    thick = min(7.0, max(1.2, 0.55 * pixels * _FILLED * _spacing(cells) / len(series)))
    for each, own in zip(series, placed, strict=True):
        _draw(axes, own, each, thick)
    if rows:
        above = 1 + (_TOP - 4) / axes.bbox.height
        axes.legend(loc="lower left", bbox_to_anchor=(0, above), ncols=ceil(len(series) / rows), borderaxespad=0, handletextpad=0.4)
    marks = [(strip, each.name) for each, own in zip(series, placed, strict=True) for strip in own]
    points = spots(axes, [strip.x for strip, _ in marks], [0.0] * len(marks), [_spot(strip.cell, name) for strip, name in marks])
    return svg_of(figure, key, title), points, wide


def _placed(series: Sequence[Strips]) -> list[list[_Strip]]:
    """Side by side around their size."""
    step = _FILLED * _spacing([cell for each in series for cell in each.cells]) / len(series)
    first = -step * (len(series) - 1) / 2
    return [[_Strip(cell, x_of_size(cell.row.size_bytes) + first + step * turn) for cell in each.cells] for turn, each in enumerate(series)]


def _spacing(cells: Sequence[Sampled]) -> float:
    """From one size to the next, where they are closest; at most 1, a factor of two."""
    there = sorted({x_of_size(cell.row.size_bytes) for cell in cells})
    return min([1.0, *(after - before for before, after in pairwise(there))])


def _axes_strips(axes: Axes, placed: Sequence[_Strip]) -> None:
    sizes = [strip.cell.row.size_bytes for strip in placed]
    if any(sizes):
        size_axis(axes, sizes)
    else:
        fixed_ticks(axes.xaxis, [], [])
        axes.set_xlim(-1, 1)
    between = [strip.level(share) for strip in placed for share in (0.01, 0.99)]
    ratio_axis(axes, [*between, *_modes_of(placed)], upright=True)


def _draw(axes: Axes, own: Sequence[_Strip], series: Strips, thick: float) -> None:
    style = line(series.number)
    color = style["color"]
    single = [strip for strip in own if not two_modes(strip.cell.row)]
    _lines(axes, own, (0.01, 0.99), color=color, linewidth=max(0.8, thick / 4))
    _lines(axes, single, (0.25, 0.75), color=color, linewidth=thick, solid_capstyle="butt", alpha=0.55)
    sure = [strip for strip in single if not doubtful(strip.cell.row)]
    unsure = [strip for strip in single if doubtful(strip.cell.row)]
    mark = {**style, "linestyle": "none"}
    axes.plot([strip.x for strip in sure], [0.0] * len(sure), label=series.name, **mark)  # also without a point: the legend names it
    if unsure:
        axes.plot([strip.x for strip in unsure], [0.0] * len(unsure), **{**mark, **_open(color)})
    modes = [(strip.x, level(time_s / strip.cell.time_s)) for strip in own for time_s, _ in two_modes(strip.cell.row)]
    if modes:
        axes.plot(*zip(*modes, strict=True), **{**mark, **_open(color), "marker": "d", "markersize": 6.0})


def _open(color: str) -> dict[str, Any]:
    return {"markerfacecolor": PAPER, "markeredgecolor": color, "markeredgewidth": 1.2}


def _lines(axes: Axes, own: Sequence[_Strip], between: tuple[float, float], **style: Any) -> None:
    """All strips of a series as one line with gaps: a path of its own for each would take ten times the room."""
    xs = [x for strip in own for x in (strip.x, strip.x, nan)]
    ys = [y for strip in own for y in (strip.level(between[0]), strip.level(between[1]), nan)]
    if xs:
        axes.plot(xs, ys, **style)


def _modes_of(placed: Sequence[_Strip]) -> Iterator[float]:
    return (level(time_s / strip.cell.time_s) for strip in placed for time_s, _ in two_modes(strip.cell.row))


def _legend_rows(names: Sequence[str], width: int) -> int:
    """How many rows the names need; none for a single one, which the title has."""
    if len(names) == 1:
        return 0
    columns = max(1, int((width - _LEFT) / (_LETTER * max(map(len, names)) + 30)))
    return ceil(len(names) / columns)


def _spot(cell: Sampled, name: str) -> str:
    size = f"{size_of(cell.row)} " if cell.row.size_bytes else ""
    middle = both_modes(cell.row) if two_modes(cell.row) else f"{cell.text(0.5)} µs"
    flags = "".join(f", {flag}" for flag in doubtful(cell.row))
    return f"{size}{name}: {middle}, half {cell.text(0.25)}–{cell.text(0.75)}, 98 % {cell.text(0.01)}–{cell.text(0.99)}{flags}"


def _says_strips(series: Sequence[Strips]) -> str:
    """Which cell scatters most, and how many have two values."""
    cells = [(each.name, cell) for each in series for cell in each.cells]
    name, widest = max(cells, key=lambda each: each[1].spread)
    where = f"{size_of(widest.row)} {name}" if widest.row.size_bytes else name
    two = sum(bool(two_modes(cell.row)) for _, cell in cells)
    both = f" In {two} of {len(cells)} cells they gather around two values." if two else ""
    return f"The samples scatter most at {where}: 98 % lie between {widest.text(0.01)} and {widest.text(0.99)} µs.{both}"


def _table_strips(series: Sequence[Strips]) -> Table:
    rows = [(each.name, cell) for each in series for cell in each.cells]
    marks = {number: "doubtful" for number, (_, cell) in enumerate(rows) if doubtful(cell.row)}
    return Table(_HEAD, [_texts(name, cell) for name, cell in rows], frozenset(range(1, 10)), marks)


def _texts(name: str, cell: Sampled) -> list[str]:
    quantiles = [format_time(cell.at(share)) for share in _STRIPS_SHARES]
    return [name, size_of(cell.row), str(len(cell.ordered)), *quantiles, both_modes(cell.row), remarks(cell.row)]


# How the samples of each cell are distributed: a strip per cell, and the whole distribution of those that are doubtful.

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
