"""Charts: what is drawn, whatever draws it.

A panel is a value without matplotlib: lines of marks with intervals and a state, and the limits that they are compared with; ratios of
cases; bars; or a matrix. `report.figures` draws panels for files and for pages, and the page's script draws the lines over sizes again.
In all of them the color is the backend, the dash the run or the number of ranks, and the marker the quality: filled is sound, open is
doubtful, a red cross is wrong data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.compare import CaseRatio
from collbench.analysis.launches import Launches, case_of, is_time, known, time_of
from collbench.analysis.outcome import Outcome
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import (
    NOTHING,
    doubtful,
    expected_time,
    limited_by,
    name_value,
    not_available,
    of_ceiling,
    of_expected_time,
    state_of,
    times,
    two_modes,
    value_of,
    wrong,
)
from collbench.report.compare import marked_outcome, ratio_doubtful, remarks
from collbench.report.headlines import short
from collbench.report.material import Material
from collbench.results.flags import flag_names
from collbench.results.quality import is_unreliable
from collbench.results.row import SERIES, CaseKey, Row
from collbench.units import format_percent, format_rate, format_span, plural

if TYPE_CHECKING:
    from collbench.gating.judge import TypicalTime

MOST_LINES = 16
LONGEST_NAME = 60  # of a line
_MOST_OWNERS = 3  # with limits of their own
COLOR_COUNT, DASH_COUNT = 7, 5  # that can be told apart; the eighth backend has the first color, with another dash
_WITH_NAMES = ("ranks", "nodes", "root", "window", "streams")  # numbers, which say nothing without their name
FAR = 64  # between sizes further apart by this factor nothing is known, so no line joins them
_LARGEST = 1 << 62  # bytes: a larger size is not valid
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second: the range of valid rates
_EQUAL = 1.01  # two limits within this factor are one line


class Value(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval, in GB/s or µs."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Value:
        """Return the figure in another unit."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Value(self.value * factor, low, high)


class SizePoint(msgspec.Struct, frozen=True):
    """What one row shows at its size. state: "", "doubtful", "wrong" or "na"; text: the exact figures; row: None for a baseline.

    expected_rate, expected_time: by the model of its expected time, in GB/s and µs; percent: of the expected bandwidth
    """

    size_bytes: int
    rate: Value | None
    time: Value | None
    state: str
    text: str
    row: Row | None = None
    expected_rate: float | None = None
    expected_time: float | None = None
    percent: Value | None = None

    @property
    def unreliable(self) -> bool:
        """Return whether its row is unreliable."""
        return self.row is not None and self.row.na is None and is_unreliable(self.row)


class SizeLine(msgspec.Struct, frozen=True):
    """Rows of one run that differ in size only, ascending.

    color  that of its backend, while that has a free dash; -1: of a baseline
    dash   by run or number of ranks
    """

    name: str
    color: int
    dash: int
    points: Sequence[SizePoint]


