"""The sections "Bandwidth over message size" and "Latency": one operation per chart, a line per series, at most eight lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any

from collbench.analysis.launches import is_time, known, time_of
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import (
    NOTHING,
    CaseColumn,
    doubtful,
    interval,
    limited_by,
    name_of,
    not_available,
    of_ceiling,
    remarks,
    same_for_all,
    shown_columns,
    size_of,
    times,
    value_of,
    wrong,
)
from collbench.report.headlines import FIT_TITLES, fit_cases, fit_values, left_out
from collbench.report.html.chart import (
    BAD,
    BOUND,
    HEIGHT,
    LIMIT,
    PAPER,
    SOFT,
    WIDTH,
    Chart,
    LineLabel,
    Points,
    Section,
    Table,
    Tooltip,
    cut,
    distinguishing,
    line,
    log_axis,
    panel,
    series_color,
    series_name,
    size_axis,
    spots,
    svg_of,
    write,
    write_labels,
    x_of_size,
)
from collbench.report.html.material import Material
from collbench.report.plan import PlanSummary
from collbench.results.flags import flag_name, flag_names
from collbench.results.row import Row
from collbench.units import format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from collbench.analysis.latency import LineFit
    from collbench.stats.fit import FitSegment

_PER_CHART, _MOST_CHARTS, _MOST_STATISTICS = 8, 6, 3
_LARGEST = 1 << 62  # bytes: a larger size is not valid
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second: the range of valid rates
# Flags of rows without a percentage.
_WITHHOLDS = frozenset({"above_bound", "oversubscribed", "other_path", "path_unproven", "reference_disturbed", "shared_gpu"})


@dataclass(frozen=True)
class SizeSeries:
    """Rows that differ in size only, ascending, one for each size (the last measured). `number` is that of its style (`line`)."""

    number: int
    label: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class SweepChartInput:
    """The input of one chart: some series of one operation of one table.

    key    unique in the page: "0-2-0"
    title  "allreduce", "allreduce, part 2 of 3 (run-b)"
    """

    key: str
    title: str
    series: Sequence[SizeSeries]
    launches: int

    @property
    def rows(self) -> list[Row]:
        """All rows of all its series."""
        return [row for each in self.series for row in each.rows]

    @property
    def sizes(self) -> list[int]:
        """The message sizes in bytes, ascending."""
        return sorted({row.size_bytes for row in self.rows})


def sheets(material: Material) -> Iterator[SweepChartInput]:
    """Yield the charts' input, operation by operation, for rows that move bytes; at most 48 series per operation."""
    for number, table in enumerate(material.drawn):
        where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
        rows = [row for row in material.rows(table) if 0 < row.size_bytes < _LARGEST]
        backends = sorted({row.backend for row in rows})
        for place, operation in enumerate(dict.fromkeys(row.operation for row in rows)):
            series = series_of([row for row in rows if row.operation == operation], backends)
            parts = [series[first : first + _PER_CHART] for first in range(0, len(series), _PER_CHART)][:_MOST_CHARTS]
            for part, each in enumerate(parts):
                of = f", part {part + 1} of {len(parts)}" if len(parts) > 1 else ""
                yield SweepChartInput(f"{number}-{place}-{part}", f"{cut(operation)}{of}{where}", each, len(table.runs))


def not_drawn(material: Material) -> list[str]:
    """Return a sentence on runs without charts, and one for each operation with more series than are drawn."""
    runs, drawn = len(material.tables), len(material.drawn)
    texts = [f"Charts show the first {drawn} of {runs} runs; `collbench report --csv FILE` has all."] if drawn < runs else []
    for table in material.drawn:
        rows = [row for row in material.rows(table) if 0 < row.size_bytes < _LARGEST]
        for operation in dict.fromkeys(row.operation for row in rows):
            many = len(series_of([row for row in rows if row.operation == operation], []))
            if many > _PER_CHART * _MOST_CHARTS:
                texts.append(
                    f"{cut(operation)} of {cut(table.name)} has {many} series, of which {_PER_CHART * _MOST_CHARTS} are drawn; "
                    "`collbench report --csv FILE` has all."
                )
    return texts


