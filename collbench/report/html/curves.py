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
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import NOTHING, doubtful, limited_by, not_available, of_ceiling, times, value_of, wrong
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import AxisScale, Picture, apart, draw_legend, linear_scale, log_scale, series_classes, size_scale
from collbench.report.material import Material
from collbench.results.flags import flag_names
from collbench.results.row import SERIES, CaseKey, Row
from collbench.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.gate.judge import TypicalTime

MOST_LINES, _MOST_NAMED = 16, 6
_LARGEST = 1 << 62  # bytes: a larger size is not valid
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second: the range of valid rates
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 760, 340, 56, 132, 46  # pixels
_LINE = 26  # pixels between the labels of two limits
_EQUAL = 1.01  # two limits within this factor are one line


@dataclass(frozen=True)
class Value:
    """A figure with its 95 % interval, in GB/s or µs."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SizePoint:
    """What one row shows at its size. state: "", "doubtful", "wrong" or "na"; text: the exact figures."""

    size_bytes: int
    rate: Value | None
    time: Value | None
    state: str
    text: str


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
        """Return what the page's script draws: for each series a value per size, null where there is none."""
        sizes = self.sizes
        return {
            "kind": "sizes",
            "sizes": sizes,
            "labels": [format_size(size) for size in sizes],
            "rate": self.has_rate,
            "series": [_series_data(line, sizes) for line in self.lines],
            "limits": [
                {"name": limit.name, "kind": limit.kind, "style": limit.style, "rate": [rates.get(size) for size in sizes]}
                for limit in self.limits
                for rates in [limit.rates_at(sizes)]
            ],
        }

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
        ends = [
            end
            for line in self.lines
            for point in line.points
            if (value := point.rate if self.has_rate else point.time) is not None
            for end in (value.value, value.low, value.high)
            if end is not None
        ]
        if not self.has_rate:
            return log_scale(min(ends, default=1.0) / 1.3, max(ends, default=1.0) * 1.3, bottom, top, "time, µs")
        ends += [rate for limit in self.limits for rate in limit.rates.values()]
        return linear_scale(0.0, 1.05 * max(ends, default=1.0), bottom, top, "bus bandwidth, GB/s")

    def _draw_limits(self, picture: Picture, x: AxisScale, y: AxisScale) -> None:
        """Draw the limits, with as many labels in the margin as there is room for."""
        ends = [limit.rates[max(limit.rates)] for limit in self.limits]
        low, high = y.end + 8, y.start - 4
        shown = range(min(len(ends), int((high - low) / _LINE) + 1))
        heights = apart([y.at(ends[place]) for place in shown], _LINE, low, high)
        for limit in self.limits:
            points = [(x.at(size), y.at(rate)) for size, rate in sorted(limit.rates_at(self.sizes).items())]
            if len({height for _, height in points}) == 1:  # a level line, across the chart if it holds at all sizes
                left, right = (x.start, x.end) if len(points) == len(self.sizes) else (points[0][0] - 12, points[-1][0] + 12)
                points = [(left, points[0][1]), (right, points[0][1])]
            picture.line(points, f"{limit.style} dashed")
        for place, height in zip(shown, heights, strict=True):
            limit = self.limits[place]
            picture.text(x.end + 8, height, f"{limit.kind} {format_rate(ends[place] * 1e9)}", classes=limit.style)
            picture.text(x.end + 8, height + 12, short(limit.what, 19), classes=f"{limit.style} small")


def size_charts(material: Material) -> list[SizeChart]:
    """Return a chart for each operation that moves bytes, in print order."""
    names = distinct_names(material.drawn)
    runs = [
        (name, [row for row in material.rows(table) if 0 < row.size_bytes < _LARGEST])
        for name, table in zip(names, material.drawn, strict=True)
    ]
    operations = dict.fromkeys(row.operation for _, rows in runs for row in rows)
    backends = list(dict.fromkeys(row.backend for _, rows in runs for row in rows))
    return [_chart(f"sizes-{number}", operation, runs, backends, material.typical_times) for number, operation in enumerate(operations)]