class LimitLine(msgspec.Struct):
    """A rate that measured bandwidths are compared with, in GB/s by place (a size, or a number of ranks or nodes).

    kind    "expected" or "hard limit"
    what    what limits
    colors  of the backends whose rows have it
    """

    kind: str
    what: str
    rates: dict[int, float] = msgspec.field(default_factory=dict)
    colors: dict[int, str] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return "expected 7.61 GB/s: memory copy (measured)"."""
        low, high = (format_rate(pick(self.rates.values()) * 1e9) for pick in (min, max))
        return f"{self.kind} {low if low == high else f'{low}–{high}'} GB/s{f': {self.what}' if self.what else ''}"

    def rates_at(self, sizes: Sequence[int]) -> dict[int, float]:
        """Return the rates to draw: one that is equal at two sizes or more holds at all of them."""
        constant = len(self.rates) > 1 and len({round(rate, 9) for rate in self.rates.values()}) == 1
        return dict.fromkeys(sizes, next(iter(self.rates.values()))) if constant else self.rates


class SizeChart(msgspec.Struct, frozen=True):
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


# Panels.

BANDWIDTH, TIME, PERCENT = "bus bandwidth, GB/s", "time", "% of expected bandwidth"
SIZES, RANKS, NODES, DATES = "message size", "ranks", "nodes", "date"
_SECONDS_PER_MICROSECOND = 1e-6


class FigureMark(msgspec.Struct, frozen=True):
    """A point. at: its size in bytes, number of ranks or nodes, or days since 1970; state: "", "doubtful" or "wrong"."""

    at: float
    value: Value
    state: str = ""


class MarkedLine(msgspec.Struct, frozen=True):
    """Marks that a line joins.

    color     the place of the backend; -1: of a baseline
    dash      the place among the lines of this color
    expected  by place, what the model of the expected time says
    missing   places at which other lines, or other values, are known: nothing joins the marks around them
    is_joined whether a line joins the marks at all: it does not where several are at one place
    """

    name: str
    color: int
    dash: int
    marks: Sequence[FigureMark]
    expected: Mapping[float, float] = msgspec.field(default_factory=dict)
    missing: frozenset[float] = frozenset()
    is_joined: bool = True


class Limit(msgspec.Struct, frozen=True):
    """What measured values are compared with.

    name     "expected" or "hard limit", with the backend if only one of several has it
    values   by place
    color    that of this backend, else None
    """

    name: str
    values: Mapping[float, float]
    is_bound: bool = False
    color: int | None = None

    @property
    def rates(self) -> str:
        """Return its range: "7.61–28.6 GB/s"."""
        ends = dict.fromkeys(format_rate(1e9 * pick(self.values.values())) for pick in (min, max))
        return f"{'–'.join(ends)} GB/s"


class LinePanel(msgspec.Struct, frozen=True):
    """Lines over message sizes, ranks, nodes or dates.

    title   above the axes
    over    SIZES, RANKS, NODES or DATES
    values  BANDWIDTH and PERCENT (linear from 0), or TIME (logarithmic, in seconds)
    note    what is left out; ""
    """

    title: str
    over: str
    values: str
    lines: Sequence[MarkedLine]
    limits: Sequence[Limit] = ()
    note: str = ""


class RatioMark(msgspec.Struct, frozen=True):
    """A ratio of times. outcome: its marker; role: the name of its color in `figures.Look`; is_open: it decides nothing by itself."""

    ratio: float
    outcome: Outcome
    role: str
    is_open: bool = False


class RatioLine(msgspec.Struct, frozen=True):
    """A line of ratios.

    marks     the most important one first
    interval  the ends of the first ratio's interval; None: it has none
    limit     a ratio that is marked, such as a gate's limit; None: none
    words     what the line says, at the right
    tooltip   that of the first mark, on a page
    """

    name: str
    marks: Sequence[RatioMark]
    interval: tuple[float, float] | None = None
    limit: float | None = None
    words: str = ""
    tooltip: str = ""

    @property
    def ratios(self) -> list[float]:
        """Return all ratios that the axis must include."""
        ratios = [mark.ratio for mark in self.marks]
        ratios += self.interval or ()
        return ratios if self.limit is None else [*ratios, self.limit]


class RatioPanel(msgspec.Struct, frozen=True):
    """Ratios of times, the worst first.

    axis    the title of the axis
    least   the axis reaches at least this ratio to both sides of 1, so that equal values look equal
    margin  the largest difference that counts as no change; 0: none is drawn
    note    what is left out; ""
    """

    title: str
    lines: Sequence[RatioLine]
    axis: str
    least: float
    margin: float = 0.0
    note: str = ""


class MatrixPanel(msgspec.Struct, frozen=True):
    """A value for each pair of places: rows send, columns receive; NaN where nothing was measured. Bright is good: see `low_is_good`."""

    title: str
    names: Sequence[str]
    values: Sequence[Sequence[float]]
    unit: str
    marked: Sequence[tuple[int, int]] = msgspec.field(default=())
    low_is_good: bool = False
    note: str = ""


class Bar(msgspec.Struct, frozen=True):
    """A bar with its name, and its value as text.

    mark      what is expected
    is_part   it is pale, as a part of the bar before
    is_open   its value is doubtful, or of wrong data
    """

    name: str
    text: str
    value: float
    interval: tuple[float, float] | None = None
    mark: float | None = None
    color: int = 0
    is_part: bool = False
    is_open: bool = False


class BarPanel(msgspec.Struct, frozen=True):
    """Horizontal bars, one below the other. unit: the title of the axis."""

    title: str
    bars: Sequence[Bar]
    unit: str
    note: str = ""


Panel = LinePanel | RatioPanel | MatrixPanel | BarPanel


def size_panel(chart: SizeChart, values: str) -> LinePanel | None:
    """Return the panel of a chart with these values: BANDWIDTH, TIME or PERCENT; None if it has none of them."""
    if values == BANDWIDTH and not chart.has_rate:
        return None
    lines: list[MarkedLine] = []
    for line in chart.lines:
        marks = [FigureMark(point.size_bytes, value, point.state) for point, value in _values(line.points, values)]
        if marks:
            missing = frozenset(float(point.size_bytes) for point in line.points) - {mark.at for mark in marks}
            lines.append(MarkedLine(line.name, line.color, line.dash, marks, _expected(line.points, values), missing))
    if not lines:
        return None
    limits: list[Limit] = []
    if values == BANDWIDTH:
        everywhere = [replace(limit, rates=limit.rates_at(chart.sizes)) for limit in chart.limits]
        limits = highest_limits(everywhere, len({line.color for line in chart.lines if line.color >= 0}) > 1)
    if values == PERCENT:
        limits = [Limit("expected", dict.fromkeys(map(float, chart.sizes), 100.0))]
    note = f"{chart.operation}: {plural(chart.left_out, 'line')} left out, since {MOST_LINES} are drawn" if chart.left_out else ""
    return LinePanel(chart.operation, SIZES, values, lines, limits, note)


def _values(points: Sequence[SizePoint], values: str) -> Iterator[tuple[SizePoint, Value]]:
    """Yield the points that have such a value, with it."""
    for point in points:
        time_s = point.time and point.time.scaled(_SECONDS_PER_MICROSECOND)
        value = {BANDWIDTH: point.rate, TIME: time_s, PERCENT: point.percent}[values]
        if value is not None and point.state != "na":
            yield point, value


def _expected(points: Sequence[SizePoint], values: str) -> dict[float, float]:
    """Return by size what the model of the expected time says."""
    if values == BANDWIDTH:
        return {float(point.size_bytes): point.expected_rate for point in points if point.expected_rate is not None}
    if values == TIME:
        times_us = {float(point.size_bytes): point.expected_time for point in points if point.expected_time is not None}
        return {size: _SECONDS_PER_MICROSECOND * time_us for size, time_us in times_us.items()}
    return {}


def highest_limits(lines: Sequence[LimitLine], has_backends: bool) -> list[Limit]:
    """Return of each kind and owner the highest limit at each place. has_backends: whether there are several.

    A limit of several backends has no owner, and of many backends the highest one is common to all.
    """
    owned = {tuple(limit.colors) for limit in lines if len(limit.colors) == 1}
    several = has_backends and len(owned) <= _MOST_OWNERS
    highest: dict[tuple[str, int | None], dict[float, float]] = {}
    owners: dict[int | None, str] = {}
    for limit in lines:
        color = None
        if several and len(limit.colors) == 1:
            color = next(iter(limit.colors))
            owners[color] = limit.colors[color]
        values = highest.setdefault((limit.kind, color), {})
        for place, rate in limit.rates.items():
            values[place] = max(rate, values.get(place, 0.0))
    limits = []
    for (kind, color), values in highest.items():
        name = kind if color is None else f"{kind} ({owners[color]})"
        limits.append(Limit(name, dict(sorted(values.items())), kind == "hard limit", color))
    return limits


# From comparisons to ratios.

ROLES = {Outcome.SLOWER: "slower", Outcome.FASTER: "faster", Outcome.NO_CHANGE: "quiet", Outcome.INCONCLUSIVE: "quiet"}


def case_line(case: CaseRatio, name: str) -> RatioLine:
    """Return the line of a case that has a ratio and an outcome. Its mark is open where the ratio decides nothing by itself."""
    ratio = case.time
    outcome = case.outcome
    assert ratio is not None and outcome is not None
    both_times = f"baseline {times(case.a)} µs, candidate {times(case.b)} µs"
    tooltip = "\n".join(text for text in (name, marked_outcome(case), both_times, short(remarks(case), 200)) if text)
    interval = None
    if case.across_launches and ratio.low is not None and ratio.high is not None:
        interval = (ratio.low, ratio.high)
    is_open = ratio_doubtful(case) or bool(case.wrong) or interval is None
    mark = RatioMark(ratio.value, outcome, ROLES[outcome], is_open)
    return RatioLine(name, [mark], interval, words=marked_outcome(case), tooltip=tooltip)


# From rows to charts of sizes.


def size_charts(material: Material) -> list[SizeChart]:
    """Return a chart for each operation that moves bytes, in print order."""
    names = distinct_names(material.drawn)
    all_rows = [(name, row) for name, table in zip(names, material.drawn, strict=True) for row in material.rows(table)]
    sized = [(name, row) for name, row in all_rows if 0 < row.size_bytes < _LARGEST]
    backends = list(dict.fromkeys(row.backend for _, row in sized))
    charts = []
    for number, operation in enumerate(dict.fromkeys(row.operation for _, row in sized)):
        named_rows = [(name, row) for name, row in sized if row.operation == operation]
        charts.append(_chart(f"sizes-{number}", operation, named_rows, backends, material.typical_times))
    return charts


def distinct_names(tables: Sequence[Launches], most: int = 24) -> list[str]:
    """Return a name for each table, at most `most` characters: of its folder; of equal ones with the folder above, or with a number."""
    names = [table.name for table in tables]
    longer = ["/".join(table.runs[0].path.resolve().parts[-2:]) if names.count(table.name) > 1 else table.name for table in tables]
    return told_apart(longer, most)


def told_apart(names: Sequence[str], most: int) -> list[str]:
    """Return the names cut to `most` characters; those that are equal then get numbers: "allreduce #1", "allreduce #2"."""
    cut = [short(name, most) for name in names]
    return [f"{short(name, most - 4)} #{cut[:place].count(name) + 1}" if cut.count(name) > 1 else name for place, name in enumerate(cut)]


def _chart(
    key: str, operation: str, named_rows: Sequence[tuple[str, Row]], backends: Sequence[str], baseline: Mapping[CaseKey, TypicalTime]
) -> SizeChart:
    """Return the chart of an operation from (run, row)."""
    rows = [row for _, row in named_rows]
    runs = {run for run, _ in named_rows}
    differing = [name for name in SERIES if name == "backend" or (name != "operation" and len({getattr(row, name) for row in rows}) > 1)]
    groups: dict[tuple[str, ...], dict[int, Row]] = {}
    for run, row in named_rows:
        groups.setdefault((run, *(getattr(row, name) for name in differing)), {})[row.size_bytes] = row
    names = []
    for (run, *_), row_of_size in groups.items():
        words = series_words(next(iter(row_of_size.values())), differing)
        names.append(" ".join([*words, f"({run})"] if len(runs) > 1 else words))
    lines: list[SizeLine] = []
    for name, row_of_size in zip(told_apart(names, LONGEST_NAME), groups.values(), strict=True):
        first = next(iter(row_of_size.values()))
        color, dash = free_look(backends.index(first.backend), {(line.color, line.dash) for line in lines})
        lines.append(SizeLine(name, color, dash, [point_of(row_of_size[size]) for size in sorted(row_of_size)]))
    lines = [*_baseline_lines(rows, differing, baseline), *lines]
    has_rate = any(point.rate for line in lines for point in line.points) and not all(is_shown_as_time(row) for row in rows)
    limits = limit_lines([(row.size_bytes, row) for row in rows], backends) if has_rate else []
    return SizeChart(key, operation, lines[:MOST_LINES], limits, has_rate, max(0, len(lines) - MOST_LINES))


def free_look(backend: int, used: Collection[tuple[int, int]]) -> tuple[int, int]:
    """Return the color and dash of a line: the color of its backend with the first free dash, else those of another color."""
    own_color = [(backend % COLOR_COUNT, dash) for dash in range(DASH_COUNT)]
    other_colors = [((backend + shift) % COLOR_COUNT, dash) for dash in reversed(range(DASH_COUNT)) for shift in range(1, COLOR_COUNT)]
    return next((look for look in (*own_color, *other_colors) if look not in used), own_color[0])


def series_words(row: Row, differing: Sequence[str]) -> list[str]:
    """Return what these fields of a row have, in words: ["gloo", "ranks 4"]."""
    texts = [name_value(row, name) if name in _WITH_NAMES else value_of(row, name) for name in differing]
    return [text for text in texts if text not in ("", NOTHING)]


def _baseline_lines(rows: Sequence[Row], differing: Sequence[str], baseline: Mapping[CaseKey, TypicalTime]) -> list[SizeLine]:
    """Return the baseline's times of the measured cases, with what chance explains as the band; [] without a baseline."""
    groups: dict[str, dict[int, SizePoint]] = {}
    for row in rows:
        typical = baseline.get(case_of(row))
        time_s = time_of(row)
        if typical is None or time_s is None:
            continue
        rate = rate_of(row)
        bandwidth = None if rate is None else _banded(rate * time_s / typical.time_s / 1e9, typical.limit)
        limit = "not judged" if typical.limit is None else f"noise limit {100 * (typical.limit - 1):+.1f} %"
        rate_text = "" if bandwidth is None else f"{format_rate(1e9 * bandwidth.value)} GB/s, "
        text = f"{rate_text}{format_span(typical.time_s)}, {limit}"
        point = SizePoint(row.size_bytes, bandwidth, _banded(1e6 * typical.time_s, typical.limit), "", text)
        groups.setdefault(short(" ".join(series_words(row, differing)), 50) + " baseline", {})[row.size_bytes] = point
    return [
        SizeLine(name, -1, place, [point_of_size[size] for size in sorted(point_of_size)])
        for place, (name, point_of_size) in enumerate(groups.items())
    ]