def series_of(rows: Sequence[Row], backends: Sequence[str]) -> list[SizeSeries]:
    """Return the series of one operation. With one series per backend, a backend has the same style in all operations."""
    names = distinguishing(rows)
    groups: dict[tuple[object, ...], dict[int, Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), {})[row.size_bytes] = row
    of_one = len({row.backend for row in rows}) == len(groups)
    return [
        SizeSeries(
            backends.index(row.backend) if of_one and row.backend in backends else number, series_name(row, names), list(sized.values())
        )
        for number, sized in enumerate(groups.values())
        for row in [next(iter(sized.values()))]
    ]


def rate_of(row: Row) -> float | None:
    """Return the bus bandwidth in bytes per second; None if there is none, for one rank, and for a value that is not valid."""
    rate = row.busbw_bytes_per_s
    return rate if row.na is None and row.ranks > 1 and rate is not None and known(rate) and _SLOWEST < rate < _FASTEST else None


def sound_interval(row: Row) -> tuple[float | None, float | None]:
    """Return the interval of the time in seconds; (None, None) if there is none that contains the time."""
    time_s, times = time_of(row), row.time_s
    if time_s is None or times is None or not (is_time(times.ci_low) and is_time(times.ci_high)):
        return None, None
    low, high = times.ci_low or 0.0, times.ci_high or 0.0
    return (low, high) if low <= time_s <= high else (None, None)


def describe_times(sheet: SweepChartInput) -> str:
    """Return what a time is and what the bars are: "the median over iterations of the slowest rank; bars are 95 % intervals …"."""
    imported = [row for row in sheet.rows if "imported" in row.flags]
    own = "the median over iterations of the slowest rank"
    if len(imported) == len(sheet.rows):
        bars = "bars are 95 % intervals, if the tool printed single times" if any(map(_has_interval, imported)) else "without intervals"
        return f"the statistic of the other tool ({_statistics(imported)}); {bars}"
    other = f" (of {plural(len(imported), 'imported row')} the statistic of the other tool: {_statistics(imported)})" if imported else ""
    if sheet.launches > 1:
        return f"{own}{other}, the median over {sheet.launches} launches; bars are 95 % intervals over launches"
    return f"{own}{other}; bars are 95 % intervals of the median within one launch, and another launch may differ by more"


def _has_interval(row: Row) -> bool:
    return row.time_s is not None and row.time_s.ci_low is not None


def _statistics(imported: Sequence[Row]) -> str:
    statistics = dict.fromkeys(cut(str(row.evidence.get("statistic") or "unknown"), 120) for row in imported)
    return " or ".join(list(statistics)[:_MOST_STATISTICS])


def state_of(row: Row) -> str:
    """Return the state of a row: "wrong", "na", "doubtful" or ""."""
    return "wrong" if row.wrong else "na" if row.na is not None else "doubtful" if doubtful(row) else ""


def remark(row: Row) -> str:
    """Return what must follow the figure of a row: "; WRONG 3", "; ? drift, bimodal"."""
    doubts = doubtful(row)
    texts = [*([wrong(row)] if row.wrong else []), *([f"? {', '.join(flag_names(doubts))}"] if doubts else [])]
    return "".join(f"; {text}" for text in texts)


def against(row: Row) -> str:
    """Return the rate versus its ceiling: "42.0 of 50.0 GB/s (84 %)", or why it has no percentage."""
    figure = of_ceiling(row)
    if figure != NOTHING:
        return figure
    flag = next((flag for flag in row.flags if flag in _WITHHOLDS), None)
    why = flag_name(flag) if flag else "" if row.ceiling is None or row.ceiling.bytes_per_s is not None else limited_by(row)
    return f"no percentage{f': {cut(why, 60)}' if why else ''}"


def missing(series: Iterable[SizeSeries]) -> str:
    """Return the series without any figure, each with its reason: "nccl: n/a (no GPU here)"."""
    texts = [f"{each.label}: {cut(not_available(each.rows[0]), 120)}" for each in series if all(row.na is not None for row in each.rows)]
    return ". ".join(texts)


# Series over the message size: lines, intervals as bars, marks for doubtful values, and a legend above.