def distinct_names(tables: Sequence[Launches]) -> list[str]:
    """Return a name for each table, at most 24 characters: that of its folder; of equal ones with the folder above, or with a number."""
    names = [table.name for table in tables]
    longer = [
        "/".join(table.runs[0].path.resolve().parts[-2:]) if names.count(name) > 1 else name
        for name, table in zip(names, tables, strict=True)
    ]
    cut = [short(name, 24) for name in longer]
    return [f"{short(name, 20)} #{place + 1}" if cut.count(name) > 1 else name for place, name in enumerate(cut)]


def _chart(
    key: str, operation: str, runs: Sequence[tuple[str, Sequence[Row]]], backends: Sequence[str], baseline: Mapping[CaseKey, TypicalTime]
) -> SizeChart:
    """Return the chart of an operation. A backend with one line per run has the style of its place in `backends`."""
    of_runs = [(name, [row for row in rows if row.operation == operation]) for name, rows in runs]
    of_runs = [(name, rows) for name, rows in of_runs if rows]
    every = [row for _, rows in of_runs for row in rows]
    differing = [name for name in SERIES if name == "backend" or (name != "operation" and len({getattr(row, name) for row in every}) > 1)]
    groups: dict[tuple[int, tuple[object, ...]], dict[int, Row]] = {}
    for place, (_, rows) in enumerate(of_runs):
        for row in rows:
            groups.setdefault((place, tuple(getattr(row, name) for name in differing)), {})[row.size_bytes] = row
    is_one_each = len(groups) == len({(place, row.backend) for place, (_, rows) in enumerate(of_runs) for row in rows})
    lines: list[SizeLine] = []
    for (place, _), sized in groups.items():
        first = next(iter(sized.values()))
        words = [text for name in differing if (text := value_of(first, name)) != NOTHING]
        name = short(" ".join([*words, *([f"({of_runs[place][0]})"] if len(of_runs) > 1 else [])]), 60)
        number = backends.index(first.backend) + place * len(backends) if is_one_each else len(lines)
        lines.append(SizeLine(name, number, [_point(sized[size]) for size in sorted(sized)]))
    lines = [*_baseline_lines(every, differing, baseline, max((line.number for line in lines), default=0) + 1), *lines]
    has_rate = any(point.rate for line in lines for point in line.points) and not all(is_shown_as_time(row) for row in every)
    return SizeChart(key, operation, lines[:MOST_LINES], _limits(every) if has_rate else [], has_rate, max(0, len(lines) - MOST_LINES))


def _baseline_lines(rows: Sequence[Row], differing: Sequence[str], baseline: Mapping[CaseKey, TypicalTime], number: int) -> list[SizeLine]:
    """Return the baseline's times of the measured cases, with what chance explains as the band; [] without a baseline."""
    groups: dict[tuple[object, ...], dict[int, SizePoint]] = {}
    names: dict[tuple[object, ...], str] = {}
    for row in rows:
        known, time_s, rate = baseline.get(case_of(row)), time_of(row), rate_of(row)
        if known is None or time_s is None:
            continue
        key = tuple(getattr(row, name) for name in differing)
        names.setdefault(key, short(" ".join(text for each in differing if (text := value_of(row, each)) != NOTHING), 50) + " baseline")
        time = _banded(1e6 * known.time_s, known.limit)
        of_rate = None if rate is None else _banded(rate * time_s / known.time_s / 1e9, known.limit)
        limit = "not judged" if known.limit is None else f"noise limit {100 * (known.limit - 1):+.1f} %"
        shown = "" if of_rate is None else f"{format_rate(1e9 * of_rate.value)} GB/s, "
        text = f"{shown}{format_time(known.time_s)} µs, {limit}"
        groups.setdefault(key, {})[row.size_bytes] = SizePoint(row.size_bytes, of_rate, time, "", text)
    return [
        SizeLine(names[key], number + place, [sized[size] for size in sorted(sized)]) for place, (key, sized) in enumerate(groups.items())
    ]


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
    return SizePoint(row.size_bytes, of_rate, time, state, short("; ".join([_figures(row), *_remarks(row)]), 400))


