"""Figures of runs in a file: their kinds, and the layout of their panels.

A kind of figure is a function that returns panels (`report.charts`), which `report.figures` draws. Plug-ins add kinds by the hook
"figure_kinds".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.analysis.compare import worst_first
from collbench.analysis.launches import Launches, grouped, time_of
from collbench.errors import UsageError
from collbench.machine.cluster import folded
from collbench.plugin import hooks_of
from collbench.report.charts import (
    BANDWIDTH,
    DASH_COUNT,
    DATES,
    LONGEST_NAME,
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
    distinct_names,
    free_look,
    highest_limits,
    limit_lines,
    point_of,
    series_words,
    size_charts,
    size_panel,
    told_apart,
)
from collbench.report.compare import case_frame, case_name
from collbench.report.figures import draw, settings
from collbench.report.frame import printable
from collbench.report.material import Material
from collbench.results.row import SERIES, Row
from collbench.units import format_size, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
MOST_CASES = 40  # of a comparison
FORMATS = ("pdf", "svg", "png")
_SECONDS_PER_DAY = 86400.0
_FIRST_YEAR, _LAST_YEAR = 1970, 2200  # of dates that are drawn
_RATIO_AXIS = "← faster · time / time of the baseline · slower →"


# The kinds: from the runs to panels.


def _size_panels(material: Material, values: str) -> list[Panel]:
    panels = [size_panel(chart, values) for chart in size_charts(material)]
    return [panel for panel in panels if panel is not None]


def _backends(material: Material) -> list[str]:
    return list(dict.fromkeys(row.backend for table in material.tables for row in material.rows(table)))


class _Placed(msgspec.Struct, frozen=True):
    """A row at its place on the axis: a number of ranks or nodes, or a date.

    run        the name of its run
    part       what only rows of one line have in common, such as their hosts
    part_name  this as text; "" if all rows have the same
    """

    row: Row
    at: float
    run: str
    part: tuple[Any, ...] = ()
    part_name: str = ""


def _scaling_panels(material: Material) -> list[Panel]:
    """Return a panel for each operation that was measured with several numbers of ranks, at the largest size that all of them have."""
    timed = _timed_rows(material)
    over_nodes = len({row.nodes for _, row in timed if row.nodes}) > 1
    has_ranks = over_nodes and len({row.ranks for _, row in timed}) > 1
    placed: list[_Placed] = []
    for run, row in timed:
        nodes = row.nodes or 1
        if has_ranks:
            per_node = row.ranks / nodes
            placed.append(_Placed(row, nodes, run, (per_node,), f"{per_node:g} ranks per node"))
        else:
            placed.append(_Placed(row, nodes if over_nodes else row.ranks, run))
    panels = _panels_over(placed, NODES if over_nodes else RANKS, _backends(material))
    if not panels:
        counts = sorted({int(placed_row.at) for placed_row in placed})
        only = f"these have {', '.join(map(str, counts))}" if counts else "these have no times"
        raise UsageError(f"--kind scaling needs runs of one operation with several numbers of ranks or nodes, and a size in common: {only}")
    return panels


def _timed_rows(material: Material) -> list[tuple[str, Row]]:
    """Return all rows with a time, each with the name of its run."""
    names = distinct_names(material.tables)
    every = [(name, row) for name, table in zip(names, material.tables, strict=True) for row in material.rows(table)]
    return [(name, row) for name, row in every if row.na is None and time_of(row) is not None]


def _history_panels(material: Material) -> list[Panel]:
    """Return a panel for each operation: the largest size that all runs have, over the date; lines join runs of equal hosts and ranks."""
    dates: dict[str, float] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    for name, table in zip(distinct_names(material.tables), material.tables, strict=True):
        began = _began(table)
        if began is not None:
            dates[name] = began
            hosts[name] = tuple(sorted(map(str, table.runs[0].info.get("hosts") or ())))
    years = f"{_FIRST_YEAR} to {_LAST_YEAR}"
    if len(dates) < 2:
        raise UsageError(f"--kind history needs several runs with a date ({years}): these are {len(dates)}")
    is_one_machine = len(set(hosts.values())) == 1
    placed: list[_Placed] = []
    for run, row in _timed_rows(material):
        if run in dates:
            on_hosts = "" if is_one_machine else folded(hosts[run]) or "hosts unknown"
            placed.append(_Placed(row, dates[run], run, hosts[run], on_hosts))
    left_out = len(material.tables) - len(dates)
    note = f"{plural(left_out, 'run')} left out: no date ({years})" if left_out else ""
    panels = _panels_over(placed, DATES, _backends(material), note)
    if not panels:
        raise UsageError("--kind history: no two of these runs have an operation and a size in common")
    return panels


def _began(table: Launches) -> float | None:
    """Return when the first run of a table began, in days since 1970; None if it does not say, or says a year that is not drawn."""
    try:
        began = datetime.fromisoformat(str(table.runs[0].info.get("started_utc")))
    except ValueError:
        return None
    return began.timestamp() / _SECONDS_PER_DAY if _FIRST_YEAR <= began.year <= _LAST_YEAR else None


def _panels_over(placed: Sequence[_Placed], over: str, backends: Sequence[str], note: str = "") -> list[Panel]:
    """Return a panel for each operation with several places: its lines over them, at the largest size that all places have."""
    looks: dict[str, tuple[int, int]] = {}
    panels: list[Panel] = []
    for operation, those in grouped(placed, lambda placed_row: placed_row.row.operation).items():
        sizes = [
            {placed_row.row.size_bytes for placed_row in at_place} for at_place in grouped(those, lambda placed_row: placed_row.at).values()
        ]
        common = set.intersection(*sizes)
        if len(sizes) < 2 or not common:
            continue
        size = max(common)
        at_size = [placed_row for placed_row in those if placed_row.row.size_bytes == size]
        has_rate = all(point_of(placed_row.row).rate for placed_row in at_size)
        lines = _lines_over(at_size, over, backends, has_rate, looks)
        limits: list[Limit] = []
        if has_rate and over != DATES:
            compared = [(int(placed_row.at), placed_row.row) for placed_row in at_size if placed_row.row.comparison is not None]
            expected = [limit for limit in limit_lines(compared, backends) if limit.kind == "expected"]
            limits = highest_limits(expected, len({placed_row.row.backend for placed_row in at_size}) > 1)
        title = f"{operation}, {format_size(size)}" if size else operation
        panels.append(LinePanel(title, over, BANDWIDTH if has_rate else TIME, lines, limits, note))
    return panels


def _lines_over(
    placed: Sequence[_Placed], over: str, backends: Sequence[str], has_rate: bool, looks: dict[str, tuple[int, int]]
) -> list[MarkedLine]:
    """Return a line for each series and part, or for each run of these where runs are at the same places.

    looks: the color and dash of each line by name, in all panels; those of new lines are added
    """
    ignored = () if over == DATES else ("ranks", "nodes", "group")
    rows = [placed_row.row for placed_row in placed]
    differing = [name for name in SERIES if name == "backend" or (name not in ignored and len({getattr(row, name) for row in rows}) > 1)]
    groups: list[list[_Placed]] = []
    names: list[str] = []
    for group in grouped(placed, lambda placed_row: (placed_row.part, *(getattr(placed_row.row, name) for name in differing))).values():
        words = [" ".join(series_words(group[0].row, differing)), group[0].part_name]
        name = ", ".join(word for word in words if word)
        of_runs = grouped(group, lambda placed_row: placed_row.run)
        if _is_crowded(group) and not any(_is_crowded(of_run) or len(of_run) == 1 for of_run in of_runs.values()):
            groups += of_runs.values()
            names += [f"{name} ({run})" for run in of_runs]
        else:
            groups.append(group)
            names.append(name)
    lines: list[MarkedLine] = []
    for name, group in zip(told_apart(names, LONGEST_NAME), groups, strict=True):
        is_joined = len(group) > 1 and not _is_crowded(group)
        if name not in looks:
            looks[name] = _look(backends.index(group[0].row.backend), looks.values(), is_joined, len(backends))
        marks = []
        for placed_row in sorted(group, key=lambda placed_row: placed_row.at):
            point = point_of(placed_row.row)
            value = point.rate if has_rate else point.time and point.time.scaled(1e-6)
            if value is not None:
                marks.append(FigureMark(placed_row.at, value, point.state))
        color, dash = looks[name]
        lines.append(MarkedLine(name, color, dash, marks, is_joined=is_joined))
    return lines


def _is_crowded(placed: Sequence[_Placed]) -> bool:
    """Return whether several of these are at one place."""
    return len({placed_row.at for placed_row in placed}) < len(placed)


def _look(backend: int, used: Collection[tuple[int, int]], is_joined: bool, backend_count: int) -> tuple[int, int]:
    """Return a free color and dash; points that no line joins have a color of their own, if one is free, since they show no dash."""
    if is_joined or all(color != backend for color, _ in used):
        return free_look(backend, used)
    taken = {*(color for color, _ in used), *range(backend_count)}
    return free_look(backend, [(color, dash) for color in taken for dash in range(DASH_COUNT)])


def _ratio_panels(material: Material) -> list[Panel]:
    """Return a panel for each run after the first: its times against those of the first, the worst case first."""
    if len(material.tables) < 2:
        raise UsageError("--kind compare needs two runs: the baseline, then the candidates")
    baseline, *candidates = distinct_names(material.tables)
    panels: list[RatioPanel] = []
    left_out: list[str] = []
    for name, comparison in zip(candidates, material.comparisons, strict=False):
        title = f"{name} against {baseline}"
        frame = case_frame(worst_first(comparison.cases))
        drawable = [case for case in frame.records if case.time is not None and case.outcome is not None]
        lines = [replace(case_line(case, case_name(case, frame)), words="") for case in drawable[:MOST_CASES]]
        note = f"{title}: the worst {len(lines)} of {len(frame.records)} cases are drawn" if len(lines) < len(frame.records) else ""
        if lines:
            panels.append(RatioPanel(title, lines, _RATIO_AXIS, 1 + comparison.margin, comparison.margin, note))
        else:
            left_out.append(f"{title}: not drawn, since no case has a time in both")
    if len(candidates) > len(material.comparisons):
        left_out.append(f"the first {len(material.comparisons)} of {len(candidates)} candidates are drawn")
    if not panels:
        raise UsageError("--kind compare: the runs have no case in common (`collbench compare A B` lists the differences)")
    notes = [note for note in (*left_out, panels[0].note) if note]
    return [replace(panels[0], note="; ".join(notes)), *panels[1:]]


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
_MOST_OF_WIDTH = 0.6  # of a panel, for a legend inside it
_MOST_OF_HEIGHT = 0.4  # of a figure, for a legend below its panels
_SMALL = 0.833  # the font of legends, as a part of the figure's
_LEGEND_LINE = 1.4  # the height of a line of a legend, in parts of its font, like the next ones
_LEGEND_KEY = 4.8  # the width of a line's picture, with the spaces around it
_Y_LABELS, _X_LABELS = 6.0, 6.5  # the room for the labels of an axis, with the title above the panel
_LONGEST_TITLE, _SHORTEST = 100, 8  # letters
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
    has_cases = any(isinstance(panel, RatioPanel) for panel in panels)
    width, height = size or (_COLUMN * columns * (_WIDER if has_cases else 1), None)
    with mpl.rc_context(_rc(style)):
        names = _shared_names(panels, width / columns, font_size)
        shown, in_a_line = _legend_names(names, width, height, font_size)
        legend_height = ceil(len(names) / in_a_line) * _LEGEND_LINE * _SMALL * font_size / 72
        if height is None:
            heights = [_height_of(panel, width / columns, 1.6 * font_size / 72) for panel in panels]
            height = sum(max(heights[line * columns : (line + 1) * columns]) for line in range(lines)) + legend_height
        figure = Figure(figsize=(width, height), layout="constrained")
        places = figure.subplots(lines, columns, squeeze=False).ravel()
        shared: dict[str, Any] = {}
        for panel, axes in zip(panels, places, strict=False):
            drawn = draw(replace(panel, title=""), axes, has_legend=not names)
            shared |= {name: artist for name, artist in drawn.items() if name not in shared}
            _set_title(axes, panel, width / columns, font_size)
            _wrap_label(axes, (height - legend_height) / lines, font_size)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        if names:
            figure.legend([shared[name] for name in names], shown, loc="outside lower center", ncols=in_a_line)
    return figure


def _shared_names(panels: Sequence[Panel], width: float, font_size: float) -> list[str]:
    """Return the names of all limits and lines for one legend below all panels; none if each panel has room for its own."""
    every: list[str] = []
    for panel in panels:
        if isinstance(panel, LinePanel):
            every += [limit.name for limit in panel.limits]
            every += [line.name for line in panel.lines]
    names = list(dict.fromkeys(every))
    is_wide = any(_entry_width(name, font_size) > _MOST_OF_WIDTH * width for name in names)
    return names if len(panels) > 1 or len(names) > _MOST_IN_LEGEND or is_wide else []


def _legend_names(names: Sequence[str], width: float, height: float | None, font_size: float) -> tuple[list[str], int]:
    """Return the names for a legend of this width, cut where they are too long, and how many fit side by side (at least 1).

    Of a figure with a fixed height the legend takes a part only, so that more and shorter names are side by side.
    """
    widest = max((_entry_width(name, font_size) for name in names), default=width)
    in_a_line = max(1, min(len(names), int(width / widest)))
    if height is not None:
        most_lines = max(1, int(_MOST_OF_HEIGHT * height * 72 / (_LEGEND_LINE * _SMALL * font_size)))
        in_a_line = max(in_a_line, ceil(len(names) / most_lines))
    return _fitting(names, width / in_a_line - _entry_width("", font_size), _SMALL * font_size), in_a_line


def _entry_width(name: str, font_size: float) -> float:
    """Return the width of a name in a legend with its line, in inches."""
    return _text_width(name, _SMALL * font_size) + _LEGEND_KEY * _SMALL * font_size / 72


def _text_width(text: str, font_size: float) -> float:
    """Return the width of a text in inches, with 2 % to spare."""
    import warnings

    from matplotlib.textpath import TextPath

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks
        return 1.02 * TextPath((0, 0), printable(text) or " ", size=font_size).get_extents().width / 72 if text else 0.0


def _fitting(texts: Sequence[str], width: float, font_size: float) -> list[str]:
    """Return the texts, cut to at most this width in inches, and with numbers where they are equal then."""
    most = _LONGEST_TITLE
    shown = told_apart(texts, most)
    while most > _SHORTEST and any(_text_width(text, font_size) > width for text in shown):
        most = max(_SHORTEST, int(0.9 * most))
        shown = told_apart(texts, most)
    return shown


def _set_title(axes: Axes, panel: Panel, width: float, font_size: float) -> None:
    """Set the title of a panel of this width: above the middle of the axes, or if it is longer than these, up to their right end."""
    if not panel.title:
        return
    letter = font_size / 72
    room = width / 2 if isinstance(panel, RatioPanel) else width - _Y_LABELS * letter
    (title,) = _fitting([panel.title], width - 2 * letter, font_size)
    axes.set_title(title, loc="center" if _text_width(title, font_size) <= room else "right")


def _wrap_label(axes: Axes, height: float, font_size: float) -> None:
    """Set the label of the y axis in two lines if a panel of this height has no room for one."""
    label = axes.get_ylabel()
    if _text_width(label, font_size) > height - _X_LABELS * font_size / 72:
        axes.set_ylabel(fill(label, ceil(0.75 * len(label))))


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