_LETTER, _ROW, _SAMPLE = 5.9, 15, 24  # pixels of a letter, a row of the legend, a sample of a line
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 26, 40
_MOST_MARKERS = 120
_LEAST = 1.0  # pixels: smaller intervals are not drawn
_DOUBT = {"color": SOFT, "linestyle": "none", "marker": "o", "markerfacecolor": PAPER, "markeredgecolor": SOFT}
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "doubtful": ("doubtful (see flags)", _DOUBT),
    "na": ("n/a", {**_DOUBT, "marker": "x"}),
    "wrong": ("wrong data", {**_DOUBT, "marker": "X", "markerfacecolor": BAD, "markeredgecolor": BAD}),
}


@dataclass(frozen=True)
class Point:
    """A value in the units of the axis with the ends of its interval, None if unknown.

    text   the exact values
    state  "wrong", "na", "doubtful" or ""
    """

    size_bytes: int
    state: str
    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Curve:
    """A series with its points, ascending in size."""

    series: SizeSeries
    points: Sequence[Point]

    @property
    def known(self) -> list[tuple[float, float]]:
        """(x, value) of the points with a value."""
        return [(x_of_size(each.size_bytes), each.value) for each in self.points if each.value is not None]


def curves_of(series: Iterable[SizeSeries], point: Callable[[SizeSeries, Row], Point]) -> list[Curve]:
    """Return each series with the point that `point` returns for its rows."""
    return [Curve(each, [point(each, row) for row in each.rows]) for each in series]


def span(curves: Iterable[Curve]) -> tuple[float, float] | None:
    """Return the smallest and the largest value, intervals included; None if there is none."""
    ends = [end for each in curves for point in each.points if point.value is not None for end in (point.value, point.low, point.high)]
    known = [end for end in ends if end is not None]
    return (min(known), max(known)) if known else None


def chart_panel(curves: Sequence[Curve], also: Sequence[tuple[str, dict[str, Any]]] = ()) -> tuple[Figure, Axes]:
    """Return a panel with a legend above it: the series, the marks that occur, and `also`."""
    states = {point.state for each in curves for point in each.points}
    marks = [entry for state, entry in _MARKS.items() if state in states]
    entries = _placed([*((each.series.label, line(each.series.number)) for each in curves), *marks, *also])
    rows = 1 + max((row for _, row, _, _ in entries), default=-1)
    figure, axes = panel(WIDTH, HEIGHT + _ROW * rows, (_LEFT, _RIGHT, _TOP + _ROW * rows, _BOTTOM))
    for left, row, label, style in entries:
        _entry(axes, (left, HEIGHT + _ROW * (rows - row) - 9), label, style)
    return figure, axes


def draw_curves(axes: Axes, curves: Iterable[Curve], joined: bool = True) -> None:
    """Draw lines, intervals and markers. A doubtful value has an open marker, an n/a row a cross at the bottom."""
    for each in curves:
        style = line(each.series.number)
        if joined:
            _add(axes, _xs(each.points), [nan if point.value is None else point.value for point in each.points], **{**style, "marker": ""})
        _bars(axes, each)
        if len(each.points) <= _MOST_MARKERS:
            _markers(axes, each, style)


def curve_spots(axes: Axes, curves: Iterable[Curve]) -> list[Tooltip]:
    """Return a tooltip for each value, and for each n/a row at the bottom."""
    foot = axes.get_ylim()[0]
    return [
        spot
        for each in curves
        for spot in spots(axes, _xs(each.points), [_height(point, foot) for point in each.points], [point.text for point in each.points])
    ]


def _height(point: Point, foot: float) -> float:
    if point.value is not None:
        return point.value
    return foot if point.state == "na" else inf


def _xs(points: Iterable[Point]) -> list[float]:
    return [x_of_size(point.size_bytes) for point in points]


def _bars(axes: Axes, curve: Curve) -> None:
    """Draw all intervals of a series as one path; those smaller than a pixel are in the table only."""
    ends = [(x_of_size(p.size_bytes), p.low, p.high) for p in curve.points if p.low is not None and p.high is not None]
    if ends:
        heights = axes.transData.transform([(x, end) for x, *both in ends for end in both])[:, 1].reshape(-1, 2)
        seen = [each for each, (low, high) in zip(ends, heights, strict=True) if high - low >= _LEAST]
        xs = [each for x, _, _ in seen for each in (x, x, nan)]
        ys = [each for _, low, high in seen for each in (low, high, nan)]
        _add(axes, xs, ys, color=series_color(curve.series.number), linewidth=3.5, alpha=0.4, solid_capstyle="butt")