def _banded(value: float, limit: float | None) -> Value:
    return Value(value) if limit is None else Value(value, value / limit, value * limit)


def point_of(row: Row) -> SizePoint:
    """Return what a row shows at its size: figures with intervals, how far they can be trusted, and as text."""
    time_s = time_of(row)
    rate = rate_of(row)
    low_s, high_s = sound_interval(row)
    time = None if time_s is None else Value(1e6 * time_s, low_s and 1e6 * low_s, high_s and 1e6 * high_s)
    bandwidth = None
    if rate is not None and time_s is not None:
        bandwidth = Value(rate / 1e9, *(rate * time_s / end_s / 1e9 if end_s else None for end_s in (high_s, low_s)))
    percent = None
    if row.comparison is not None and time_s is not None:
        percent_seconds = row.comparison.percent * time_s
        percent = Value(row.comparison.percent, high_s and percent_seconds / high_s, low_s and percent_seconds / low_s)
    text = short("; ".join([figures_of(row), *remarks_of(row)]), 400)
    state = state_of(row)
    expected_s = row.expectation.expected_time_s if row.expectation is not None else None
    if time_s is None or not expected_s:
        return SizePoint(row.size_bytes, bandwidth, time, state, text, row, percent=percent)
    expected_rate = None if rate is None else rate * time_s / expected_s / 1e9
    return SizePoint(row.size_bytes, bandwidth, time, state, text, row, expected_rate, 1e6 * expected_s, percent)