def _figures(row: Row) -> str:
    """Return the exact figures: "42.0 of 50.0 GB/s (84 %), 398.1 µs [391.0, 402.2]", or why there are none."""
    if row.na is not None:
        return short(not_available(row), 160)
    share, rate = of_ceiling(row), rate_of(row)
    shown = share if share != NOTHING else f"{format_rate(rate)} GB/s" if rate is not None else ""
    low, high = sound_interval(row)
    within = "" if low is None or high is None else f" [{format_time(low)}, {format_time(high)}]"
    time = f"{times(row, ' µs')}{within}" if time_of(row) is not None else "no time"
    return ", ".join(part for part in (shown, time) if part)


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
        if row.percent_of_ceiling is None and "above_bound" not in row.flags:
            continue
        for ceiling, kind in ((row.ceiling, "expected"), (row.hard_bound, "hard limit")):
            if ceiling is not None and ceiling.bytes_per_s and known(ceiling.bytes_per_s) and ceiling.bytes_per_s < _FASTEST:
                _add_limit(found, row, ceiling, kind)
    shown: list[LimitLine] = []
    for limit in sorted(found, key=lambda each: each.kind != "expected"):
        same = next((each for each in shown if _is_equal(limit, each)), None)
        if same is None:
            shown.append(limit)
        elif same.kind == limit.kind:
            same.rates = limit.rates | same.rates
    return shown


def _add_limit(found: list[LimitLine], row: Row, ceiling: Ceiling, kind: str) -> None:
    rate = (ceiling.bytes_per_s or 0.0) / 1e9
    what = short(_what_limits(row, ceiling) if kind == "expected" else ceiling.limited_by, 80) if ceiling.kind != "given" else ""
    for limit in found:
        before = limit.rates.get(row.size_bytes, rate)
        if (limit.kind, limit.what) == (kind, what) and max(before, rate) <= _EQUAL * min(before, rate):
            limit.rates.setdefault(row.size_bytes, rate)
            return
    found.append(LimitLine(kind, what, {row.size_bytes: rate}))


def _what_limits(row: Row, ceiling: Ceiling) -> str:
    """Return what limits, with the kind of figure; without the range of its measurements, which differs from size to size."""
    return limited_by(replace(row, percent_of_ceiling=0.0, ceiling=replace(ceiling, low_bytes_per_s=None, high_bytes_per_s=None)))


def _is_equal(one: LimitLine, other: LimitLine) -> bool:
    common = one.rates.keys() & other.rates.keys()
    return bool(common) and all(max(one.rates[s], other.rates[s]) <= _EQUAL * min(one.rates[s], other.rates[s]) for s in common)


def _series_data(line: SizeLine, sizes: Sequence[int]) -> dict[str, Any]:
    points = {point.size_bytes: point for point in line.points}
    found: dict[str, Any] = {"name": line.name, "style": line.number}
    for key in ("rate", "time"):
        values: list[Value | None] = [getattr(points[size], key) if size in points else None for size in sizes]
        found[key] = [_rounded(each.value if each else None) for each in values]
        if any(each is not None and each.low is not None for each in values):
            found[f"{key}Low"] = [_rounded(each.low if each else None) for each in values]
            found[f"{key}High"] = [_rounded(each.high if each else None) for each in values]
    found["texts"] = [f"{line.name}: {points[size].text}" if size in points else None for size in sizes]
    found["states"] = [points[size].state if size in points else "" for size in sizes]
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _draw_line(picture: Picture, x: AxisScale, y: AxisScale, line: SizeLine, rate: bool) -> None:
    """Draw the intervals, the line and the markers of a series; doubtful values have open markers, wrong ones crosses."""
    classes = series_classes(line.number)
    known = [(point, point.rate if rate else point.time) for point in line.points]
    bars = [
        end
        for point, value in known
        if value is not None and value.low is not None and value.high is not None and abs(y.at(value.low) - y.at(value.high)) >= 1
        for end in ((x.at(point.size_bytes), y.at(value.low)), (x.at(point.size_bytes), y.at(value.high)), None)
    ]
    picture.line(bars, f"{classes} bar")
    picture.line([None if value is None else (x.at(point.size_bytes), y.at(value.value)) for point, value in known], classes)
    for point, value in known:
        if value is not None:
            shape, marked = (4, "bad") if point.state == "wrong" else (line.number, f"{classes}{' open' if point.state else ''}")
            picture.marker(x.at(point.size_bytes), y.at(value.value), shape, marked)