def _markers(axes: Axes, curve: Curve, style: dict[str, Any]) -> None:
    for state, own in (("", {}), ("doubtful", {"markerfacecolor": PAPER, "markeredgecolor": style["color"], "markeredgewidth": 1.3})):
        here = [point for point in curve.points if point.value is not None and point.state == state]
        _add(axes, _xs(here), [point.value or 0.0 for point in here], **{**style, "linestyle": "none", **own})
    bad = [point for point in curve.points if point.value is not None and point.state == "wrong"]
    _add(axes, _xs(bad), [point.value or 0.0 for point in bad], **{**_MARKS["wrong"][1], "markersize": 8})
    none = [point for point in curve.points if point.state == "na"]
    crosses = {**_MARKS["na"][1], "markeredgecolor": style["color"], "transform": axes.get_xaxis_transform(), "clip_on": False}
    _add(axes, _xs(none), [0.0] * len(none), **crosses)


def _add(axes: Axes, xs: Sequence[float], ys: Sequence[float], **style: Any) -> None:
    """Draw a line without changing the limits of the axes."""
    from matplotlib.lines import Line2D

    if any(map(isfinite, ys)):
        axes.add_artist(Line2D(xs, ys, **{"transform": axes.transData, **style}))


def _placed(entries: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[float, int, str, dict[str, Any]]]:
    """Return (left end in pixels, row, label, style) of each entry of the legend."""
    found, left, row = [], 4.0, 0
    for label, style in entries:
        wide = _SAMPLE + 6 + _LETTER * len(label) + 14
        if left > 4 and left + wide > WIDTH:
            left, row = 4.0, row + 1
        found.append((left, row, label, style))
        left += wide
    return found


def _entry(axes: Axes, at: tuple[float, float], label: str, style: dict[str, Any]) -> None:
    left, height = at
    figure = axes.get_figure(root=True)
    assert figure is not None
    xs = [left, left + _SAMPLE / 2, left + _SAMPLE]
    _add(axes, xs, [height] * 3, **{**style, "transform": None, "clip_on": False, "markevery": [1]})
    write(figure, (left + _SAMPLE + 6, height - 3.5), label, size=10)


def joined_points(curves: Iterable[Curve]) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of each line."""
    return (each.known for each in curves)


# The α–β fits as curves, with a mark and a label where another regime begins.

_STEP = 1  # doublings of the size between two points of a curve


def fits_of(sheet: SweepChartInput) -> list[tuple[SizeSeries, LineFit]]:
    """Return each series that can be fitted, with its fit."""
    from collbench.analysis.latency import line_fits

    return [(each, fit) for each in sheet.series for fit in line_fits(each.rows)]


def draw_fits(axes: Axes, fits: Sequence[tuple[SizeSeries, LineFit]], lines: Sequence[Points]) -> None:
    """Draw the curves, a vertical mark at each switch, and a label beside it if there is room (the table has all)."""
    labels, curves = [], list(lines)
    for series, fit in fits:
        color = series_color(series.number)
        for regime in fit.fit.regimes:
            points = list(_points(regime))
            if points:
                curves.append(points)
                axes.plot(*zip(*points, strict=True), color=color, linewidth=1.2)
        for size in fit.switches:
            at = (x_of_size(size), 1e6 * fit.fit.time_s(size))
            if _drawable(at[1]):
                axes.plot(*at, linestyle="none", marker="|", markersize=22, markeredgewidth=1.5, color=color)
                labels.append(LineLabel(f"{series.label}: {format_size(size)}", color, [at]))
    write_labels(axes, labels, curves)


def _points(regime: FitSegment) -> Iterator[tuple[float, float]]:
    """Yield the points (x, µs) of a regime's line where the time is above 0."""
    first, last = x_of_size(int(regime.first)), x_of_size(int(regime.last))
    steps = max(1, round((last - first) / _STEP))
    for step in range(steps + 1):
        x = first + (last - first) * step / steps
        time = 1e6 * regime.time_s(2**x)
        if _drawable(time):
            yield x, time


def _drawable(time: float) -> bool:
    return isfinite(time) and time > 0


# Rows as tables of the page: all columns of the text report, or sizes × series.

_MOST = 1000  # rows of one table; --csv has more
_LONGEST = 160
_ALWAYS = frozenset({"backend", "time µs", "95 % interval", "busbw GB/s", "of expected", "flags"})