def figures_of(row: Row) -> str:
    """Return the exact figures: "42.0 of 50.0 GB/s (84 %), 398.1 µs [391.0, 402.2]", or why there are none."""
    if row.na is not None:
        return short(not_available(row), 160)
    rate_text = of_ceiling(row)
    if rate_text == NOTHING:
        rate = rate_of(row)
        rate_text = f"{format_rate(rate)} GB/s" if rate is not None else ""
    low_s, high_s = sound_interval(row)
    time_s = time_of(row)
    time = "no time" if time_s is None else format_span(time_s, low_s, high_s)
    modes = two_modes(row)
    if modes and time_s is not None:  # the interval is that of the median, which neither value is
        values = " / ".join(f"{format_span(value_s)} {format_percent(100 * share)}" for value_s, share in modes)
        time = f"median {time}; two values: {values}"
    return ", ".join(part for part in (rate_text, time, _of_expectation(row)) if part)


def _of_expectation(row: Row) -> str:
    """Return "84 % of the expected time 334.1 µs"; only the expected time for a row that is not compared with it."""
    if expected_time(row) == NOTHING:
        return ""
    percent = of_expected_time(row)
    expected = format_span(row.expectation.expected_time_s) if row.expectation and row.expectation.expected_time_s else NOTHING
    return f"expected {expected}" if percent == NOTHING else f"{percent} of the expected time {expected}"


