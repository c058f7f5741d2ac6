"""Bus bandwidth over size, with the ring reference and the hard limit."""

from __future__ import annotations

from typing import Any

from collbench.analysis.launches import time_of
from collbench.report.columns import name_of, not_available
from collbench.report.html.chart import Chart, Section
from collbench.report.html.curves import Curve, Point, chart_panel, curve_spots, curves_of, draw_curves, joined_points, span
from collbench.report.html.draw import size_axis, spots, svg_of
from collbench.report.html.limits import Limit, limits
from collbench.report.html.material import Material
from collbench.report.html.names import cut
from collbench.report.html.records import record_table
from collbench.report.html.series import (
    Series,
    Sheet,
    against,
    missing,
    not_drawn,
    rate_of,
    remark,
    sheets,
    sound_interval,
    state_of,
    time_words,
)
from collbench.report.html.words import Wish, write_words
from collbench.results.row import Row
from collbench.units import format_rate, format_size

_TEXT = "Bus bandwidth is size / time × the operation's bus factor, so that it can be set against the rate of a link, in one direction."


def section(material: Material) -> Section | None:
    """The section, or None where no run has a bandwidth."""
    charts = [chart for sheet in sheets(material) if (chart := _chart(sheet)) is not None]
    return Section("rates", "Bandwidth over message size", [_TEXT, *not_drawn(material)], (), charts) if charts else None


def _chart(sheet: Sheet) -> Chart | None:
    """None where nothing has a bandwidth, nor a reason for having none."""
    curves = curves_of(sheet.series, _point)
    if span(curves) is None:
        return None
    key, title = f"rates-{sheet.key}", f"{sheet.title}: bus bandwidth"
    table, same = record_table(sheet.rows)
    found = limits(sheet.rows)
    figure, axes = chart_panel(curves)
    _scale(axes, sheet, curves, found)
    for limit in found:
        axes.plot(*zip(*_drawn(axes, limit), strict=True), color=limit.color, linewidth=1.4, dashes=(7, 2) if limit.hard else (2, 1.5))
    draw_curves(axes, curves)
    write_words(axes, [Wish(limit.words, limit.color, _drawn(axes, limit)) for limit in found], list(joined_points(curves)))
    hover = [*curve_spots(axes, curves), *(spot for limit in found for spot in _limit_spots(axes, limit))]
    return Chart(key, title, _says(sheet, curves, found), _made(sheet, found, same), svg_of(figure, key, title), table, hover)


def _point(series: Series, row: Row) -> Point:
    rate = rate_of(row)
    name = f"{series.label} {format_size(row.size_bytes)}"
    if rate is None:
        return Point(
            row.size_bytes,
            state_of(row),
            None,
            None,
            None,
            f"{name}: {cut(not_available(row), 160) if row.na is not None else 'no bandwidth'}",
        )
    low, high = _interval(row, rate)
    within = "" if low is None or high is None else f" [{format_rate(low)}, {format_rate(high)}]"
    text = f"{name}: {_figure(row)}{within}{remark(row)}"
    return Point(row.size_bytes, state_of(row), rate / 1e9, None if low is None else low / 1e9, None if high is None else high / 1e9, text)


def _interval(row: Row, rate: float) -> tuple[float | None, float | None]:
    """The interval of the time, as bandwidth: the longest time is the lowest rate."""
    (shortest, longest), time_s = sound_interval(row), time_of(row)
    if shortest is None or longest is None or time_s is None:
        return None, None
    return rate * time_s / longest, rate * time_s / shortest


def _scale(axes: Any, sheet: Sheet, curves: list[Curve], found: list[Limit]) -> None:
    """From 0 to a little above all that is drawn."""
    reach = span(curves)
    values = [rate for limit in found for _, rate in limit.points]
    size_axis(axes, sheet.sizes)
    axes.set_ylim(0, 1.1 * max([reach[1] if reach else 1.0, *values]))
    axes.set_ylabel("bus bandwidth, GB/s")


def _drawn(axes: Any, limit: Limit) -> list[tuple[float, float]]:
    """The limit's points; a constant one reaches from end to end."""
    points = limit.points
    left, right = axes.get_xlim()
    return [(left, points[0][1]), (right, points[-1][1])] if len({rate for _, rate in points}) == 1 else points


def _limit_spots(axes: Any, limit: Limit) -> list[Any]:
    """The limit's words under the pointer: at each of its rates, or once where it is one."""
    points = limit.points
    if len({rate for _, rate in points}) == 1:
        points = points[len(points) // 2 :][:1]
    return spots(axes, [x for x, _ in points], [y for _, y in points], [f"{limit.words}; here {_gbs(y)} GB/s" for _, y in points])


def _gbs(value: float) -> str:
    return format_rate(value * 1e9)


def _says(sheet: Sheet, curves: list[Curve], found: list[Limit]) -> str:
    """The best of each series, which series have nothing, and what limits."""
    best = [text for each in curves if (text := _best(each))]
    nothing = missing(sheet.series)
    limit = f"Lines: {'; '.join(each.words for each in found)}" if found else "There is no rate to set them against"
    return ". ".join(text for text in ("; ".join(best), nothing, limit) if text) + "."


def _best(curve: Curve) -> str:
    rows = [row for row in curve.series.rows if rate_of(row) is not None and not row.wrong]
    if not rows:
        return ""
    honest = [row for row in rows if row.percent_of_ceiling is not None]  # what is above its bound is no peak
    best = max(honest or rows, key=lambda row: rate_of(row) or 0.0)
    mark = "? " if state_of(best) else ""
    return f"{curve.series.label} reaches {mark}{_figure(best)} at {format_size(best.size_bytes)}"


def _figure(row: Row) -> str:
    figure = against(row)
    return f"{format_rate(row.busbw_bytes_per_s or 0.0)} GB/s ({figure})" if figure.startswith("no") else figure


def _made(sheet: Sheet, found: list[Limit], same: str) -> str:
    first = next((row for row in sheet.rows if rate_of(row) is not None), sheet.rows[0])
    factor = (first.busbw_bytes_per_s or 0) / first.algbw_bytes_per_s if first.algbw_bytes_per_s else None
    times = f" × {factor:.6g} (the bus factor of {cut(name_of(first).split()[0])} over {first.ranks} ranks)" if factor else ""
    sources = dict.fromkeys(f"{each.by}: {source}" for each in found for source in each.sources if source)
    return (
        f"Bus bandwidth = size / time{times}, in GB/s of 1e9 bytes. The time is {time_words(sheet)}. "
        f"{'Lines, from ' + '; '.join(sources) + '. ' if sources else ''}In all rows: {same}."
    )
