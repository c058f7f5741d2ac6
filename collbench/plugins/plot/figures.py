"""Panels of runs, and their drawing with matplotlib.

A kind of figure is a function that returns panels, which are values without matplotlib; the drawing knows no kind. Plug-ins add kinds by
the hook "figure_kinds". In all panels the color is the backend, the dash the run or the number of ranks, and the marker the quality:
filled is sound, open is doubtful, a red cross is wrong data. Bars are 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.analysis.compare import worst_first
from collbench.analysis.launches import Launches, time_of
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.plugin import hooks_of
from collbench.report.cases import NOTHING, value_of
from collbench.report.charts import FAR, MOST_LINES, SizeChart, SizePoint, Value, point_of, size_charts
from collbench.report.compare import case_frame, case_name, ratio_doubtful
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.material import Material
from collbench.results.row import SERIES, Row
from collbench.units import format_rate, format_size, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
MOST_CASES = 40  # of a comparison
_SECONDS_PER_DAY = 86400.0
FORMATS = ("pdf", "svg", "png")
BANDWIDTH, TIME, PERCENT = "bus bandwidth, GB/s", "time", "% of expected bandwidth"
SIZES, RANKS, NODES, DATES = "message size", "ranks", "nodes", "date"


@dataclass(frozen=True)
class FigureMark:
    """A point. at: its size in bytes, number of ranks or nodes, or days since 1970; state: "", "doubtful" or "wrong"."""

    at: float
    value: Value
    state: str = ""


@dataclass(frozen=True)
class MarkedLine:
    """Marks that a line joins. color: the place of the backend; dash: the place among the lines of this backend."""

    name: str
    color: int
    dash: int
    marks: Sequence[FigureMark]


@dataclass(frozen=True)
class Limit:
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


@dataclass(frozen=True)
class LinePanel:
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


@dataclass(frozen=True)
class CaseLine:
    """A case of a comparison: the ratio of the times, candidate / baseline, with its interval. is_doubtful: it decides nothing."""

    name: str
    ratio: Value
    outcome: Outcome
    is_doubtful: bool


@dataclass(frozen=True)
class RatioPanel:
    """Ratios of cases, the worst first. margin: the largest difference that counts as no change; note: what is left out, ""."""

    title: str
    cases: Sequence[CaseLine]
    margin: float
    note: str = ""


@dataclass(frozen=True)
class MatrixPanel:
    """A value for each pair of places: rows send, columns receive; NaN where nothing was measured."""

    title: str
    names: Sequence[str]
    values: Sequence[Sequence[float]]
    unit: str
    marked: Sequence[tuple[int, int]] = field(default=())
    note: str = ""


Panel = LinePanel | RatioPanel | MatrixPanel


# The kinds: from the runs to panels.


def _size_panels(material: Material, values: str) -> list[Panel]:
    backends = _backends(material)
    panels: list[Panel] = []
    for chart in size_charts(material):
        if values == BANDWIDTH and not chart.has_rate:
            continue
        lines = [
            MarkedLine(line.name, backends.index(line.backend) if line.backend in backends else -1, line.place, marks)
            for line in chart.lines
            if (marks := list(_marks(line.points, values)))
        ]
        limits = _limits_of(chart, backends) if values == BANDWIDTH else []
        if values == PERCENT:
            limits = [Limit("expected", dict.fromkeys(chart.sizes, 100.0))]
        if lines:
            note = f"{chart.operation}: {plural(chart.left_out, 'line')} left out, since {MOST_LINES} are drawn" if chart.left_out else ""
            panels.append(LinePanel(chart.operation, SIZES, values, lines, limits, note))
    return panels


def _backends(material: Material) -> list[str]:
    return list(dict.fromkeys(row.backend for table in material.tables for row in material.rows(table)))


def _marks(points: Sequence[SizePoint], values: str) -> Iterator[FigureMark]:
    """Yield the points that have such a value."""
    for point in points:
        value = {BANDWIDTH: point.rate, TIME: point.time and point.time.scaled(1e-6), PERCENT: point.percent}[values]
        if value is not None and point.state != "na":
            yield FigureMark(point.size_bytes, value, point.state)


def _limits_of(chart: SizeChart, backends: Sequence[str]) -> list[Limit]:
    """Return the limits of a chart: of each kind and owner the highest one at each size. A limit of several backends has no owner."""
    several = len({line.backend for line in chart.lines if line.backend}) > 1
    highest: dict[tuple[str, str], dict[float, float]] = {}
    for limit in chart.limits:
        owner = limit.backends[0] if several and len(limit.backends) == 1 else ""
        values = highest.setdefault((limit.kind, owner), {})
        for size, rate in limit.rates_at(chart.sizes).items():
            values[size] = max(rate, values.get(size, 0.0))
    limits = []
    for (kind, owner), values in highest.items():
        color = backends.index(owner) if owner else None
        limits.append(Limit(f"{kind} ({owner})" if owner else kind, dict(sorted(values.items())), kind == "hard limit", color))
    return limits


def _scaling_panels(material: Material) -> list[Panel]:
    """Return a panel for each operation that was measured with several numbers of ranks, at the largest size that all of them have."""
    rows = [row for table in material.tables for row in material.rows(table) if row.na is None and time_of(row) is not None]
    over_nodes = len({row.nodes for row in rows if row.nodes}) > 1
    panels: list[Panel] = []
    for operation in dict.fromkeys(row.operation for row in rows):
        those = [row for row in rows if row.operation == operation]
        by_count: dict[int, set[int]] = {}
        for row in those:
            by_count.setdefault(_count_of(row, over_nodes), set()).add(row.size_bytes)
        common = set.intersection(*by_count.values())
        if len(by_count) < 2 or not common:
            continue
        size = max(common)
        at_size = [row for row in those if row.size_bytes == size]
        differing = [
            name for name in SERIES if name not in ("ranks", "nodes", "group") and len({getattr(row, name) for row in at_size}) > 1
        ]
        has_rate = all(point_of(row).rate for row in at_size)
        lines = _lines_over(at_size, differing, lambda row: _count_of(row, over_nodes), _backends(material), has_rate)
        limits: dict[float, float] = {}
        for row in at_size:
            if has_rate and row.comparison is not None:
                count = float(_count_of(row, over_nodes))
                limits[count] = max(limits.get(count, 0.0), row.comparison.expected_bytes_per_s / 1e9)
        title = f"{operation}, {format_size(size)}" if size else operation
        expected = [Limit("expected", limits)] if limits else []
        panels.append(LinePanel(title, NODES if over_nodes else RANKS, BANDWIDTH if has_rate else TIME, lines, expected))
    if not panels:
        counts = sorted({_count_of(row, over_nodes) for row in rows})
        only = f"these have {', '.join(map(str, counts))}" if counts else "these have no times"
        raise UsageError(f"--kind scaling needs runs of one operation with several numbers of ranks or nodes, and a size in common: {only}")
    return panels


def _count_of(row: Row, over_nodes: bool) -> int:
    return row.nodes or 1 if over_nodes else row.ranks


def _lines_over(
    rows: Sequence[Row], differing: Sequence[str], place: Callable[[Row], float], backends: Sequence[str], has_rate: bool
) -> list[MarkedLine]:
    """Return a line for each combination of the differing fields, over the places of its rows."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in differing), []).append(row)
    lines: list[MarkedLine] = []
    for group in groups.values():
        first = group[0]
        words = [text for name in differing if (text := value_of(first, name)) != NOTHING] or [first.backend]
        marks = []
        for row in sorted(group, key=place):
            point = point_of(row)
            value = point.rate if has_rate else point.time and point.time.scaled(1e-6)
            if value is not None:
                marks.append(FigureMark(place(row), value, point.state))
        color = backends.index(first.backend)
        lines.append(MarkedLine(short(" ".join(words), 60), color, sum(line.color == color for line in lines), marks))
    return lines