def remarks_of(row: Row) -> list[str]:
    """Return how many elements were wrong, and the flags that make the row doubtful."""
    remarks = [wrong(row)] if row.wrong else []
    doubts = doubtful(row)
    if doubts:
        remarks.append(f"? {', '.join(flag_names(doubts))}")
    return remarks


def rate_of(row: Row) -> float | None:
    """Return the bus bandwidth in bytes per second; None if there is none, for one rank, and for a value that is not valid."""
    rate = row.busbw_bytes_per_s
    return rate if row.na is None and row.ranks > 1 and rate is not None and known(rate) and _SLOWEST < rate < _FASTEST else None


def sound_interval(row: Row) -> tuple[float | None, float | None]:
    """Return the interval of the time in seconds; (None, None) if there is none that contains the time."""
    time_s = time_of(row)
    stored = row.time_s
    if time_s is None or stored is None or not (is_time(stored.ci_low) and is_time(stored.ci_high)):
        return None, None
    low_s = stored.ci_low or 0.0
    high_s = stored.ci_high or 0.0
    return (low_s, high_s) if low_s <= time_s <= high_s else (None, None)


def limit_lines(placed: Iterable[tuple[int, Row]], backends: Sequence[str]) -> list[LimitLine]:
    """Return the expected rates and the hard limits of rows with their places, each rate once, with the text of its first row."""
    limits: list[LimitLine] = []
    for place, row in placed:
        is_compared = row.comparison is not None or "above_bound" in row.flags
        for ceiling, kind in ((row.ceiling, "expected"), (row.hard_bound, "hard limit")):
            rate = None if ceiling is None else ceiling.bytes_per_s
            if ceiling is not None and rate and is_compared and known(rate) and rate < _FASTEST:
                limiter = _limiter(row, ceiling) if kind == "expected" else ceiling.limited_by
                text = "" if ceiling.kind == "given" else short(limiter, 80)
                colors = {backends.index(row.backend): short(row.backend, 40)}
                _add_limit(limits, LimitLine(kind, text, {place: rate / 1e9}, colors))
    shown: list[LimitLine] = []
    for limit in sorted(limits, key=lambda limit: limit.kind != "expected"):
        same = next((line for line in shown if _is_equal(limit.rates, line.rates)), None)
        if same is None:
            shown.append(limit)
        elif same.kind == limit.kind:
            same.rates = limit.rates | same.rates
            same.colors |= limit.colors
    return shown


def _add_limit(limits: list[LimitLine], new: LimitLine) -> None:
    """Add the limit of one row: to one of the same text, where its rate fits."""
    (place,) = new.rates
    alike = [limit for limit in limits if (limit.kind, limit.what) == (new.kind, new.what)]
    same = next((limit for limit in alike if place not in limit.rates or _is_equal(limit.rates, new.rates)), None)
    if same is None:
        limits.append(new)
    else:
        same.rates = new.rates | same.rates
        same.colors |= new.colors


def _limiter(row: Row, ceiling: Ceiling) -> str:
    """Return what limits, with the kind of figure; without the range of its measurements, which differs from size to size."""
    return limited_by(row.compared_with(replace(ceiling, low_bytes_per_s=None, high_bytes_per_s=None), row.hard_bound, 0.0))


def _is_equal(a: Mapping[int, float], b: Mapping[int, float]) -> bool:
    """Return whether two limits have equal rates at the sizes that both have, of which there are some."""
    common = a.keys() & b.keys()
    return bool(common) and all(max(a[size], b[size]) <= _EQUAL * min(a[size], b[size]) for size in common)