def record_table(rows: Sequence[Row]) -> tuple[Table, str]:
    """Return the rows with the columns of the text report that differ, and a text with those that are the same."""
    plan = PlanSummary.of(rows)
    columns = [column for column in shown_columns(plan) if column.title not in ("operation", "size")]
    rows, more = rows[:_MOST], len(rows) - _MOST
    texts = {column.title: [_text(column, row) for row in rows] for column in columns}
    kept = [column for column in columns if column.title in _ALWAYS or len(set(texts[column.title])) > 1]
    same = [f"{column.title} {texts[column.title][0]}" for column in columns if column not in kept and texts[column.title][0] != NOTHING]
    records = list(zip(map(size_of, rows), *(texts[column.title] for column in kept), strict=True))
    right = frozenset({0, *(place for place, column in enumerate(kept, start=1) if column.right)})
    facts = [same_for_all(plan), *same, *([f"{plural(more, 'more row')}: `collbench report --csv FILE` has all"] if more > 0 else [])]
    states = {number: state for number, row in enumerate(rows) if (state := state_of(row))}
    return Table(["size", *(column.title for column in kept)], records, right, states), " · ".join(filter(None, facts))


def size_table(sheet: SweepChartInput, series: Sequence[SizeSeries], text: Callable[[SizeSeries, Row], str]) -> Table:
    """Return a table with a row for each size and a column for each series; a dash if a series lacks the size."""
    sizes = sheet.sizes[:_MOST]
    by_size = [{row.size_bytes: row for row in each.rows} for each in series]
    records = [
        [
            format_size(size),
            *(text(each, rows[size]) if size in rows else NOTHING for each, rows in zip(series, by_size, strict=True)),
        ]
        for size in sizes
    ]
    return Table(["size", *(each.label for each in series)], records, frozenset(range(len(series) + 1)))


def _text(column: CaseColumn, row: Row) -> str:
    """Return a case of the table; an n/a row has its reason in place of the flags, and no figures."""
    if row.na is None:
        text = remarks(row) or NOTHING if column.title == "flags" else column.text(row)
    elif column.title == "flags":
        text = not_available(row)
    else:
        text = NOTHING if column.figure else column.text(row)
    return cut(text, _LONGEST)


# Time over size: small messages, and α–β fits with the sizes at which the regime switches.

_SMALL = 64 << 10  # bytes: up to this size, the time is mostly latency
_TEXT = "For small messages, latency matters more than bandwidth. The fit t = α + size / rate gives both, in up to three regimes."


def section_latencies(material: Material) -> Section | None:
    """Return the section, or None if no run has a time."""
    charts = [chart for sheet in sheets(material) for chart in (_small(sheet), _fitted(sheet)) if chart is not None]
    tables = _without_size(material)
    return Section("latencies", "Latency", [_TEXT] if charts else [], tables, charts) if charts or tables else None


def _small(sheet: SweepChartInput) -> Chart | None:
    """Return the chart of the times of small messages; None if there are none."""
    series = [SizeSeries(each.number, each.label, [row for row in each.rows if row.size_bytes <= _SMALL]) for each in sheet.series]
    small = SweepChartInput(sheet.key, sheet.title, [each for each in series if each.rows], sheet.launches)
    curves = curves_of(small.series, _point)
    reach = span(curves)
    if reach is None:
        return None
    key, title = f"latencies-{sheet.key}", f"{sheet.title}: time of small messages"
    figure, axes = chart_panel(curves)
    _scale(axes, small.sizes, reach)
    draw_curves(axes, curves)
    table = size_table(small, small.series, lambda _, row: _case(row))
    return Chart(key, title, _caption(small, curves), _method(sheet), svg_of(figure, key, title), table, curve_spots(axes, curves))


def _fitted(sheet: SweepChartInput) -> Chart | None:
    """Return the chart of all times with the fit of each series; None if no series can be fitted."""
    fits = fits_of(sheet)
    if not fits:
        return None
    curves = curves_of(sheet.series, _point)
    key, title = f"fits-{sheet.key}", f"{sheet.title}: latency and bandwidth (α–β fit)"
    figure, axes = chart_panel(curves)
    _scale(axes, sheet.sizes, span(curves) or (1.0, 1.0))
    draw_curves(axes, curves, joined=False)
    draw_fits(axes, fits, list(joined_points(curves)))
    table = Table(["series", *FIT_TITLES], [[each.label, *fit_cases(fit)] for each, fit in fits], frozenset(range(2, 6)))
    drawing = svg_of(figure, key, title)
    return Chart(key, title, _caption_fits(fits), _method_fits([fit for _, fit in fits]), drawing, table, curve_spots(axes, curves))


