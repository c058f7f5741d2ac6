"""The main chart of each operation: bus bandwidth or time over the message size, all backends and runs on the same axes.

A chart has a picture, which needs no script, and the same data for the page's script, which draws it again: with a choice between
bandwidth and time, linear and logarithmic, zoom, series to show or hide, and one tooltip with all series at a size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.launches import Launches, case_of, is_time, known, time_of
from collbench.machine.peak.ceiling import LEAST_BYTES, Ceiling
from collbench.report.cases import (
    NOTHING,
    doubtful,
    expected_time,
    limited_by,
    not_available,
    of_ceiling,
    of_expected_time,
    times,
    two_modes,
    value_of,
    wrong,
)
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
from collbench.results.flags import flag_names
from collbench.results.quality import UNRELIABLE, is_unreliable
from collbench.results.row import SERIES, CaseKey, Row
from collbench.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.gating.judge import TypicalTime

MOST_LINES, _MOST_NAMED = 16, 6
_LARGEST = 1 << 62  # bytes: a larger size is not valid
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second: the range of valid rates
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 760, 340, 56, 132, 46  # pixels
_LINE = 26  # pixels between the labels of two limits
_FAR = 64  # between sizes further apart by this factor nothing is known, so no line joins them
_EQUAL = 1.01  # two limits within this factor are one line


@dataclass(frozen=True)
class Value:
    """A figure with its 95 % interval, in GB/s or µs."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SizePoint:
    """What one row shows at its size. state: "", "doubtful", "wrong" or "na"; text: the exact figures; unreliable: its quality.

    expected_rate, expected_time: by the model of its expected time, in GB/s and µs
    """

    size_bytes: int
    rate: Value | None
    time: Value | None
    state: str
    text: str
    unreliable: bool = False
    expected_rate: float | None = None
    expected_time: float | None = None


@dataclass(frozen=True)
class SizeLine:
    """Rows of one run that differ in size only, ascending. `number` is that of its style."""

    name: str
    number: int
    points: Sequence[SizePoint]


