"""Time over size, small sizes first, with the α–β fit and the sizes at which the regime switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collbench.analysis.launches import time_of
from collbench.report.columns import NOTHING, interval, name_of, not_available, times, value_of
from collbench.report.findings import FIT_TITLES, fit_cells, left_out
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.curves import Curve, Point, chart_panel, curve_spots, curves_of, draw_curves, joined_points, span
from collbench.report.html.draw import log_axis, size_axis, svg_of
from collbench.report.html.fitted import draw_fits, fits_of
from collbench.report.html.material import Material
from collbench.report.html.names import cut
from collbench.report.html.records import size_table
from collbench.report.html.series import Series, Sheet, missing, remark, sheets, sound_interval, state_of, time_words
from collbench.results.row import Row
from collbench.units import format_size, format_time

if TYPE_CHECKING:
    from collbench.analysis.latency import LineFit

_SMALL = 64 << 10  # bytes: up to here a message's time is mostly that of starting it
_TEXT = "Small messages are a matter of time, not of bandwidth. The fit t = α + size / rate tells both, in up to three regimes."


def section(material: Material) -> Section | None:
    """The section, or None where no run has a time."""
    charts = [chart for sheet in sheets(material) for chart in (_small(sheet), _fitted(sheet)) if chart is not None]
    tables = _without_size(material)
    return Section("latencies", "Latency", [_TEXT] if charts else [], tables, charts) if charts or tables else None


def _small(sheet: Sheet) -> Chart | None:
    """The times of small messages; None where there are none."""
    series = [Series(each.number, each.label, [row for row in each.rows if row.size_bytes <= _SMALL]) for each in sheet.series]
    small = Sheet(sheet.key, sheet.title, [each for each in series if each.rows], sheet.launches)
    curves = curves_of(small.series, _point)
    reach = span(curves)
    if reach is None:
        return None
    key, title = f"latencies-{sheet.key}", f"{sheet.title}: time of small messages"
    figure, axes = chart_panel(curves)
    _scale(axes, small.sizes, reach)
    draw_curves(axes, curves)
    table = size_table(small, small.series, lambda _, row: _cell(row))
    return Chart(key, title, _says(small, curves), _made(sheet), svg_of(figure, key, title), table, curve_spots(axes, curves))


def _fitted(sheet: Sheet) -> Chart | None:
    """All times with the fit of each series; None where none can be fitted."""
    fits = fits_of(sheet)
    if not fits:
        return None
    curves = curves_of(sheet.series, _point)
    key, title = f"fits-{sheet.key}", f"{sheet.title}: latency and bandwidth (α–β fit)"
    figure, axes = chart_panel(curves)
    _scale(axes, sheet.sizes, span(curves) or (1.0, 1.0))
    draw_curves(axes, curves, joined=False)
    draw_fits(axes, fits, list(joined_points(curves)))
    table = Table(["series", *FIT_TITLES], [[each.label, *fit_cells(fit)] for each, fit in fits], frozenset(range(2, 6)))
    drawing = svg_of(figure, key, title)
    return Chart(key, title, _says_fits(fits), _made_fits([fit for _, fit in fits]), drawing, table, curve_spots(axes, curves))


def _point(series: Series, row: Row) -> Point:
    name, time_s = f"{series.label} {format_size(row.size_bytes)}", time_of(row)
    if time_s is None:
        return Point(
            row.size_bytes, state_of(row), None, None, None, f"{name}: {cut(not_available(row), 160) if row.na is not None else 'no time'}"
        )
    low, high = sound_interval(row)
    within = "" if low is None or high is None else f" [{format_time(low)}, {format_time(high)}]"
    text = f"{name}: {times(row, ' µs')}{within}{remark(row)}"
    return Point(row.size_bytes, state_of(row), 1e6 * time_s, low and 1e6 * low, high and 1e6 * high, text)


def _scale(axes: Any, sizes: Sequence[int], reach: tuple[float, float]) -> None:
    size_axis(axes, sizes)
    log_axis(axes, reach[0] / 1.3, reach[1] * 1.3)
    axes.set_ylabel("time, µs")


def _cell(row: Row) -> str:
    """The time with its interval, or why there is none."""
    if row.na is not None:
        return cut(not_available(row), 80)
    within = interval(row)
    return f"{times(row)}{'' if within == NOTHING else f' ({within})'}"


def _says(sheet: Sheet, curves: Sequence[Curve]) -> str:
    least = [text for each in curves if (text := _least(each))]
    return ". ".join(text for text in ("; ".join(least), missing(sheet.series)) if text) + "."


def _least(curve: Curve) -> str:
    """The time of the smallest message."""
    row = next((row for row in curve.series.rows if time_of(row) is not None), None)
    if row is None:
        return ""
    mark = "? " if state_of(row) else ""
    return f"{curve.series.label} takes {mark}{times(row, ' µs')} for {format_size(row.size_bytes)}"


def _made(sheet: Sheet) -> str:
    return f"The time of a message is {time_words(sheet)}. Both axes are logarithmic."


def _says_fits(fits: Sequence[tuple[Series, LineFit]]) -> str:
    return "; ".join(_says_fit(each, fit) for each, fit in fits) + "."


def _says_fit(series: Series, fit: LineFit) -> str:
    _, alpha, rate, *_ = (text.split(" (")[0] for text in fit_cells(fit))
    switches = " and ".join(map(format_size, fit.switches))
    return f"{series.label}: α {alpha} µs, then towards {rate} GB/s{f', another regime from {switches} on' if switches else ''}"


def _made_fits(fits: Sequence[LineFit]) -> str:
    left = left_out(fits)
    return (
        "t = α + size / rate, by weighted least squares of relative errors in up to three regimes, chosen by BIC; in brackets 95 % "
        "intervals. A vertical mark stands where another regime begins: a change of protocol or algorithm. n½ is the size at which half of "
        "the rate is reached. Sizes more than 10 % off may have a bad choice of algorithm."
        + (f" {cut('; '.join(left), 600)}." if left else "")
    )


def _without_size(material: Material) -> list[tuple[str, Table]]:
    """Times of what moves nothing: one table for each table of runs."""
    found = []
    for table in material.drawn:
        rows = [row for row in material.rows(table) if row.size_bytes == 0]
        if rows:
            where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
            records = [[cut(name_of(row)), value_of(row, "backend"), _cell(row), cut(", ".join(row.flags), 120) or NOTHING] for row in rows]
            states = {number: state for number, row in enumerate(rows) if (state := state_of(row))}
            caption = f"What moves no bytes{where}"
            found.append((caption, Table(["operation", "backend", "time µs (95 % interval)", "flags"], records, frozenset({2}), states)))
    return found