def _point(series: SizeSeries, row: Row) -> Point:
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


def _case(row: Row) -> str:
    """Return the time with its interval, or why there is none."""
    if row.na is not None:
        return cut(not_available(row), 80)
    within = interval(row)
    return f"{times(row)}{'' if within == NOTHING else f' ({within})'}"


def _caption(sheet: SweepChartInput, curves: Sequence[Curve]) -> str:
    least = [text for each in curves if (text := _least(each))]
    return ". ".join(text for text in ("; ".join(least), missing(sheet.series)) if text) + "."


def _least(curve: Curve) -> str:
    """Return the time of the smallest message."""
    row = next((row for row in curve.series.rows if time_of(row) is not None), None)
    if row is None:
        return ""
    mark = "? " if state_of(row) else ""
    return f"{curve.series.label} takes {mark}{times(row, ' µs')} for {format_size(row.size_bytes)}"


def _method(sheet: SweepChartInput) -> str:
    return f"The time of a message is {describe_times(sheet)}. Both axes are logarithmic."


def _caption_fits(fits: Sequence[tuple[SizeSeries, LineFit]]) -> str:
    return "; ".join(_caption_fit(each, fit) for each, fit in fits) + "."


def _caption_fit(series: SizeSeries, fit: LineFit) -> str:
    alpha, rate = fit_values(fit)
    switches = " and ".join(map(format_size, fit.switches))
    return f"{series.label}: α {alpha} µs, asymptotic rate {rate} GB/s{f', another regime from {switches} on' if switches else ''}"


def _method_fits(fits: Sequence[LineFit]) -> str:
    left = left_out(fits)
    return (
        "t = α + size / rate, by weighted least squares of relative errors in up to three regimes, chosen by BIC; 95 % intervals are in "
        "brackets. A vertical mark shows where another regime begins: a change of protocol or algorithm. n½ is the size at which half of "
        "the rate is reached. Sizes more than 10 % off may have a bad choice of algorithm."
        + (f" {cut('; '.join(left), 600)}." if left else "")
    )


def _without_size(material: Material) -> list[tuple[str, Table]]:
    """Return the times of operations without bytes: a table for each table of runs."""
    found = []
    for table in material.drawn:
        rows = [row for row in material.rows(table) if row.size_bytes == 0]
        if rows:
            where = f" ({cut(table.name)})" if len(material.tables) > 1 else ""
            records = [[cut(name_of(row)), value_of(row, "backend"), _case(row), _flags(row)] for row in rows]
            states = {number: state for number, row in enumerate(rows) if (state := state_of(row))}
            caption = f"Operations without bytes{where}"
            found.append((caption, Table(["operation", "backend", "time µs (95 % interval)", "flags"], records, frozenset({2}), states)))
    return found


def _flags(row: Row) -> str:
    return cut(", ".join(flag_names(row.flags)), 120) or NOTHING


# The rates with which bus bandwidths are compared, as labeled lines: ring reference, hard limit, measured reference.

_KINDS = {"measured": "measured reference", "given": "given ceiling", "simulated": "simulated reference"}
_EQUAL = 1.01
_LIMITS_FASTEST = 1e16  # bytes per second: a larger rate is not valid


@dataclass
class RateLimit:
    """A rate by message size, in bytes per second. `kinds` has the kinds of limit, `backends` the backends with rows that have it."""

    kinds: list[str]
    by: str
    sources: list[str]
    curve: dict[int, float] = field(default_factory=dict)
    backends: list[str] = field(default_factory=list)

    @property
    def hard(self) -> bool:
        """Whether no rate can exceed it."""
        return "hard limit" in self.kinds

    @property
    def color(self) -> str:
        """The color of the hard limit, or of a reference."""
        return BOUND if self.hard else LIMIT

    @property
    def label(self) -> str:
        """ "ring reference 50.0 GB/s: NIC 4×100 Gb/s"."""
        low, high = (format_rate(pick(self.curve.values())) for pick in (min, max))
        rate = low if low == high else f"{low}–{high}"
        by = f": {self.by}" if self.by else ""
        return f"{' and '.join(self.kinds)} {rate} GB/s{by}"

    @property
    def points(self) -> list[tuple[float, float]]:
        """(x, GB/s), ascending in size."""
        return [(x_of_size(size), rate / 1e9) for size, rate in sorted(self.curve.items())]