def _history_panels(material: Material) -> list[Panel]:
    """Return a panel for each operation: the largest size that all runs have, over the date; lines join runs of equal hosts and ranks."""
    dated = [(began, table) for table in material.tables if (began := _began(table)) is not None]
    if len(dated) < 2:
        raise UsageError(f"--kind history needs several runs with a date: these are {len(dated)}")
    dates: dict[int, float] = {}
    hosts: dict[int, tuple[str, ...]] = {}
    rows: list[Row] = []
    for began, table in dated:
        for row in material.rows(table):
            if row.na is None and time_of(row) is not None:
                rows.append(row)
                dates[id(row)] = began
                hosts[id(row)] = tuple(map(str, table.runs[0].info.get("hosts") or ()))
    panels: list[Panel] = []
    for operation in dict.fromkeys(row.operation for row in rows):
        those = [row for row in rows if row.operation == operation]
        by_date: dict[float, set[int]] = {}
        for row in those:
            by_date.setdefault(dates[id(row)], set()).add(row.size_bytes)
        common = set.intersection(*by_date.values())
        if len(by_date) < 2 or not common:
            continue
        size = max(common)
        at_size = [row for row in those if row.size_bytes == size]
        has_rate = all(point_of(row).rate for row in at_size)
        differing = [name for name in SERIES if name == "backend" or len({getattr(row, name) for row in at_size}) > 1]
        lines: list[MarkedLine] = []
        for names in dict.fromkeys(hosts[id(row)] for row in at_size):
            same_hosts = [row for row in at_size if hosts[id(row)] == names]
            lines += _lines_over(same_hosts, differing, lambda row: dates[id(row)], _backends(material), has_rate)
        title = f"{operation}, {format_size(size)}" if size else operation
        panels.append(LinePanel(title, DATES, BANDWIDTH if has_rate else TIME, lines))
    if not panels:
        raise UsageError("--kind history: no two of these runs have an operation and a size in common")
    return panels