@dataclass
class LimitLine:
    """A rate that measured bandwidths are compared with, in GB/s by size. kind: "expected" or "hard limit"; what: what limits."""

    kind: str
    what: str
    rates: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return "expected 7.61 GB/s: memory copy (measured)"."""
        low, high = (format_rate(pick(self.rates.values()) * 1e9) for pick in (min, max))
        return f"{self.kind} {low if low == high else f'{low}–{high}'} GB/s{f': {self.what}' if self.what else ''}"

    def rates_at(self, sizes: Sequence[int]) -> dict[int, float]:
        """Return the rates to draw: one that is equal at two sizes or more holds at all of them."""
        constant = len(self.rates) > 1 and len({round(rate, 9) for rate in self.rates.values()}) == 1
        return dict.fromkeys(sizes, next(iter(self.rates.values()))) if constant else self.rates

    @property
    def style(self) -> str:
        """Return the class of its color."""
        return "bound" if self.kind == "hard limit" else "limit"


@dataclass(frozen=True)
class SizeChart:
    """The chart of one operation. has_rate: whether bandwidth means something; left_out: series that are not drawn."""

    key: str
    operation: str
    lines: Sequence[SizeLine]
    limits: Sequence[LimitLine]
    has_rate: bool
    left_out: int = 0

    @property
    def sizes(self) -> list[int]:
        """Return the message sizes in bytes, ascending."""
        return sorted({point.size_bytes for line in self.lines for point in line.points})

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws: for each series its look, and a value per size, null where there is none."""
        sizes, labels = self.sizes, [format_size(size) for size in self.sizes]
        drawn = [(limit, limit.rates_at(sizes)) for limit in self.limits]
        limits = [
            {"name": limit.name, "kind": limit.kind, "style": limit.style, "rate": [*map(rates.get, sizes)]} for limit, rates in drawn
        ]
        series = [_series_data(line, sizes) for line in self.lines]
        about = {"kind": "sizes", "sizes": sizes, "labels": labels, "rate": self.has_rate, "cross": CROSS, "far": _FAR}
        return {**about, "series": series, "limits": limits}

    def picture(self) -> Picture:
        """Return the picture: bandwidth on a linear axis, or time on a logarithmic one, with intervals, limits and a legend."""
        picture = Picture(_WIDTH, _HEIGHT)
        top = draw_legend(picture, [(line.name, line.number) for line in self.lines], _LEFT, 14)
        picture.height += top
        x, y = size_scale(self.sizes, _LEFT, _WIDTH - _RIGHT), self._scale(top + 28, _HEIGHT + top - _BOTTOM)
        picture.axes(x, y)
        if self.has_rate:
            self._draw_limits(picture, x, y)
        for line in self.lines:
            _draw_line(picture, x, y, line, self.has_rate)
        return picture

    def _scale(self, top: float, bottom: float) -> AxisScale:
        values = [point.rate if self.has_rate else point.time for line in self.lines for point in line.points]
        ends = [end for each in values if each for end in (each.value, each.low, each.high) if end is not None]
        ends += [end for line in self.lines for point in line.points if (end := self._expected(point)) is not None]
        if not self.has_rate:
            return log_scale(min(ends, default=1.0) / 1.3, max(ends, default=1.0) * 1.3, bottom, top, "time, µs")
        ends += [rate for limit in self.limits for rate in limit.rates.values()]
        return linear_scale(0.0, 1.05 * max(ends, default=1.0), bottom, top, "bus bandwidth, GB/s")

    def _expected(self, point: SizePoint) -> float | None:
        return point.expected_rate if self.has_rate else point.expected_time

    def _draw_limits(self, picture: Picture, x: AxisScale, y: AxisScale) -> None:
        """Draw the limits, with as many labels in the margin as there is room for."""
        ends = [limit.rates[max(limit.rates)] for limit in self.limits]
        low, high = y.end + 8, y.start - 4
        shown = range(min(len(ends), int((high - low) / _LINE) + 1))
        heights = apart([y.at(ends[place]) for place in shown], _LINE, low, high)
        for limit in self.limits:
            points = [(size, (x.at(size), y.at(rate))) for size, rate in sorted(limit.rates_at(self.sizes).items())]
            path = list(_interrupted(points))
            (first, height), (last, _) = points[0][1], points[-1][1]
            if {level for _, (_, level) in points} == {height}:  # a level line, across the chart if it holds at all sizes
                left, right = (x.start, x.end) if len(points) == len(self.sizes) else (first - 12, last + 12)
                path = [(left, height), (right, height)]
            picture.line(path, f"{limit.style} dashed")
        for place, height in zip(shown, heights, strict=True):
            limit = self.limits[place]
            picture.text(x.end + 8, height, f"{limit.kind} {format_rate(ends[place] * 1e9)}", classes=limit.style)
            picture.text(x.end + 8, height + 12, short(limit.what, 19), classes=f"{limit.style} small")


def size_charts(material: Material) -> list[SizeChart]:
    """Return a chart for each operation that moves bytes, in print order."""
    names = _distinct_names(material.drawn)
    every = [(name, row) for name, table in zip(names, material.drawn, strict=True) for row in material.rows(table)]
    rows = [(name, row) for name, row in every if 0 < row.size_bytes < _LARGEST]
    backends = list(dict.fromkeys(row.backend for _, row in rows))
    charts = []
    for number, operation in enumerate(dict.fromkeys(row.operation for _, row in rows)):
        those = [(name, row) for name, row in rows if row.operation == operation]
        charts.append(_chart(f"sizes-{number}", operation, those, backends, material.typical_times))
    return charts


def _distinct_names(tables: Sequence[Launches]) -> list[str]:
    """Return a name for each table, at most 24 characters: that of its folder; of equal ones with the folder above, or with a number."""
    names = [table.name for table in tables]
    longer = ["/".join(table.runs[0].path.resolve().parts[-2:]) if names.count(table.name) > 1 else table.name for table in tables]
    cut = [short(name, 24) for name in longer]
    return [f"{short(name, 20)} #{place + 1}" if cut.count(name) > 1 else name for place, name in enumerate(cut)]