def limits(rows: Iterable[Row]) -> list[RateLimit]:
    """Return the ceilings of the rows, each once (same kind, link and rates). A hard limit that is also the reference has both kinds."""
    found: list[RateLimit] = []
    for row in rows:
        for ceiling, kind in ((row.ceiling, None), (row.hard_bound, "hard limit")):
            rate = ceiling.bytes_per_s if ceiling else None
            if ceiling is not None and rate is not None and known(rate) and rate < _LIMITS_FASTEST and _is_comparable(row):
                _add_limits(found, row, ceiling, kind or kind_of(ceiling), rate)
    return _merged(found)


def kind_of(ceiling: Ceiling) -> str:
    """Return the name of its kind: "ring reference", "hard limit", "measured reference", "given ceiling"."""
    return _KINDS.get(ceiling.kind, "hard limit" if ceiling.model == "bound" else "ring reference")


def _is_comparable(row: Row) -> bool:
    """Return whether the row may be compared with its ceiling: it has a percentage, or exceeds the hard limit."""
    return row.percent_of_ceiling is not None or "above_bound" in row.flags


def _add_limits(found: list[RateLimit], row: Row, ceiling: Ceiling, kind: str, rate: float) -> None:
    by = "" if ceiling.kind == "given" else cut(ceiling.limited_by, 80)  # a given ceiling names no link
    same = (each for each in found if each.kinds == [kind] and each.by == by and _is_equal(each.curve.get(row.size_bytes, rate), rate))
    limit = next(same, None)
    if limit is None:
        limit = RateLimit([kind], by, [cut(ceiling.source, 120)])
        found.append(limit)
    limit.curve.setdefault(row.size_bytes, rate)
    if row.backend not in limit.backends:
        limit.backends.append(row.backend)


def _merged(found: list[RateLimit]) -> list[RateLimit]:
    """Return the limits with reference and hard limit of the same link and rate combined, and backends added to equal names."""
    kept: list[RateLimit] = []
    for limit in found:
        same = next((each for each in kept if each.by == limit.by and each.kinds != limit.kinds and _same_curve(each, limit)), None)
        if same is None:
            kept.append(limit)
        else:
            same.kinds += limit.kinds
    names = [(limit.kinds, limit.by) for limit in kept]
    for limit in kept:
        if names.count((limit.kinds, limit.by)) > 1:
            limit.by = f"{limit.by} ({cut(', '.join(limit.backends))})".strip()
    return kept


def _same_curve(one: RateLimit, other: RateLimit) -> bool:
    common = one.curve.keys() & other.curve.keys()
    return bool(common) and all(_is_equal(one.curve[size], other.curve[size]) for size in common)


def _is_equal(one: float, other: float) -> bool:
    return max(one, other) <= _EQUAL * min(one, other)


# Bus bandwidth over size, with the ring reference and the hard limit.

_RATES_TEXT = (
    "Bus bandwidth is size / time × the bus factor of the operation, so that it can be compared with the rate of a link in one direction."
)


def section_rates(material: Material) -> Section | None:
    """Return the section, or None if no run has a bandwidth."""
    charts = [chart for sheet in sheets(material) if (chart := _chart(sheet)) is not None]
    return Section("rates", "Bandwidth over message size", [_RATES_TEXT, *not_drawn(material)], (), charts) if charts else None