def without_size(material: Material) -> Iterator[tuple[str, Row]]:
    """Yield (run, row) of operations without bytes, such as barrier."""
    for table in material.drawn:
        yield from ((table.name, row) for row in material.rows(table) if row.size_bytes == 0)


_METHOD = (
    "The section Provenance defines time, bus bandwidth and expected. Bars and bands are 95 % intervals; within one launch an interval "
    "does not cover how much another launch may differ. Open markers are doubtful: the table has the reason. A baseline is the median "
    "over its allocations; its band is the gate's noise limit."
)


def section(material: Material, first: str = "") -> Section | None:
    """Return the section with a chart for each operation, that of `first` before the others, and a table of the operations without bytes.

    None without any operation.
    """
    shown = sorted(size_charts(material), key=lambda chart: chart.operation != first)
    rows = [
        [short(text, 200) for text in (run, row.operation, row.backend, _figures(row), "; ".join(_remarks(row)))]
        for run, row in without_size(material)
    ]
    tables = [("Operations without bytes", Table(["run", "operation", "backend", "time", "remarks"], rows))] if rows else []
    texts = [
        f"{short(each.operation, 60)}: {each.left_out} more series are in `collbench report --csv FILE`." for each in shown if each.left_out
    ]
    return Section("curves", "Every operation", texts, tables, [to_chart(each) for each in shown]) if rows or shown else None


def to_chart(chart: SizeChart) -> Chart:
    """Return the chart as the page shows it, with its values as a table."""
    title = f"{short(chart.operation, 60)}: {'bus bandwidth' if chart.has_rate else 'time'} over message size"
    drawing = chart.picture().markup(title)
    return Chart(chart.key, title, _caption(chart), _METHOD, drawing, _table(chart), data=chart.data(), wide=True)


def _caption(chart: SizeChart) -> str:
    """Return the best value of each series and the limits."""
    texts = []
    for line in chart.lines[:_MOST_NAMED]:
        rated = [point for point in line.points if point.rate is not None and point.state != "wrong"]
        timed = [point for point in line.points if point.time is not None]
        if chart.has_rate and rated:
            best = max(rated, key=lambda point: point.rate.value if point.rate else 0.0)
            texts.append(
                f"{line.name} reaches {format_rate(1e9 * best.rate.value if best.rate else 0.0)} GB/s at {format_size(best.size_bytes)}"
            )
        elif timed:
            first = timed[0]
            texts.append(
                f"{line.name} takes {format_time(1e-6 * first.time.value if first.time else 0.0)} µs at {format_size(first.size_bytes)}"
            )
        elif line.points:
            texts.append(f"{line.name}: {line.points[0].text}")
    limits = "; ".join(limit.name for limit in chart.limits)
    return ". ".join(text for text in ("; ".join(texts), f"{limits[:1].upper()}{limits[1:]}") if text) + "."


def _table(chart: SizeChart) -> Table:
    """Return the figures: a row for each size, a column for each series."""
    points = [{point.size_bytes: point for point in line.points} for line in chart.lines]
    rows = [
        [
            format_size(size),
            *(of[size].text if size in of else NOTHING for of, line in zip(points, chart.lines, strict=True)),
        ]
        for size in chart.sizes
    ]
    return Table(["size", *(line.name for line in chart.lines)], rows)
