"""The main chart of each operation: bus bandwidth or time over the message size, all backends and runs on the same axes.

A chart has a picture, which needs no script, and the same data for the page's script, which draws it again: with a choice between
bandwidth and time, linear and logarithmic, zoom, series to show or hide, and one tooltip with all series at a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collbench.machine.peak.ceiling import LEAST_BYTES
from collbench.report.cases import NOTHING
from collbench.report.charts import FAR, SizeChart, SizeLine, SizePoint, figures_of, remarks_of, size_charts
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import (
    COLORS,
    CROSS,
    AxisScale,
    Picture,
    apart,
    draw_legend,
    linear_scale,
    log_scale,
    series_classes,
    series_marker,
    size_scale,
)
from collbench.report.material import Material
from collbench.results.quality import UNRELIABLE
from collbench.units import format_rate, format_size, format_time

_MOST_NAMED = 6
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 760, 340, 56, 132, 46  # pixels
_LINE = 26  # pixels between the labels of two limits


def data_of(chart: SizeChart) -> dict[str, Any]:
    """Return what the page's script draws: for each series its look, and a value per size, null where there is none."""
    sizes, labels = chart.sizes, [format_size(size) for size in chart.sizes]
    drawn = [(limit, limit.rates_at(sizes)) for limit in chart.limits]
    limits = [{"name": limit.name, "kind": limit.kind, "style": limit.style, "rate": [*map(rates.get, sizes)]} for limit, rates in drawn]
    series = [_series_data(line, sizes) for line in chart.lines]
    about = {"kind": "sizes", "sizes": sizes, "labels": labels, "rate": chart.has_rate, "cross": CROSS, "far": FAR}
    return {**about, "series": series, "limits": limits}


def picture_of(chart: SizeChart) -> Picture:
    """Return the picture: bandwidth on a linear axis, or time on a logarithmic one, with intervals, limits and a legend."""
    picture = Picture(_WIDTH, _HEIGHT)
    top = draw_legend(picture, [(line.name, line.number) for line in chart.lines], _LEFT, 14)
    picture.height += top
    x, y = size_scale(chart.sizes, _LEFT, _WIDTH - _RIGHT), _scale(chart, top + 28, _HEIGHT + top - _BOTTOM)
    picture.axes(x, y)
    if chart.has_rate:
        _draw_limits(chart, picture, x, y)
    for line in chart.lines:
        _draw_line(picture, x, y, line, chart.has_rate)
    return picture


def _scale(chart: SizeChart, top: float, bottom: float) -> AxisScale:
    values = [point.rate if chart.has_rate else point.time for line in chart.lines for point in line.points]
    ends = [end for each in values if each for end in (each.value, each.low, each.high) if end is not None]
    ends += [end for line in chart.lines for point in line.points if (end := _expected(chart, point)) is not None]
    if not chart.has_rate:
        return log_scale(min(ends, default=1.0) / 1.3, max(ends, default=1.0) * 1.3, bottom, top, "time, µs")
    ends += [rate for limit in chart.limits for rate in limit.rates.values()]
    return linear_scale(0.0, 1.05 * max(ends, default=1.0), bottom, top, "bus bandwidth, GB/s")


def _expected(chart: SizeChart, point: SizePoint) -> float | None:
    return point.expected_rate if chart.has_rate else point.expected_time


def _draw_limits(chart: SizeChart, picture: Picture, x: AxisScale, y: AxisScale) -> None:
    """Draw the limits, with as many labels in the margin as there is room for."""
    ends = [limit.rates[max(limit.rates)] for limit in chart.limits]
    low, high = y.end + 8, y.start - 4
    shown = range(min(len(ends), int((high - low) / _LINE) + 1))
    heights = apart([y.at(ends[place]) for place in shown], _LINE, low, high)
    for limit in chart.limits:
        points = [(size, (x.at(size), y.at(rate))) for size, rate in sorted(limit.rates_at(chart.sizes).items())]
        path = list(_interrupted(points))
        (first, height), (last, _) = points[0][1], points[-1][1]
        if {level for _, (_, level) in points} == {height}:  # a level line, across the chart if it holds at all sizes
            left, right = (x.start, x.end) if len(points) == len(chart.sizes) else (first - 12, last + 12)
            path = [(left, height), (right, height)]
        picture.line(path, f"{limit.style} dashed")
    for place, height in zip(shown, heights, strict=True):
        limit = chart.limits[place]
        picture.text(x.end + 8, height, f"{limit.kind} {format_rate(ends[place] * 1e9)}", classes=limit.style)
        picture.text(x.end + 8, height + 12, short(limit.what, 19), classes=f"{limit.style} small")


def _series_data(line: SizeLine, sizes: Sequence[int]) -> dict[str, Any]:
    points = {point.size_bytes: point for point in line.points}
    shown = [points.get(size) for size in sizes]
    found: dict[str, Any] = {"name": line.name, "look": series_classes(line.number), "marker": series_marker(line.number)}
    for key in ("rate", "time"):
        for end, name in (("value", ""), ("low", "Low"), ("high", "High")):
            values = [_rounded(getattr(getattr(point, key, None), end, None)) for point in shown]
            found |= {f"{key}{name}": values} if not name or any(value is not None for value in values) else {}
    for key, name in (("expected_rate", "rateExpected"), ("expected_time", "timeExpected")):
        values = [_rounded(getattr(point, key, None)) for point in shown]
        if any(value is not None for value in values):
            found[name] = values
    found["texts"] = [point and f"{line.name}: {point.text}" for point in shown]
    return found | {"states": [point.state if point else "" for point in shown]}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _interrupted(path: Sequence[tuple[int, tuple[float, float] | None]]) -> Iterator[tuple[float, float] | None]:
    """Yield the places of (size, place), with None between sizes that are far apart."""
    before = 0
    for size, place in path:
        if before and size > FAR * before:
            yield None
        yield place
        before = size


