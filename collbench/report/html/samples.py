"""The section "Spread of the samples": a box strip per case, and the distribution of doubtful cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.analysis.launches import case_of, time_of
from collbench.errors import UsageError
from collbench.report.cases import NOTHING, doubtful, name_of, remarks, size_of, two_modes
from collbench.report.frame import printable
from collbench.report.html.chart import (
    PAPER,
    Chart,
    Section,
    Table,
    Tooltip,
    cut,
    distinguishing,
    fixed_ticks,
    level,
    line,
    panel,
    ratio_axis,
    series_name,
    size_axis,
    spots,
    svg_of,
    x_of_size,
)
from collbench.report.html.material import Material
from collbench.report.html.sweep import series_of
from collbench.results.flags import flag_names
from collbench.results.row import Row
from collbench.stats.median import quantile, sound
from collbench.units import format_percent, format_time, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from collbench.analysis.launches import Launches
    from collbench.results.reader import Run


@dataclass(frozen=True)
class Sampled:
    """A case with its samples in seconds, ascending (at least one), of all its launches. `time_s` is the median of the row."""

    row: Row
    ordered: NDArray[np.float64]
    time_s: float

    def at(self, share: float) -> float:
        """Return a quantile in seconds; `share` from 0 to 1."""
        return quantile(self.ordered, share)

    def ratio(self, share: float) -> float:
        """Return a quantile / the median of the row."""
        return self.at(share) / self.time_s

    def text(self, share: float) -> str:
        """Return a quantile in µs, as text."""
        return format_time(self.at(share))

    @property
    def spread(self) -> float:
        """Return the 99th percentile / the first."""
        return self.at(0.99) / self.at(0.01)


def sampled(material: Material, table: Launches) -> tuple[list[Sampled], list[Row]]:
    """Return the cases of a table with samples, and the rows with a time but without samples (imported, or samples.bin was cut)."""
    there: list[Sampled] = []
    without: list[Row] = []
    stored = _stored(table)
    for row in material.rows(table):
        time_s = time_of(row)
        if time_s is None or row.size_bytes < 0:
            continue
        parts = [part for run, each in stored.get(case_of(row), ()) if len(part := _samples(run, each))]
        if parts:
            there.append(Sampled(row, np.sort(np.concatenate(parts)), time_s))
        else:
            without.append(row)
    return there, without


def both_modes(row: Row) -> str:
    """Return both values of bimodal samples: "2.345 µs (82 %) and 10.70 µs (18 %)"; a dash for one mode."""
    return " and ".join(f"{format_time(time_s)} µs ({format_percent(100 * share)})" for time_s, share in two_modes(row)) or NOTHING


def _stored(table: Launches) -> dict[tuple[object, ...], list[tuple[Run, Row]]]:
    found: dict[tuple[object, ...], list[tuple[Run, Row]]] = {}
    for run, row in _rows(table):
        found.setdefault(case_of(row), []).append((run, row))
    return found


def _rows(table: Launches) -> Iterator[tuple[Run, Row]]:
    for run in table.runs:
        yield from ((run, row) for row in run.rows)


def _samples(run: Run, row: Row) -> NDArray[np.float64]:
    """Return the valid samples of a row; none if they were not stored, or are not a series of numbers."""
    try:
        stored = run.array(row, "max_s")
    except UsageError:
        return np.empty(0)
    series = sound(stored.astype(np.float64)) if stored.ndim == 1 else np.empty(0)
    return series[(series > 1e-15) & (series < 1e12)]


# The cumulative distribution of cases with doubtful times: bimodal samples, tails and drifts have different shapes.

_MOST = 6
_STEPS = 60  # of a curve
_SIZE, _MARGINS = (940, 290), (54, 380, 26, 40)
_MARKED = (0.05, 0.25, 0.5, 0.75, 0.95)
_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_METHOD = (
    "For each time, the share of samples that took no longer; times are divided by the median of the case. A steep rise is a value "
    "around which the samples gather; a level stretch between two rises separates two values; a long slope at the top is a tail. "
    "The chart shows cases with flags that make their time doubtful: bimodal ones first, then those with the largest spread. The strips "
    "show all cases."
)


def distribution(key: str, title: str, cases: Sequence[Sampled]) -> Chart | None:
    """Return the chart of the most doubtful cases of a table; None if there are none, or all their samples are equal."""
    doubted = [case for case in cases if doubtful(case.row) and case.spread > 1]
    if not doubted:
        return None
    shown = sorted(doubted, key=lambda case: (not two_modes(case.row), -case.spread))[:_MOST]
    names = distinguishing([case.row for case in cases])
    named = [(cut(f"{name_of(case.row)} {series_name(case.row, names)}"), case) for case in shown]
    drawing, points = _drawing(key, title, named)
    return Chart(key, title, _caption(named, len(doubted)), _METHOD, drawing, _table(named), points, wide=True)


def _drawing(key: str, title: str, named: Sequence[tuple[str, Sampled]]) -> tuple[str, list[Tooltip]]:
    figure, axes = panel(*_SIZE, margins=_MARGINS)
    _axes(axes, [case for _, case in named])
    for number, (name, case) in enumerate(named):
        shares = np.linspace(0, 1, min(_STEPS, len(case.ordered)) + 1)
        levels = [level(case.ratio(float(share))) for share in shares]
        axes.plot(levels, shares, label=name, markevery=max(1, len(shares) // 6), **line(number))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    marked = [(name, case, share) for name, case in named for share in _MARKED]
    texts = [f"{name}: {format_percent(100 * share)} took at most {case.text(share)} µs" for name, case, share in marked]
    points = spots(axes, [level(case.ratio(share)) for _, case, share in marked], [share for *_, share in marked], texts)
    return svg_of(figure, key, title), points


def _axes(axes: Axes, cases: Sequence[Sampled]) -> None:
    ratio_axis(axes, [level(case.ratio(share)) for case in cases for share in (0.005, 0.995)], upright=False)
    fixed_ticks(axes.yaxis, [0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylim(0, 1)
    axes.set_ylabel("samples up to here")


def _caption(named: Sequence[tuple[str, Sampled]], doubted: int) -> str:
    """Return the number of doubtful cases, and the worst one."""
    name, worst = named[0]
    more = f"; {len(named)} of them are shown" if doubted > len(named) else ""
    modes = f"is bimodal: {both_modes(worst.row)}"
    spread = f"ranges from {worst.text(0.01)} to {worst.text(0.99)} µs"
    return f"{plural(doubted, 'doubtful case')}{more}. {name} {modes if two_modes(worst.row) else spread}."


def _table(named: Sequence[tuple[str, Sampled]]) -> Table:
    head = ("case", "samples", *(f"{format_percent(100 * share)} up to µs" for share in _SHARES), "modes", "flags")
    rows = [
        [name, str(len(case.ordered)), *(format_time(case.at(share)) for share in _SHARES), both_modes(case.row), remarks(case.row)]
        for name, case in named
    ]
    return Table(head, rows, frozenset(range(1, 9)), dict.fromkeys(range(len(rows)), "doubtful"))


# A box plot per case: quantiles of its samples relative to their median, over the message size.

_WIDE_FROM = 48  # strips: with more of them, the chart is wide
_WIDTH, _WIDE, _HEIGHT, _LEGEND_ROW = 460, 940, 270, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 26, 40
_LETTER = 6.0
_FILLED = 0.8  # share of the space from one size to the next
_STRIPS_SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
_HEAD = ("series", "size", "samples", "min µs", "1 % µs", "25 % µs", "median µs", "75 % µs", "99 % µs", "max µs", "modes", "flags")
_STRIPS_METHOD = (
    "A sample is the time of one iteration, the maximum over the ranks. All stored samples of all launches count, each divided by the "
    "median in the tables. The thin strip covers the middle 98 % of the samples of a case, the thick one the middle half. The mark is at "
    "the median; it is open if a flag makes the time doubtful. Bimodal samples (with a valley that chance does not explain) have two "
    "diamonds at their modes, and no median. Strips that exceed the axis end at its edge; the table has the times."
)


@dataclass(frozen=True)
class BoxStrip:
    """A series: its name, the number of its style (`line`), and its cases (at least one), ascending in size."""

    name: str
    number: int
    cases: Sequence[Sampled]


@dataclass(frozen=True)
class _Strip:
    """A case as drawn: x in units of the size axis."""

    case: Sampled
    x: float

    def level(self, share: float) -> float:
        """Return the position of a quantile: log2 of its ratio to the median, within the limits of an axis."""
        return level(self.case.ratio(share))


def strips(key: str, title: str, series: Sequence[BoxStrip]) -> Chart:
    """Return the chart of some series (at most four, each with at least one case) of one operation."""
    drawing, points, wide = _drawing_strips(key, title, series)
    return Chart(key, title, _caption_strips(series), _STRIPS_METHOD, drawing, _table_strips(series), points, wide=wide)


def _drawing_strips(key: str, title: str, series: Sequence[BoxStrip]) -> tuple[str, list[Tooltip], bool]:
    """Return (drawing, tooltips, whether it is wide)."""
    cases = [case for each in series for case in each.cases]
    wide = len(cases) >= _WIDE_FROM
    width = _WIDE if wide else _WIDTH
    rows = _legend_rows([each.name for each in series], width)
    figure, axes = panel(width, _HEIGHT + rows * _LEGEND_ROW, (_LEFT, _RIGHT, _TOP + rows * _LEGEND_ROW, _BOTTOM))
    placed = _placed(series)
    _axes_strips(axes, [strip for own in placed for strip in own])
    pixels = (width - _LEFT - _RIGHT) / (axes.get_xlim()[1] - axes.get_xlim()[0])
    thick = min(7.0, max(1.2, 0.55 * pixels * _FILLED * _spacing(cases) / len(series)))
    for each, own in zip(series, placed, strict=True):
        _draw(axes, own, each, thick)
    if rows:
        above = 1 + (_TOP - 4) / axes.bbox.height
        axes.legend(loc="lower left", bbox_to_anchor=(0, above), ncols=ceil(len(series) / rows), borderaxespad=0, handletextpad=0.4)
    marks = [(strip, each.name) for each, own in zip(series, placed, strict=True) for strip in own]
    points = spots(axes, [strip.x for strip, _ in marks], [0.0] * len(marks), [_spot(strip.case, name) for strip, name in marks])
    return svg_of(figure, key, title), points, wide


def _placed(series: Sequence[BoxStrip]) -> list[list[_Strip]]:
    """Return the strips of each series, side by side around their size."""
    step = _FILLED * _spacing([case for each in series for case in each.cases]) / len(series)
    first = -step * (len(series) - 1) / 2
    return [[_Strip(case, x_of_size(case.row.size_bytes) + first + step * turn) for case in each.cases] for turn, each in enumerate(series)]


def _spacing(cases: Sequence[Sampled]) -> float:
    """Return the smallest distance between two sizes; at most 1, a factor of two."""
    there = sorted({x_of_size(case.row.size_bytes) for case in cases})
    return min([1.0, *(after - before for before, after in pairwise(there))])


def _axes_strips(axes: Axes, placed: Sequence[_Strip]) -> None:
    sizes = [strip.case.row.size_bytes for strip in placed]
    if any(sizes):
        size_axis(axes, sizes)
    else:
        fixed_ticks(axes.xaxis, [], [])
        axes.set_xlim(-1, 1)
    between = [strip.level(share) for strip in placed for share in (0.01, 0.99)]
    ratio_axis(axes, [*between, *_modes_of(placed)], upright=True)


def _draw(axes: Axes, own: Sequence[_Strip], series: BoxStrip, thick: float) -> None:
    style = line(series.number)
    color = style["color"]
    single = [strip for strip in own if not two_modes(strip.case.row)]
    _lines(axes, own, (0.01, 0.99), color=color, linewidth=max(0.8, thick / 4))
    _lines(axes, single, (0.25, 0.75), color=color, linewidth=thick, solid_capstyle="butt", alpha=0.55)
    sure = [strip for strip in single if not doubtful(strip.case.row)]
    unsure = [strip for strip in single if doubtful(strip.case.row)]
    mark = {**style, "linestyle": "none"}
    axes.plot([strip.x for strip in sure], [0.0] * len(sure), label=series.name, **mark)  # needed for the legend even without points
    if unsure:
        axes.plot([strip.x for strip in unsure], [0.0] * len(unsure), **{**mark, **_open(color)})
    modes = [(strip.x, level(time_s / strip.case.time_s)) for strip in own for time_s, _ in two_modes(strip.case.row)]
    if modes:
        axes.plot(*zip(*modes, strict=True), **{**mark, **_open(color), "marker": "d", "markersize": 6.0})


def _open(color: str) -> dict[str, Any]:
    return {"markerfacecolor": PAPER, "markeredgecolor": color, "markeredgewidth": 1.2}


def _lines(axes: Axes, own: Sequence[_Strip], between: tuple[float, float], **style: Any) -> None:
    """Draw all strips of a series as one line with gaps: a path for each would take ten times the bytes."""
    xs = [x for strip in own for x in (strip.x, strip.x, nan)]
    ys = [y for strip in own for y in (strip.level(between[0]), strip.level(between[1]), nan)]
    if xs:
        axes.plot(xs, ys, **style)


def _modes_of(placed: Sequence[_Strip]) -> Iterator[float]:
    return (level(time_s / strip.case.time_s) for strip in placed for time_s, _ in two_modes(strip.case.row))


def _legend_rows(names: Sequence[str], width: int) -> int:
    """Return the number of rows of the legend; 0 for a single series, which is in the title."""
    if len(names) == 1:
        return 0
    columns = max(1, int((width - _LEFT) / (_LETTER * max(map(len, names)) + 30)))
    return ceil(len(names) / columns)


def _spot(case: Sampled, name: str) -> str:
    size = f"{size_of(case.row)} " if case.row.size_bytes else ""
    middle = both_modes(case.row) if two_modes(case.row) else f"{case.text(0.5)} µs"
    flags = "".join(f", {name}" for name in flag_names(doubtful(case.row)))
    return f"{size}{name}: {middle}, half {case.text(0.25)}–{case.text(0.75)}, 98 % {case.text(0.01)}–{case.text(0.99)}{flags}"


def _caption_strips(series: Sequence[BoxStrip]) -> str:
    """Return the case with the largest spread, and the number of bimodal cases."""
    cases = [(each.name, case) for each in series for case in each.cases]
    name, widest = max(cases, key=lambda each: each[1].spread)
    where = f"{size_of(widest.row)} {name}" if widest.row.size_bytes else name
    two = sum(bool(two_modes(case.row)) for _, case in cases)
    both = f" {two} of {len(cases)} cases are bimodal." if two else ""
    return f"Largest spread at {where}: 98 % of the samples are between {widest.text(0.01)} and {widest.text(0.99)} µs.{both}"


def _table_strips(series: Sequence[BoxStrip]) -> Table:
    rows = [(each.name, case) for each in series for case in each.cases]
    marks = {number: "doubtful" for number, (_, case) in enumerate(rows) if doubtful(case.row)}
    return Table(_HEAD, [_texts(name, case) for name, case in rows], frozenset(range(1, 10)), marks)


def _texts(name: str, case: Sampled) -> list[str]:
    quantiles = [format_time(case.at(share)) for share in _STRIPS_SHARES]
    return [name, size_of(case.row), str(len(case.ordered)), *quantiles, both_modes(case.row), remarks(case.row)]


_PER_CHART, _MOST_SERIES = 4, 48  # the number of colors, and of series in the other charts of an operation
_NAMED = 3


def section(material: Material) -> Section | None:
    """Return the section, or None if no run has samples or should have them (most imported rows have none)."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, table in enumerate(material.drawn):
        cases, without = sampled(material, table)
        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        charts += _charts(f"spread-{number}", where, cases)
        lost = [row for row in without if "imported" not in row.flags]
        texts += [_without(table, lost)] if lost else []
    return Section("spread", "Spread of the samples", texts, (), charts) if charts or texts else None