def _began(table: Launches) -> float | None:
    """Return when the first run of a table began, in days since 1970; None if it does not say."""
    try:
        return datetime.fromisoformat(str(table.runs[0].info.get("started_utc"))).timestamp() / _SECONDS_PER_DAY
    except ValueError:
        return None


def _ratio_panels(material: Material) -> list[Panel]:
    """Return a panel for each run after the first: its times against those of the first, the worst case first."""
    if len(material.tables) < 2:
        raise UsageError("--kind compare needs two runs: the baseline, then the candidates")
    panels: list[Panel] = []
    for comparison in material.comparisons:
        frame = case_frame(worst_first(comparison.cases))
        cases = []
        for case in frame.records[:MOST_CASES]:
            if case.time is not None and case.outcome is not None:
                is_doubtful = ratio_doubtful(case) or case.wrong or not case.across_launches
                ratio = Value(case.time.value, case.time.low, case.time.high)
                cases.append(CaseLine(short(case_name(case, frame), 60), ratio, case.outcome, is_doubtful))
        if cases:
            title = f"{comparison.b.name} against {comparison.a.name}"
            left_out = max(0, len(frame.records) - MOST_CASES)
            note = f"{title}: the worst {MOST_CASES} of {len(frame.records)} cases are drawn" if left_out else ""
            panels.append(RatioPanel(title, cases, comparison.margin, note))
    if not panels:
        raise UsageError("--kind compare: the runs have no case in common (`collbench compare A B` lists the differences)")
    return panels


KINDS: Mapping[str, Callable[[Material], list[Panel]]] = {
    "bandwidth": lambda material: _size_panels(material, BANDWIDTH),
    "time": lambda material: _size_panels(material, TIME),
    "percent": lambda material: _size_panels(material, PERCENT),
    "scaling": _scaling_panels,
    "history": _history_panels,
    "compare": _ratio_panels,
}


OVER_SIZES = ("bandwidth", "time", "percent")


def kinds() -> dict[str, Callable[[Material], list[Panel]]]:
    """Return the kinds of figures by name, with those of plug-ins."""
    found = dict(KINDS)
    for kinds_of_plugin in hooks_of("figure_kinds"):
        found |= kinds_of_plugin()
    return found