def _draw_line(picture: Picture, x: AxisScale, y: AxisScale, line: SizeLine, rate: bool) -> None:
    """Draw the intervals, the line and the markers of a series; doubtful values have open markers, wrong ones crosses."""
    classes = series_classes(line.number)
    bars: list[tuple[float, float] | None] = []
    path: list[tuple[int, tuple[float, float] | None]] = []
    for point in line.points:
        value, at = point.rate if rate else point.time, x.at(point.size_bytes)
        path.append((point.size_bytes, None if value is None else (at, y.at(value.value))))
        if value is not None and value.low is not None and value.high is not None and abs(y.at(value.low) - y.at(value.high)) >= 1:
            bars += [(at, y.at(value.low)), (at, y.at(value.high)), None]
    expected = [(point.size_bytes, point.expected_rate if rate else point.expected_time) for point in line.points]
    expected_path = [(size, None if value is None else (x.at(size), y.at(value))) for size, value in expected]
    picture.line(_interrupted(expected_path), f"s{line.number % COLORS} expected")
    picture.line(bars, f"{classes} bar")
    picture.line(_interrupted(path), classes)
    for point, (_, place) in zip(line.points, path, strict=True):
        if place is None:
            continue
        if point.state == "wrong":
            picture.cross(*place)
        else:
            picture.marker(*place, line.number, f"{classes}{' open' if point.state else ''}")


_METHOD = (
    "The section Provenance defines time, bus bandwidth and expected. Bars are 95 % intervals; within one launch an interval "
    "does not cover how much another launch may differ. A dotted line is the expected time of a series. Open markers are doubtful, and a "
    "cross is wrong data: the table has the reason. A baseline is the median over its allocations; its bars are the gate's noise limit."
)


def section(material: Material, first: str = "") -> Section | None:
    """Return the section with a chart for each operation, that of `first` before the others, and a table of the operations without bytes.

    None without any operation.
    """
    shown = sorted(size_charts(material), key=lambda chart: chart.operation != first)
    without_size = [(table.name, row) for table in material.drawn for row in material.rows(table) if row.size_bytes == 0]
    rows = [(short(run, 200), row.operation, row.backend, figures_of(row), "; ".join(remarks_of(row))) for run, row in without_size]
    tables = [("Operations without bytes", Table(["run", "operation", "backend", "time", "remarks"], rows))] if rows else []
    more = "more series are in `collbench report --csv FILE`."
    texts = [f"{short(each.operation, 60)}: {each.left_out} {more}" for each in shown if each.left_out]
    return Section("curves", "Every operation", texts, tables, [to_chart(each) for each in shown]) if rows or shown else None


def to_chart(chart: SizeChart) -> Chart:
    """Return the chart as the page shows it, with its values as a table."""
    title = f"{short(chart.operation, 60)}: {'bus bandwidth' if chart.has_rate else 'time'} over message size"
    drawing = picture_of(chart).markup(title)
    return Chart(chart.key, title, _caption(chart), _METHOD, drawing, _table(chart), data=data_of(chart), wide=True)


def _caption(chart: SizeChart) -> str:
    """Return the best value of each series and the limits."""
    texts = "; ".join(filter(None, (_best(line, chart.has_rate) for line in chart.lines[:_MOST_NAMED])))
    limits = "; ".join(limit.name for limit in chart.limits)
    return ". ".join(text for text in (texts, f"{limits[:1].upper()}{limits[1:]}") if text) + "."


def _best(line: SizeLine, has_rate: bool) -> str:
    """Return the rate of a series at the size that `headlines` chooses, or its time at the smallest size; without a time the reason."""
    rated = [(point.size_bytes, point.rate.value, point.unreliable) for point in line.points if point.rate and point.state != "wrong"]
    timed = [(point.time.value, point.size_bytes) for point in line.points if point.time is not None]
    if has_rate and rated:
        reliable = [each for each in rated if each[0] >= LEAST_BYTES and not each[2]]
        size, rate, is_unreliable_rate = max(reliable or rated)
        doubt = f", {UNRELIABLE}" if is_unreliable_rate else ""
        return f"{line.name} reaches {format_rate(1e9 * rate)} GB/s at {format_size(size)}{doubt}"
    if timed:
        return f"{line.name} takes {format_time(1e-6 * timed[0][0])} µs at {format_size(timed[0][1])}"
    return f"{line.name}: {line.points[0].text}" if line.points else ""


def _table(chart: SizeChart) -> Table:
    """Return the figures: a row for each size, a column for each series."""
    columns = [{point.size_bytes: point.text for point in line.points} for line in chart.lines]
    rows = [[format_size(size), *(texts.get(size, NOTHING) for texts in columns)] for size in chart.sizes]
    return Table(["size", *(line.name for line in chart.lines)], rows)
