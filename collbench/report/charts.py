"""Charts of message sizes: what is drawn, whatever draws it.

A chart has lines of points with intervals and a state, and the limits that they are compared with. `report.figures` draws it with
matplotlib, `report.html.curves` on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.launches import Launches, case_of, is_time, known, time_of
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
    two_modes,
    value_of,
    wrong,
)
from collbench.report.headlines import short
from collbench.report.material import Material
from collbench.results.flags import flag_names
from collbench.results.quality import is_unreliable
from collbench.results.row import SERIES, CaseKey, Row
from collbench.units import format_percent, format_rate, format_span

if TYPE_CHECKING:
    from collbench.gating.judge import TypicalTime

MOST_LINES = 16
_WITH_NAMES = ("ranks", "nodes", "root", "window", "streams")  # numbers, which say nothing without their name
FAR = 64  # between sizes further apart by this factor nothing is known, so no line joins them
_LARGEST = 1 << 62  # bytes: a larger size is not valid
_SLOWEST, _FASTEST = 1e-3, 1e16  # bytes per second: the range of valid rates
_EQUAL = 1.01  # two limits within this factor are one line


@dataclass(frozen=True)
class Value:
    """A figure with its 95 % interval, in GB/s or µs."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Value:
        """Return the figure in another unit."""
        return Value(
            self.value * factor, None if self.low is None else self.low * factor, None if self.high is None else self.high * factor
        )


@dataclass(frozen=True)
class SizePoint:
    """What one row shows at its size. state: "", "doubtful", "wrong" or "na"; text: the exact figures; unreliable: its quality.

    expected_rate, expected_time: by the model of its expected time, in GB/s and µs; percent: of the expected bandwidth
    """

    size_bytes: int
    rate: Value | None
    time: Value | None
    state: str
    text: str
    unreliable: bool = False
    expected_rate: float | None = None
    expected_time: float | None = None
    percent: Value | None = None


@dataclass(frozen=True)
class SizeLine:
    """Rows of one run that differ in size only, ascending. `number` is that of its style.

    backend  the library; its place among all backends is the color in figures
    place    among the lines of this backend, which is the dash in figures: by run or number of ranks
    """

    name: str
    number: int
    points: Sequence[SizePoint]
    backend: str = ""
    place: int = 0


@dataclass
class LimitLine:
    """A rate that measured bandwidths are compared with, in GB/s by size. kind: "expected" or "hard limit"; what: what limits.

    backends  whose rows have it, in order
    """

    kind: str
    what: str
    rates: dict[int, float] = field(default_factory=dict)
    backends: list[str] = field(default_factory=list)

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
        place = sum(line.backend == first.backend for line in lines)
        lines.append(SizeLine(name, number, [point_of(sized[size]) for size in sorted(sized)], first.backend, place))
    lines = [*_baseline_lines(rows, differing, baseline, max((line.number for line in lines), default=0) + 1), *lines]
    has_rate = any(point.rate for line in lines for point in line.points) and not all(is_shown_as_time(row) for row in rows)
    return SizeChart(key, operation, lines[:MOST_LINES], _limits(rows) if has_rate else [], has_rate, max(0, len(lines) - MOST_LINES))


def _series_words(row: Row, differing: Sequence[str]) -> list[str]:
    texts = [name_value(row, name) if name in _WITH_NAMES else value_of(row, name) for name in differing]
    return [text for text in texts if text not in ("", NOTHING)]


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
        text = f"{shown}{format_span(known.time_s)}, {limit}"
        point = SizePoint(row.size_bytes, of_rate, _banded(1e6 * known.time_s, known.limit), "", text)
        groups.setdefault(short(" ".join(_series_words(row, differing)), 50) + " baseline", {})[row.size_bytes] = point
    return [SizeLine(name, number + place, [sized[at] for at in sorted(sized)]) for place, (name, sized) in enumerate(groups.items())]


def _banded(value: float, limit: float | None) -> Value:
    return Value(value) if limit is None else Value(value, value / limit, value * limit)


