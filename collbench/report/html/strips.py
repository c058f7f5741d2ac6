"""A strip per cell: between which times its samples lie, against their median, over the message size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, nan
from typing import TYPE_CHECKING, Any

from collbench.report.columns import doubtful, remarks, size_of, two_modes
from collbench.report.html.chart import Chart, Spot, Table
from collbench.report.html.draw import PAPER, fixed_ticks, line, panel, place, size_axis, spots, svg_of
from collbench.report.html.ratio_axis import level, ratio_axis
from collbench.report.html.samples import Sampled, both_modes
from collbench.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE_FROM = 48  # strips: narrower ones run into one another
_WIDTH, _WIDE, _HEIGHT, _LEGEND_ROW = 460, 940, 270, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 26, 40
_LETTER = 6.0
_FILLED = 0.8  # of the space from one size to the next
_SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
_HEAD = ("series", "size", "samples", "least µs", "1 % µs", "25 % µs", "median µs", "75 % µs", "99 % µs", "most µs", "two values", "flags")
_MADE = (
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
    drawing, points, wide = _drawing(key, title, series)
    return Chart(key, title, _says(series), _MADE, drawing, _table(series), points, wide=wide)


def _drawing(key: str, title: str, series: Sequence[Strips]) -> tuple[str, list[Spot], bool]:
    """(drawing, spots, whether it is wide)."""
    cells = [cell for each in series for cell in each.cells]
    wide = len(cells) >= _WIDE_FROM
    width = _WIDE if wide else _WIDTH
    rows = _legend_rows([each.name for each in series], width)
    figure, axes = panel(width, _HEIGHT + rows * _LEGEND_ROW, (_LEFT, _RIGHT, _TOP + rows * _LEGEND_ROW, _BOTTOM))
    placed = _placed(series)
    _axes(axes, [strip for own in placed for strip in own])
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
    return [[_Strip(cell, place(cell.row.size_bytes) + first + step * turn) for cell in each.cells] for turn, each in enumerate(series)]


def _spacing(cells: Sequence[Sampled]) -> float:
    """From one size to the next, where they are closest; at most 1, a factor of two."""
    there = sorted({place(cell.row.size_bytes) for cell in cells})
    return min([1.0, *(after - before for before, after in pairwise(there))])


def _axes(axes: Axes, placed: Sequence[_Strip]) -> None:
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


def _says(series: Sequence[Strips]) -> str:
    """Which cell scatters most, and how many have two values."""
    cells = [(each.name, cell) for each in series for cell in each.cells]
    name, widest = max(cells, key=lambda each: each[1].spread)
    where = f"{size_of(widest.row)} {name}" if widest.row.size_bytes else name
    two = sum(bool(two_modes(cell.row)) for _, cell in cells)
    both = f" In {two} of {len(cells)} cells they gather around two values." if two else ""
    return f"The samples scatter most at {where}: 98 % lie between {widest.text(0.01)} and {widest.text(0.99)} µs.{both}"


def _table(series: Sequence[Strips]) -> Table:
    rows = [(each.name, cell) for each in series for cell in each.cells]
    marks = {number: "doubtful" for number, (_, cell) in enumerate(rows) if doubtful(cell.row)}
    return Table(_HEAD, [_texts(name, cell) for name, cell in rows], frozenset(range(1, 10)), marks)


def _texts(name: str, cell: Sampled) -> list[str]:
    quantiles = [format_time(cell.at(share)) for share in _SHARES]
    return [name, size_of(cell.row), str(len(cell.ordered)), *quantiles, both_modes(cell.row), remarks(cell.row)]