def panels_of(material: Material, kind: str, operations: Sequence[str] = ()) -> list[Panel]:
    """Return the panels of a kind; `operations`: only those of these, as titles begin. Raises UsageError if there are none, or too many."""
    known = kinds()
    if kind not in known:
        raise UsageError(f"--kind '{printable(kind)}' is unknown: choose from {', '.join(known)}")
    panels = known[kind](material)
    if operations:
        titles = [panel.title.partition(",")[0] for panel in panels]
        missing = [name for name in operations if name not in titles]
        if missing:
            raise UsageError(f"--operation '{printable(missing[0])}': these runs have {', '.join(dict.fromkeys(titles)) or 'none'}")
        panels = [panel for panel, title in zip(panels, titles, strict=True) if title in operations]
    if not panels:
        raise UsageError(f"--kind {kind}: these runs have no such values (`collbench report` shows what they have)")
    if len(panels) > MOST_PANELS:
        raise UsageError(f"a figure of {plural(len(panels), 'panel')} is not readable: select at most {MOST_PANELS} with --operation")
    return panels


# The drawing, with matplotlib.

# Colors that people with any color vision can tell apart (Okabe and Ito), in print, too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 2, 2, 2, 2, 2)))
_OF_EXPECTED: Any = (0, (9, 5))
_OF_BOUND: Any = (0, (9, 3, 1, 3))
_WRONG, _QUIET, _EXPECTED = "#C00000", "#777777", "#444444"
_OUTCOMES = {Outcome.SLOWER: "#D55E00", Outcome.FASTER: "#0072B2", Outcome.NO_CHANGE: _QUIET, Outcome.INCONCLUSIVE: _QUIET}
_STYLES = {
    "paper": {"font.size": 8.0, "lines.linewidth": 1.0, "lines.markersize": 3.2, "width": 3.5},
    "slide": {"font.size": 16.0, "lines.linewidth": 2.4, "lines.markersize": 7.0, "width": 10.0},
}
STYLES = tuple(_STYLES)
_MOST_IN_LEGEND = 6  # inside the axes
_LEGEND_INCHES = 1.75  # the width of a name in a legend
_MOST_TICKS = 7
_WIDER = 1.6  # a panel with names of cases
_ASPECT = 0.68


def figure_of(panels: Sequence[Panel], style: str = "paper", size: tuple[float, float | None] | None = None) -> Figure:
    """Return a figure with all panels. size: width and height in inches, None: of the style. Raises UsageError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a figure needs matplotlib: pip install 'collbench[report]'") from error
    settings = _STYLES[style]
    columns = 2 if len(panels) < 7 else 3
    if len(panels) == 1:
        columns = 1
    lines = ceil(len(panels) / columns)
    names = _shared_names(panels)
    has_cases = any(isinstance(panel, RatioPanel) for panel in panels)
    width, height = size or (settings["width"] * columns * (_WIDER if has_cases else 1), None)
    if height is None:
        line_height = 1.6 * settings["font.size"] / 72
        heights = [_height_of(panel, width / columns, line_height) for panel in panels]
        height = sum(max(heights[line * columns : (line + 1) * columns]) for line in range(lines)) + line_height * len(names) / columns
    with mpl.rc_context(_rc(settings)):
        figure = Figure(figsize=(width, height), layout="constrained")
        places = figure.subplots(lines, columns, squeeze=False).ravel()
        shared: dict[str, Any] = {}
        for panel, axes in zip(panels, places, strict=False):
            drawn = draw(panel, axes, has_legend=not names)
            shared |= {name: artist for name, artist in drawn.items() if name not in shared}
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        if names:
            in_a_line = max(1, min(len(names), int(width / _LEGEND_INCHES)))
            figure.legend(shared.values(), map(printable, shared), loc="outside lower center", ncols=in_a_line)
    return figure


def _shared_names(panels: Sequence[Panel]) -> list[str]:
    """Return the names of all lines for one legend below all panels; none if each panel has room for its own."""
    names = list(dict.fromkeys(line.name for panel in panels if isinstance(panel, LinePanel) for line in panel.lines))
    return names if len(panels) > 1 or len(names) > _MOST_IN_LEGEND else []


def _height_of(panel: Panel, width: float, line_height: float) -> float:
    """Return the height of a panel in inches: a part of its width, or a line for each case."""
    return line_height * (5 + len(panel.cases)) if isinstance(panel, RatioPanel) else _ASPECT * width


def _rc(settings: Mapping[str, float]) -> Any:
    """Return matplotlib's settings: text stays text in PDF and SVG, and equal runs make equal files."""
    own = {name: value for name, value in settings.items() if name != "width"}
    return {
        **own, "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": "medium",
        "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "legend.frameon": False, "legend.fontsize": "small",
        "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "collbench", "savefig.dpi": 300, "text.parse_math": False,
    }  # fmt: skip