def _chart(sheet: SweepChartInput) -> Chart | None:
    """Return the chart of the bandwidths; None if there are none."""
    curves = curves_of(sheet.series, _point_rates)
    if span(curves) is None:
        return None
    key, title = f"rates-{sheet.key}", f"{sheet.title}: bus bandwidth"
    table, same = record_table(sheet.rows)
    found = limits(sheet.rows)
    figure, axes = chart_panel(curves)
    _scale_rates(axes, sheet, curves, found)
    for limit in found:
        axes.plot(*zip(*_drawn(axes, limit), strict=True), color=limit.color, linewidth=1.4, dashes=(7, 2) if limit.hard else (2, 1.5))
    draw_curves(axes, curves)
    write_labels(axes, [LineLabel(limit.label, limit.color, _drawn(axes, limit)) for limit in found], list(joined_points(curves)))
    hover = [*curve_spots(axes, curves), *(spot for limit in found for spot in _limit_spots(axes, limit))]
    caption, method = _caption_rates(sheet, curves, found), _method_rates(sheet, found, same)
    return Chart(key, title, caption, method, svg_of(figure, key, title), table, hover)


def _point_rates(series: SizeSeries, row: Row) -> Point:
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
    """Return the interval of the time as bandwidths: the longest time is the lowest rate."""
    (shortest, longest), time_s = sound_interval(row), time_of(row)
    if shortest is None or longest is None or time_s is None:
        return None, None
    return rate * time_s / longest, rate * time_s / shortest


def _scale_rates(axes: Any, sheet: SweepChartInput, curves: list[Curve], found: list[RateLimit]) -> None:
    """Set the limits of the axes: y from 0 to slightly above the largest value."""
    reach = span(curves)
    values = [rate for limit in found for _, rate in limit.points]
    size_axis(axes, sheet.sizes)
    axes.set_ylim(0, 1.1 * max([reach[1] if reach else 1.0, *values]))
    axes.set_ylabel("bus bandwidth, GB/s")


def _drawn(axes: Any, limit: RateLimit) -> list[tuple[float, float]]:
    """Return the points of a limit; a constant one extends over the whole axis."""
    points = limit.points
    left, right = axes.get_xlim()
    return [(left, points[0][1]), (right, points[-1][1])] if len({rate for _, rate in points}) == 1 else points


def _limit_spots(axes: Any, limit: RateLimit) -> list[Any]:
    """Return tooltips of a limit: at each of its rates, or a single one if it is constant."""
    points = limit.points
    if len({rate for _, rate in points}) == 1:
        points = points[len(points) // 2 :][:1]
    return spots(axes, [x for x, _ in points], [y for _, y in points], [f"{limit.label}; here {_gbs(y)} GB/s" for _, y in points])


def _gbs(value: float) -> str:
    return format_rate(value * 1e9)


def _caption_rates(sheet: SweepChartInput, curves: list[Curve], found: list[RateLimit]) -> str:
    """Return the best value of each series, the series without values, and the limits."""
    best = [text for each in curves if (text := _best(each))]
    nothing = missing(sheet.series)
    limit = f"Lines: {'; '.join(each.label for each in found)}" if found else "The expected rate is unknown"
    return ". ".join(text for text in ("; ".join(best), nothing, limit) if text) + "."


def _best(curve: Curve) -> str:
    rows = [row for row in curve.series.rows if rate_of(row) is not None and not row.wrong]
    if not rows:
        return ""
    comparable = [row for row in rows if row.percent_of_ceiling is not None]  # a rate above the hard limit is not a peak
    best = max(comparable or rows, key=lambda row: rate_of(row) or 0.0)
    mark = "? " if state_of(best) else ""
    return f"{curve.series.label} reaches {mark}{_figure(best)} at {format_size(best.size_bytes)}"


def _figure(row: Row) -> str:
    rate = of_ceiling(row)
    return f"{format_rate(row.busbw_bytes_per_s or 0.0)} GB/s ({against(row)})" if rate == NOTHING else rate


def _method_rates(sheet: SweepChartInput, found: list[RateLimit], same: str) -> str:
    first = next((row for row in sheet.rows if rate_of(row) is not None), sheet.rows[0])
    factor = (first.busbw_bytes_per_s or 0) / first.algbw_bytes_per_s if first.algbw_bytes_per_s else None
    times = f" × {factor:.6g} (the bus factor of {cut(first.operation)} over {first.ranks} ranks)" if factor else ""
    sources = dict.fromkeys(f"{each.by or each.kinds[0]}: {source}" for each in found for source in each.sources if source)
    return (
        f"Bus bandwidth = size / time{times}, in GB/s of 1e9 bytes. The time is {describe_times(sheet)}. "
        f"{'Sources of the lines: ' + '; '.join(sources) + '. ' if sources else ''}All rows: {same}."
    )