def _chart(
    key: str, operation: str, named: Sequence[tuple[str, Row]], backends: Sequence[str], baseline: Mapping[CaseKey, TypicalTime]
) -> SizeChart:
    """Return the chart of an operation from (run, row). A backend with one line per run has the style of its place in `backends`."""
    rows, runs = [row for _, row in named], list(dict.fromkeys(run for run, _ in named))
    differing = [name for name in SERIES if name == "backend" or (name != "operation" and len({getattr(row, name) for row in rows}) > 1)]
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    for run, row in named:
        groups.setdefault((run, *(getattr(row, name) for name in differing)), {})[row.size_bytes] = row
    is_one_each = len(groups) == len({(run, row.backend) for run, row in named})
    lines: list[SizeLine] = []
    for (run, *_), sized in groups.items():
        first = next(iter(sized.values()))
        name = short(" ".join([*_series_words(first, differing), *([f"({run})"] if len(runs) > 1 else [])]), 60)
        number = backends.index(first.backend) + runs.index(run) * len(backends) if is_one_each else len(lines)
        lines.append(SizeLine(name, number, [_point(sized[size]) for size in sorted(sized)]))
    lines = [*_baseline_lines(rows, differing, baseline, max((line.number for line in lines), default=0) + 1), *lines]
    has_rate = any(point.rate for line in lines for point in line.points) and not all(is_shown_as_time(row) for row in rows)
    return SizeChart(key, operation, lines[:MOST_LINES], _limits(rows) if has_rate else [], has_rate, max(0, len(lines) - MOST_LINES))


def _series_words(row: Row, differing: Sequence[str]) -> list[str]:
    return [text for name in differing if (text := value_of(row, name)) != NOTHING]


def _baseline_lines(rows: Sequence[Row], differing: Sequence[str], baseline: Mapping[CaseKey, TypicalTime], number: int) -> list[SizeLine]:
    """Return the baseline's times of the measured cases, with what chance explains as the band; [] without a baseline."""
    groups: dict[str, dict[int, SizePoint]] = {}
    for row in rows:
        known, time_s, rate = baseline.get(case_of(row)), time_of(row), rate_of(row)
        if known is None or time_s is None:
            continue
        of_rate = None if rate is None else _banded(rate * time_s / known.time_s / 1e9, known.limit)
        limit = "not judged" if known.limit is None else f"noise limit {100 * (known.limit - 1):+.1f} %"
        shown = "" if of_rate is None else f"{format_rate(1e9 * of_rate.value)} GB/s, "
        text = f"{shown}{format_time(known.time_s)} µs, {limit}"
        point = SizePoint(row.size_bytes, of_rate, _banded(1e6 * known.time_s, known.limit), "", text)
        groups.setdefault(short(" ".join(_series_words(row, differing)), 50) + " baseline", {})[row.size_bytes] = point
    return [SizeLine(name, number + place, [sized[at] for at in sorted(sized)]) for place, (name, sized) in enumerate(groups.items())]


def _banded(value: float, limit: float | None) -> Value:
    return Value(value) if limit is None else Value(value, value / limit, value * limit)


def _point(row: Row) -> SizePoint:
    state = "wrong" if row.wrong else "na" if row.na is not None else "doubtful" if doubtful(row) else ""
    time_s, rate = time_of(row), rate_of(row)
    low, high = sound_interval(row)
    time = None if time_s is None else Value(1e6 * time_s, low and 1e6 * low, high and 1e6 * high)
    of_rate = None
    if rate is not None and time_s is not None:
        of_rate = Value(rate / 1e9, *(rate * time_s / end / 1e9 if end else None for end in (high, low)))
    text = short("; ".join([_figures(row), *_remarks(row)]), 400)
    unreliable = row.na is None and is_unreliable(row)
    expected_s = row.expectation.expected_time_s if row.expectation is not None else None
    if time_s is None or not expected_s:
        return SizePoint(row.size_bytes, of_rate, time, state, text, unreliable)
    expected_rate = None if rate is None else rate * time_s / expected_s / 1e9
    return SizePoint(row.size_bytes, of_rate, time, state, text, unreliable, expected_rate, 1e6 * expected_s)


def _figures(row: Row) -> str:
    """Return the exact figures: "42.0 of 50.0 GB/s (84 %), 398.1 µs [391.0, 402.2]", or why there are none."""
    if row.na is not None:
        return short(not_available(row), 160)
    share, rate = of_ceiling(row), rate_of(row)
    shown = share if share != NOTHING else f"{format_rate(rate)} GB/s" if rate is not None else ""
    low, high = sound_interval(row)
    within = "" if low is None or high is None else f" [{format_time(low)}, {format_time(high)}]"
    time_s = time_of(row)
    if time_s is None:
        time = "no time"
    elif two_modes(row):  # the interval is that of the median, which neither value is
        time = f"median {format_time(time_s)} µs{within}; two values: {times(row, ' µs')}"
    else:
        time = f"{times(row, ' µs')}{within}"
    return ", ".join(part for part in (shown, time, _of_expectation(row)) if part)