def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's ending, without the date. Raises UsageError for another ending, or if it fails."""
    ending = check_ending(path)
    import warnings

    import matplotlib as mpl

    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[ending]
    try:
        with mpl.rc_context(_rc(_STYLES["paper"])), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name with letters that the font lacks
            figure.savefig(path, format=ending, metadata=metadata)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written ({error.strerror or error}): choose another file") from error


def check_ending(path: Path) -> str:
    """Return the format of a file's name: pdf, svg or png. Raises UsageError for another one."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise UsageError(f"--out {printable(str(path))}: the name must end with .pdf, .svg or .png")
    return ending


def draw(panel: Panel, axes: Axes, *, has_legend: bool = True) -> dict[str, Any]:
    """Draw a panel on matplotlib's axes; return the artists of its lines and limits by name.

    The `gid` of an artist says what it is: "line 0", "doubtful 0", "interval 0", "limit 0".
    """
    axes.set_title(printable(panel.title))
    if isinstance(panel, LinePanel):
        return _draw_lines(panel, axes, has_legend)
    if isinstance(panel, RatioPanel):
        _draw_ratios(panel, axes)
    else:
        _draw_matrix(panel, axes)
    return {}


def _draw_lines(panel: LinePanel, axes: Axes, has_legend: bool) -> dict[str, Any]:
    if panel.over != DATES:
        axes.set_xscale("log", base=2)
    if panel.values == TIME:
        axes.set_yscale("log")
    artists: dict[str, Any] = {}
    for number, limit in enumerate(panel.limits):
        color = _EXPECTED if limit.color is None else _COLORS[limit.color % len(_COLORS)]
        look = {"color": color, "linestyle": _OF_BOUND if limit.is_bound else _OF_EXPECTED, "linewidth": 0.8, "alpha": 0.8}
        (drawn,) = axes.plot(list(limit.values), list(limit.values.values()), zorder=1, gid=f"limit {number}", **look)
        artists[limit.name] = drawn
    for number, line in enumerate(panel.lines):
        artists[line.name] = _draw_line(axes, line, number, panel.over)
    _set_places(panel, axes)
    if panel.values == TIME:
        axes.yaxis.set_major_formatter(lambda value, _: _time_text(value))
        axes.set_ylabel("time")
    else:
        axes.set_ylim(bottom=0)
        axes.set_ylabel(panel.values)
    if has_legend and len(artists) > 1:
        rates = {limit.name: f"{limit.name} {limit.rates}" for limit in panel.limits if panel.values == BANDWIDTH}
        axes.legend(artists.values(), [printable(rates.get(name, name)) for name in artists], loc="best")
    return artists


def _draw_line(axes: Axes, line: MarkedLine, number: int, over: str) -> Any:
    """Draw a line, its intervals and its marks; return the line for the legend."""
    color = _QUIET if line.color < 0 else _COLORS[line.color % len(_COLORS)]
    dash = _DASHES[line.dash % len(_DASHES)]
    places: list[float] = []
    values: list[float] = []
    before = 0.0
    for mark in line.marks:
        if over == SIZES and before and mark.at > FAR * before:  # nothing was measured between
            places.append(mark.at / 2)
            values.append(nan)
        places.append(mark.at)
        values.append(mark.value.value)
        before = mark.at
    (drawn,) = axes.plot(places, values, color=color, linestyle=dash, zorder=2, gid=f"line {number}")
    for mark in line.marks:
        if mark.value.low is not None and mark.value.high is not None:
            axes.vlines(mark.at, mark.value.low, mark.value.high, color=color, linewidth=0.8, alpha=0.7, gid=f"interval {number}")
    looks: dict[str, dict[str, Any]] = {
        "": {"marker": "o", "color": color},
        "doubtful": {"marker": "o", "color": color, "markerfacecolor": "white"},
        "wrong": {"marker": "x", "color": _WRONG, "markeredgewidth": 1.6},
    }
    for state, look in looks.items():
        chosen = [mark for mark in line.marks if mark.state == state]
        if chosen:
            name = f"{state or 'sound'} {number}"
            axes.plot([mark.at for mark in chosen], [mark.value.value for mark in chosen], linestyle="none", zorder=3, gid=name, **look)
    return drawn


def _set_places(panel: LinePanel, axes: Axes) -> None:
    """Label the x axis: sizes and numbers as they were measured, not powers of ten."""
    if panel.over == DATES:
        import matplotlib.dates as mdates

        locator = mdates.AutoDateLocator(maxticks=_MOST_TICKS)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        return
    places = sorted({mark.at for line in panel.lines for mark in line.marks})
    every = ceil(len(places) / _MOST_TICKS)
    shown = places[::-1][::every][::-1]  # the largest always
    axes.set_xticks(shown, [format_size(int(at)) if panel.over == SIZES else f"{at:g}" for at in shown])
    axes.set_xticks([], minor=True)
    if panel.over == SIZES:
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_xlabel(panel.over)


def _time_text(seconds: float) -> str:
    """Return a time with a unit of its size: "2 µs", "50 ms"."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def _draw_ratios(panel: RatioPanel, axes: Axes) -> None:
    """Draw a line per case, from the worst at the top; filled marks are decided, open ones are inconclusive or doubtful."""
    axes.axvspan(1 / (1 + panel.margin), 1 + panel.margin, color=_QUIET, alpha=0.15, linewidth=0)
    axes.axvline(1.0, color=_QUIET, linewidth=0.8)
    for place, case in enumerate(panel.cases):
        color = _OUTCOMES[case.outcome]
        if case.ratio.low is not None and case.ratio.high is not None:
            axes.hlines(place, case.ratio.low, case.ratio.high, color=color, linewidth=0.9, gid=f"interval {place}")
        face = "white" if case.is_doubtful or case.outcome is Outcome.INCONCLUSIVE else color
        axes.plot(case.ratio.value, place, marker="o", linestyle="none", color=color, markerfacecolor=face, gid=f"{case.outcome} {place}")
    axes.set_yticks(range(len(panel.cases)), [printable(case.name) for case in panel.cases])
    axes.set_ylim(len(panel.cases) - 0.4, -0.6)
    axes.set_xlabel("← faster · time / time of the baseline · slower →")


def _draw_matrix(panel: MatrixPanel, axes: Axes) -> None:
    image = axes.imshow(panel.values, cmap="viridis", gid="values")
    for row, column in panel.marked:
        axes.plot(column, row, marker="o", markerfacecolor="none", markersize=9, color=_WRONG, gid=f"marked {row} {column}")
    every = ceil(sqrt(len(panel.names)) / 4)
    shown = range(0, len(panel.names), every)
    axes.set_xticks(shown, [printable(panel.names[place]) for place in shown], rotation=90)
    axes.set_yticks(shown, [printable(panel.names[place]) for place in shown])
    axes.set_xlabel("receives")
    axes.set_ylabel("sends")
    colorbar = axes.figure.colorbar(image, ax=axes)
    colorbar.set_label(panel.unit)