def point_of(row: Row) -> SizePoint:
    """Return what a row shows at its size: figures with intervals, how far they can be trusted, and as text."""
    state = "wrong" if row.wrong else "na" if row.na is not None else "doubtful" if doubtful(row) else ""
    time_s, rate = time_of(row), rate_of(row)
    low, high = sound_interval(row)
    time = None if time_s is None else Value(1e6 * time_s, low and 1e6 * low, high and 1e6 * high)
    of_rate = None
    if rate is not None and time_s is not None:
        of_rate = Value(rate / 1e9, *(rate * time_s / end / 1e9 if end else None for end in (high, low)))
    percent = None
    if row.comparison is not None and time_s is not None:
        of_percent = row.comparison.percent * time_s
        percent = Value(row.comparison.percent, high and of_percent / high, low and of_percent / low)
    text = short("; ".join([figures_of(row), *remarks_of(row)]), 400)
    unreliable = row.na is None and is_unreliable(row)
    expected_s = row.expectation.expected_time_s if row.expectation is not None else None
    if time_s is None or not expected_s:
        return SizePoint(row.size_bytes, of_rate, time, state, text, unreliable, percent=percent)
    expected_rate = None if rate is None else rate * time_s / expected_s / 1e9
    return SizePoint(row.size_bytes, of_rate, time, state, text, unreliable, expected_rate, 1e6 * expected_s, percent)


def figures_of(row: Row) -> str:
    """Return the exact figures: "42.0 of 50.0 GB/s (84 %), 398.1 µs [391.0, 402.2]", or why there are none."""
    if row.na is not None:
        return short(not_available(row), 160)
    share, rate = of_ceiling(row), rate_of(row)
    shown = share if share != NOTHING else f"{format_rate(rate)} GB/s" if rate is not None else ""
    low, high = sound_interval(row)
    time_s = time_of(row)
    if time_s is None:
        time = "no time"
    elif two_modes(row):  # the interval is that of the median, which neither value is
        values = " / ".join(f"{format_span(value_s)} {format_percent(100 * share)}" for value_s, share in two_modes(row))
        time = f"median {format_span(time_s, low, high)}; two values: {values}"
    else:
        time = format_span(time_s, low, high)
    return ", ".join(part for part in (shown, time, _of_expectation(row)) if part)


def _of_expectation(row: Row) -> str:
    """Return "84 % of the expected time 334.1 µs"; only the expected time for a row that is not compared with it."""
    if expected_time(row) == NOTHING:
        return ""
    share = of_expected_time(row)
    expected = format_span(row.expectation.expected_time_s) if row.expectation and row.expectation.expected_time_s else NOTHING
    return f"expected {expected}" if share == NOTHING else f"{share} of the expected time {expected}"


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
            same.backends = list(dict.fromkeys([*same.backends, *limit.backends]))
    return shown


def _add_limit(found: list[LimitLine], row: Row, ceiling: Ceiling, kind: str, rate: float) -> None:
    what = short(_what_limits(row, ceiling) if kind == "expected" else ceiling.limited_by, 80) if ceiling.kind != "given" else ""
    new = LimitLine(kind, what, {row.size_bytes: rate}, [row.backend])
    alike = [each for each in found if (each.kind, each.what) == (kind, what)]
    same = next((each for each in alike if row.size_bytes not in each.rates or _is_equal(each.rates, new.rates)), None)
    if same is None:
        found.append(new)
        return
    same.rates.setdefault(row.size_bytes, rate)
    if row.backend not in same.backends:
        same.backends.append(row.backend)


def _what_limits(row: Row, ceiling: Ceiling) -> str:
    """Return what limits, with the kind of figure; without the range of its measurements, which differs from size to size."""
    return limited_by(row.compared_with(replace(ceiling, low_bytes_per_s=None, high_bytes_per_s=None), row.hard_bound, 0.0))


def _is_equal(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Return whether two limits have equal rates at the sizes that both have, of which there are some."""
    common = one.keys() & other.keys()
    return bool(common) and all(max(one[s], other[s]) <= _EQUAL * min(one[s], other[s]) for s in common)
