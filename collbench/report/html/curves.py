"""The main chart of each operation: bus bandwidth or time over the message size, all backends and runs on the same axes.

A chart has a picture, which needs no script, and the same data for the page's script, which draws it again: with a choice between
bandwidth and time, linear and logarithmic, zoom, series to show or hide, and one tooltip with all series at a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from collbench.machine.peak.ceiling import LEAST_BYTES
from collbench.report.cases import NOTHING
from collbench.report.charts import BANDWIDTH, FAR, TIME, Limit, SizeChart, SizeLine, figures_of, remarks_of, size_charts, size_panel
from collbench.report.figures import DASHES, draw
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import PAGE, WIDE, Picture, apart, drawn
from collbench.report.material import Material
from collbench.results.quality import UNRELIABLE
from collbench.units import format_rate, format_size, format_span

_MOST_NAMED = 6
_MOST_LIMITS = 4
_HEIGHT = 330  # pixels: of the axes
_LEGEND_LINE = 16  # of a line of the legend
_LETTER = 6.6
_LINE = 26  # pixels between the labels of two limits


def data_of(chart: SizeChart) -> dict[str, Any]:
    """Return what the page's script draws: for each series its look, and a value per size, null where there is none."""
    sizes = chart.sizes
    panel = size_panel(chart, BANDWIDTH)
    return {
        "kind": "sizes",
        "sizes": sizes,
        "labels": [format_size(size) for size in sizes],
        "rate": chart.has_rate,
        "far": FAR,
        "series": [_series_data(line, sizes) for line in chart.lines],
        "limits": [_limit_data(limit, sizes) for limit in (panel.limits if panel else ())],
    }


def _limit_data(limit: Limit, sizes: Sequence[int]) -> dict[str, Any]:
    style = "bound" if limit.is_bound else "limit"
    if limit.color is not None:
        style = f"series-{limit.color % len(PAGE.series)}"
    return {"name": f"{limit.name} {limit.rates}", "label": limit.name, "style": style, "rate": [limit.values.get(size) for size in sizes]}


def _series_data(line: SizeLine, sizes: Sequence[int]) -> dict[str, Any]:
    points = {point.size_bytes: point for point in line.points}
    shown = [points.get(size) for size in sizes]
    color = "quiet" if line.color < 0 else f"s{line.color % len(PAGE.series)}"
    series: dict[str, Any] = {"name": line.name, "look": f"{color} d{line.dash % len(DASHES)}"}
    for key in ("rate", "time"):
        for end, name in (("value", ""), ("low", "Low"), ("high", "High")):
            values = [_rounded(getattr(getattr(point, key, None), end, None)) for point in shown]
            if not name or any(value is not None for value in values):
                series[f"{key}{name}"] = values
    for key, name in (("expected_rate", "rateExpected"), ("expected_time", "timeExpected")):
        values = [_rounded(getattr(point, key, None)) for point in shown]
        if any(value is not None for value in values):
            series[name] = values
    series["texts"] = [point and f"{line.name}: {point.text}" for point in shown]
    series["states"] = [point.state if point else "" for point in shown]
    return series


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _draw(chart: SizeChart, picture: Picture) -> None:
    """Draw the panel of a chart, with a legend above it and the names of the limits in the margin."""
    panel = size_panel(chart, BANDWIDTH if chart.has_rate else TIME)
    axes = picture.axes()
    if panel is None:
        return
    artists = draw(replace(panel, title=""), axes, PAGE, has_legend=False)
    names = [line.name for line in panel.lines]
    columns = _legend_columns(names, picture.width)
    picture.figure.legend([artists[name] for name in names], [printable(name) for name in names], loc="outside upper left", ncols=columns)
    top = axes.get_ylim()[1]
    last = [limit.values[max(limit.values)] for limit in panel.limits]
    room = _LINE * top / (_HEIGHT - _LEGEND_LINE)  # in units of the axis
    shown = panel.limits[: int(top / room)]
    heights = apart(last[: len(shown)], room, 0.0, top)
    for limit, rate, height in zip(shown, last, heights, strict=False):
        color = PAGE.bound if limit.is_bound else PAGE.expected
        text = f"{printable(limit.name)}\n{format_rate(1e9 * rate)} GB/s"
        axes.text(1.01, height, text, transform=axes.get_yaxis_transform(), va="center", color=color)


def _legend_columns(names: Sequence[str], width: float) -> int:
    longest = max(len(name) for name in names)
    return max(1, min(len(names), int(width / (_LETTER * longest + 50))))


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
    texts = [f"{short(chart.operation, 60)}: {chart.left_out} {more}" for chart in shown if chart.left_out]
    return Section("curves", "Every operation", texts, tables, list(map(to_chart, shown))) if rows or shown else None


def to_chart(chart: SizeChart) -> Chart:
    """Return the chart as the page shows it, with its values as a table."""
    title = f"{short(chart.operation, 60)}: {'bus bandwidth' if chart.has_rate else 'time'} over message size"
    shown = Chart(chart.key, title, _caption(chart), _METHOD, _table(chart), data=data_of(chart))
    names = [line.name for line in chart.lines]
    legend_lines = -(-len(names) // _legend_columns(names, WIDE)) if names else 0
    return drawn(shown, lambda picture: _draw(chart, picture), WIDE, _HEIGHT + _LEGEND_LINE * legend_lines)


def _caption(chart: SizeChart) -> str:
    """Return the best value of each series and the limits."""
    texts = "; ".join(filter(None, (_best(line, chart.has_rate) for line in chart.lines[:_MOST_NAMED])))
    names = [limit.name for limit in chart.limits]
    panel = size_panel(chart, BANDWIDTH)
    if panel is not None and len(names) > _MOST_LIMITS:
        names = [f"{limit.name} {limit.rates}, the highest of {len(names)}" for limit in panel.limits]
    limits = "; ".join(names)
    return ". ".join(text for text in (texts, f"{limits[:1].upper()}{limits[1:]}") if text) + "."


def _best(line: SizeLine, has_rate: bool) -> str:
    """Return the rate of a series at the size that `headlines` chooses, or its time at the smallest size; without a time the reason."""
    rated = [(point.size_bytes, point.rate.value, point.unreliable) for point in line.points if point.rate and point.state != "wrong"]
    timed = [point for point in line.points if point.time is not None]
    timed = [point for point in timed if point.state != "wrong"] or timed
    if has_rate and rated:
        reliable = [(size, rate, unreliable) for size, rate, unreliable in rated if size >= LEAST_BYTES and not unreliable]
        size, rate, unreliable = max(reliable or rated)
        doubt = f", {UNRELIABLE}" if unreliable else ""
        return f"{line.name} reaches {format_rate(1e9 * rate)} GB/s at {format_size(size)}{doubt}"
    first = timed[0] if timed else None
    if first is not None and first.time is not None:
        doubt = ", wrong data" if first.state == "wrong" else ""
        return f"{line.name} takes {format_span(1e-6 * first.time.value)} at {format_size(first.size_bytes)}{doubt}"
    return f"{line.name}: {line.points[0].text}" if line.points else ""


def _table(chart: SizeChart) -> Table:
    """Return the figures: a row for each size, a column for each series."""
    columns = [{point.size_bytes: point.text for point in line.points} for line in chart.lines]
    rows = [[format_size(size), *(texts.get(size, NOTHING) for texts in columns)] for size in chart.sizes]
    return Table(["size", *(line.name for line in chart.lines)], rows)