def _charts(key: str, where: str, cases: Sequence[Sampled]) -> Iterator[Chart]:
    """Yield the strips of each operation, a few series per chart, then the doubtful cases of all operations."""
    backends = sorted({case.row.backend for case in cases})
    for number, operation in enumerate(dict.fromkeys(case.row.operation for case in cases)):
        series = _series([case for case in cases if case.row.operation == operation], backends)
        for first in range(0, min(len(series), _MOST_SERIES), _PER_CHART):
            shown = series[first : first + _PER_CHART]
            name = f"{cut(operation)} {shown[0].name}" if len(shown) == 1 else cut(operation)
            yield strips(f"{key}-{number}-{first}", f"{name}: spread of the samples{where}", shown)
    doubtful = distribution(f"{key}-doubtful", f"doubtful cases: distribution of the samples{where}", cases)
    if doubtful:
        yield doubtful


def _series(cases: Sequence[Sampled], backends: Sequence[str]) -> list[BoxStrip]:
    """Return the cases of an operation as the same series as in the other charts."""
    by_row = {id(case.row): case for case in cases}
    series = series_of([case.row for case in cases], backends)
    return [BoxStrip(each.label, each.number, [by_row[id(row)] for row in each.rows]) for each in series]


def _without(table: Launches, rows: Sequence[Row]) -> str:
    """Return a sentence on the cases without samples."""
    first = ", ".join(f"{name_of(row)} {row.backend}" for row in rows[:_NAMED])
    more = ", …" if len(rows) > _NAMED else ""
    return printable(f"{table.name}: no samples for {plural(len(rows), 'case')} with a time (samples.bin is incomplete): {first}{more}.")
