"""Figures of runs in a file: their kinds, and the layout of their panels.

A kind of figure is a function that returns panels (`report.charts`), which `report.figures` draws. Plug-ins add kinds by the hook
"figure_kinds".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.analysis.compare import worst_first
from collbench.analysis.launches import Launches, time_of
from collbench.errors import UsageError
from collbench.plugin import hooks_of
from collbench.report.cases import NOTHING, value_of
from collbench.report.charts import (
    BANDWIDTH,
    DATES,
    NODES,
    PERCENT,
    RANKS,
    TIME,
    FigureMark,
    Limit,
    LinePanel,
    MarkedLine,
    Panel,
    RatioPanel,
    case_line,
    point_of,
    size_charts,
    size_panel,
)
from collbench.report.compare import case_frame, case_name
from collbench.report.figures import draw, settings
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.material import Material
from collbench.results.row import SERIES, Row
from collbench.units import format_size, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 12
MOST_CASES = 40  # of a comparison
FORMATS = ("pdf", "svg", "png")
_SECONDS_PER_DAY = 86400.0
_RATIO_AXIS = "← faster · time / time of the baseline · slower →"


# The kinds: from the runs to panels.


def _size_panels(material: Material, values: str) -> list[Panel]:
    panels = [size_panel(chart, values) for chart in size_charts(material)]
    return [panel for panel in panels if panel is not None]


def _backends(material: Material) -> list[str]:
    return list(dict.fromkeys(row.backend for table in material.tables for row in material.rows(table)))


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
        lines = []
        for case in frame.records[:MOST_CASES]:
            if case.time is not None and case.outcome is not None:
                lines.append(replace(case_line(case, case_name(case, frame)), words=""))
        if lines:
            title = f"{comparison.b.name} against {comparison.a.name}"
            left_out = max(0, len(frame.records) - MOST_CASES)
            note = f"{title}: the worst {MOST_CASES} of {len(frame.records)} cases are drawn" if left_out else ""
            panels.append(RatioPanel(title, lines, _RATIO_AXIS, 1 + comparison.margin, comparison.margin, note))
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


# The layout of the panels in a file.

_STYLES = {
    "paper": {"font.size": 8.0, "lines.linewidth": 1.0, "lines.markersize": 3.2},
    "slide": {"font.size": 16.0, "lines.linewidth": 2.4, "lines.markersize": 7.0},
}
STYLES = tuple(_STYLES)
_COLUMN = 3.5  # inches: the width of a panel on paper
_SLIDE = (13.33, 7.5)  # inches: all panels of a slide
_MOST_ON_SLIDE = 4
_MOST_IN_LEGEND = 6  # inside the axes
_LEGEND_INCHES = 1.75  # the width of a name in a legend
_WIDER = 1.6  # a panel with names of cases
_ASPECT = 0.68


def figure_of(panels: Sequence[Panel], style: str = "paper", size: tuple[float, float | None] | None = None) -> Figure:
    """Return a figure with all panels. size: width and height in inches, None: of the style. Raises UsageError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a figure needs matplotlib: pip install 'collbench[report]'") from error
    font_size = _STYLES[style]["font.size"]
    if style == "slide":
        if len(panels) > _MOST_ON_SLIDE:
            raise UsageError(f"a slide of {plural(len(panels), 'panel')} is not readable: select at most {_MOST_ON_SLIDE} with --operation")
        size = size or _SLIDE
    columns = 2 if len(panels) < 7 else 3
    if len(panels) == 1:
        columns = 1
    lines = ceil(len(panels) / columns)
    names = _shared_names(panels)
    has_cases = any(isinstance(panel, RatioPanel) for panel in panels)
    width, height = size or (_COLUMN * columns * (_WIDER if has_cases else 1), None)
    if height is None:
        line_height = 1.6 * font_size / 72
        heights = [_height_of(panel, width / columns, line_height) for panel in panels]
        height = sum(max(heights[line * columns : (line + 1) * columns]) for line in range(lines)) + line_height * len(names) / columns
    with mpl.rc_context(_rc(style)):
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
    return line_height * (5 + len(panel.lines)) if isinstance(panel, RatioPanel) else _ASPECT * width


def _rc(style: str) -> Any:
    """Return matplotlib's settings of a style: sizes, and text that stays text in PDF."""
    return {
        **settings(), **_STYLES[style],
        "axes.titlesize": "medium", "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
        "legend.fontsize": "small", "pdf.fonttype": 42, "savefig.dpi": 300,
    }  # fmt: skip


def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's ending, without the date. Raises UsageError for another ending, or if it fails."""
    ending = check_ending(path)
    import warnings

    import matplotlib as mpl

    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[ending]
    try:
        with mpl.rc_context(_rc("paper")), warnings.catch_warnings():
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