def _of_expectation(row: Row) -> str:
    """Return "84 % of the expected time 334.1 µs"; only the expected time for a row that is not compared with it."""
    if expected_time(row) == NOTHING:
        return ""
    share = of_expected_time(row)
    return f"expected {expected_time(row)} µs" if share == NOTHING else f"{share} of the expected time {expected_time(row)} µs"


def _remarks(row: Row) -> list[str]:
    return [*([wrong(row)] if row.wrong else []), *([f"? {', '.join(flag_names(found))}"] if (found := doubtful(row)) else [])]


def rate_of(row: Row) -> float | None:
    """Return the bus bandwidth in bytes per second; None if there is none, for one rank, and for a value that is not valid."""
    rate = row.busbw_bytes_per_s
    return rate if row.na is None and row.ranks > 1 and rate is not None and known(rate) and _SLOWEST < rate < _FASTEST else None


def sound_interval(row: Row) -> tuple[float | None, float | None]:
    """Return the interval of the time in seconds; (None, None) if there is none that contains the time."""
    time_s, found = time_of(row), row.time_s
    if time_s is None or found is None or not (is_time(found.ci_low) and is_time(found.ci_high)):
        return None, None
    low, high = found.ci_low or 0.0, found.ci_high or 0.0
    return (low, high) if low <= time_s <= high else (None, None)


def _limits(rows: Iterable[Row]) -> list[LimitLine]:
    """Return the expected rates and the hard limits, each rate once, with the text of its first row."""
    found: list[LimitLine] = []
    for row in rows:
        for ceiling, kind in ((row.ceiling, "expected"), (row.hard_bound, "hard limit")):
            rate = None if ceiling is None else ceiling.bytes_per_s
            is_compared = row.comparison is not None or "above_bound" in row.flags
            if ceiling is not None and rate and is_compared and known(rate) and rate < _FASTEST:
                _add_limit(found, row, ceiling, kind, rate / 1e9)
    shown: list[LimitLine] = []
    for limit in sorted(found, key=lambda each: each.kind != "expected"):
        same = next((each for each in shown if _is_equal(limit.rates, each.rates)), None)
        if same is None:
            shown.append(limit)
        elif same.kind == limit.kind:
            same.rates = limit.rates | same.rates
    return shown


def _add_limit(found: list[LimitLine], row: Row, ceiling: Ceiling, kind: str, rate: float) -> None:
    what = short(_what_limits(row, ceiling) if kind == "expected" else ceiling.limited_by, 80) if ceiling.kind != "given" else ""
    new = LimitLine(kind, what, {row.size_bytes: rate})
    alike = [each for each in found if (each.kind, each.what) == (kind, what)]
    same = next((each for each in alike if row.size_bytes not in each.rates or _is_equal(each.rates, new.rates)), None)
    if same is None:
        found.append(new)
    else:
        same.rates.setdefault(row.size_bytes, rate)


def _what_limits(row: Row, ceiling: Ceiling) -> str:
    """Return what limits, with the kind of figure; without the range of its measurements, which differs from size to size."""
    return limited_by(row.compared_with(replace(ceiling, low_bytes_per_s=None, high_bytes_per_s=None), row.hard_bound, 0.0))


def _is_equal(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Return whether two limits have equal rates at the sizes that both have, of which there are some."""
    common = one.keys() & other.keys()
    return bool(common) and all(max(one[s], other[s]) <= _EQUAL * min(one[s], other[s]) for s in common)


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
        if before and size > _FAR * before:
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
    rows = [(short(run, 200), row.operation, row.backend, _figures(row), "; ".join(_remarks(row))) for run, row in without_size]
    tables = [("Operations without bytes", Table(["run", "operation", "backend", "time", "remarks"], rows))] if rows else []
    more = "more series are in `collbench report --csv FILE`."
    texts = [f"{short(each.operation, 60)}: {each.left_out} {more}" for each in shown if each.left_out]
    return Section("curves", "Every operation", texts, tables, [to_chart(each) for each in shown]) if rows or shown else None


def to_chart(chart: SizeChart) -> Chart:
    """Return the chart as the page shows it, with its values as a table."""
    title = f"{short(chart.operation, 60)}: {'bus bandwidth' if chart.has_rate else 'time'} over message size"
    drawing = chart.picture().markup(title)
    return Chart(chart.key, title, _caption(chart), _METHOD, drawing, _table(chart), data=chart.data(), wide=True)


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
