"""The α–β fits of a chart's series: as curves, with a mark and words where another regime begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from collbench.report.html.draw import place, series_color
from collbench.report.html.series import Series, Sheet
from collbench.report.html.words import Points, Wish, write_words
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.analysis.latency import LineFit
    from collbench.stats.fit import Regime

_STEP = 1  # doubling of the size, between two points of the curve


def fits_of(sheet: Sheet) -> list[tuple[Series, LineFit]]:
    """Each series that can be fitted, with its fit."""
    from collbench.analysis.latency import line_fits

    return [(each, fit) for each in sheet.series for fit in line_fits(each.rows)]


def draw_fits(axes: Axes, fits: Sequence[tuple[Series, LineFit]], lines: Sequence[Points]) -> None:
    """The curves, a vertical mark at each switch, and words beside it where there is room (the table has them all)."""
    wishes, curves = [], list(lines)
    for series, fit in fits:
        color = series_color(series.number)
        for regime in fit.fit.regimes:
            points = list(_points(regime))
            if points:
                curves.append(points)
                axes.plot(*zip(*points, strict=True), color=color, linewidth=1.2)
        for size in fit.switches:
            at = (place(size), 1e6 * fit.fit.time_s(size))
            if _drawable(at[1]):
                axes.plot(*at, linestyle="none", marker="|", markersize=22, markeredgewidth=1.5, color=color)
                wishes.append(Wish(f"{series.label}: {format_size(size)}", color, [at]))
    write_words(axes, wishes, curves)


def _points(regime: Regime) -> Iterator[tuple[float, float]]:
    """The regime's line, µs over the place along the size axis; where it is below nothing, it has none."""
    first, last = place(int(regime.first)), place(int(regime.last))
    steps = max(1, round((last - first) / _STEP))
    for step in range(steps + 1):
        x = first + (last - first) * step / steps
        time = 1e6 * regime.time_s(2**x)
        if _drawable(time):
            yield x, time


def _drawable(time: float) -> bool:
    return isfinite(time) and time > 0
