"""A dashboard as a picture (SVG): its panels with the records that their queries of PostgreSQL return, without Grafana.

It has the layout, titles and values of the dashboard, so that a page can show what a user gets. Grafana draws more precisely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.grafana import Dashboard, Panel, expanded, places
from collbench.plugins.store.schema import POSTGRESQL
from collbench.report.frame import printable
from collbench.report.html.drawing import COLORS, AxisScale, Picture, draw_legend, linear_scale, series_classes
from collbench.report.writers import write_whole
from collbench.units import first_of, format_duration, format_percent, format_rate, format_time

_WIDTH, _COLUMN, _ROW, _GAP, _TOP = 1200.0, 50.0, 34.0, 8.0, 44.0  # pixels
_HEAD, _LINE = 30.0, 19.0  # the title of a panel, a line of a table
_LETTER, _BOLD = 6.1, 7.2  # width of a letter
_MOST_SERIES = 8
_COLORS = Path(__file__).parents[2] / "report/html/drawing.css"  # those of a page
_CLASSES = {"good": "limit", "doubtful": "bound", "bad": "bad", "unknown": "quiet"}
_STYLE = """
svg { font: 11px var(--font); } .desk { fill: var(--desk); } .card { fill: var(--paper); stroke: var(--edge); }
svg text.head { fill: var(--ink); font-weight: 600; font-size: 12px; }
svg text.title { fill: var(--ink); font-weight: 650; font-size: 16px; }
svg text.big { fill: var(--ink); font-weight: 650; font-size: 24px; }
"""


Records = Sequence[Mapping[str, Any]]  # of a query, by name of the column, in the order of the columns
_MOMENTS = ("time", "started")  # columns


def write_previews(dashboards: Sequence[Dashboard], store: str, folder: Path) -> list[Path]:
    """Draw each dashboard from a store in PostgreSQL into a file NAME.svg; return the files.

    The time range is the dashboard's default one, before the newest run of the store. Raises UsageError.
    """
    database, paths = open_store(store), []
    try:
        for each in dashboards:
            path = folder / f"{each.name}.svg"
            write_whole(path, dashboard_picture(each, *read_dashboard(each, database)), "--preview")
            paths.append(path)
    finally:
        database.close()
    return paths


def read_dashboard(dashboard: Dashboard, database: Database) -> tuple[dict[str, Records], dict[str, list[str]]]:
    """Return (records of each panel by title, values of the variables) for the dashboard's time range before the newest run of a store.

    Of each variable the first value is chosen, and of one with several values all, as in Grafana. Raises UsageError if the store cannot be
    read, is not in PostgreSQL, or has no run with a time.
    """
    if database.dialect is not POSTGRESQL:
        raise UsageError(f"{database.name} is not a PostgreSQL database: a preview runs the queries for PostgreSQL")
    ((newest,),) = database.rows("SELECT max(started_s) FROM runs")
    if newest is None:
        raise UsageError(f"store {database.name} has no run with a time: add runs with `collbench store sync`")
    begin, end = newest - dashboard.hours * 3600.0, newest + 3600.0
    chosen: dict[str, list[str]] = {}
    for variable in dashboard.variables:
        values = [str(value) for (value,) in database.rows(expanded(variable.postgresql, begin, end, chosen))]
        if not values:
            raise UsageError(f"store {database.name} has no {variable.label}: add runs with `collbench store sync`")
        chosen[variable.name] = values if variable.many else values[:1]
    found = {panel.title: _records(database, expanded(panel.postgresql, begin, end, chosen)) for panel in dashboard.panels}
    return found, chosen


def _records(database: Database, sql: str) -> Records:
    found: list[dict[str, Any]] = [each for (each,) in database.rows(f"SELECT row_to_json(found) FROM ({sql}) AS found")]
    for each in found:
        each.update({name: datetime.fromisoformat(each[name]) for name in _MOMENTS if each.get(name) is not None})
    return found


@dataclass(frozen=True)
class _PanelBox:
    """The inside of a panel, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


def dashboard_picture(dashboard: Dashboard, found: Mapping[str, Records], chosen: Mapping[str, Sequence[str]]) -> str:
    """Return the dashboard as an SVG file; `found` has the records of each panel by its title, `chosen` the values of its variables."""
    values = " · ".join(f"{each.label}: {first_of(chosen[each.name], 4)}" for each in dashboard.variables)
    placed = list(places(dashboard.panels))
    height = _TOP + max(y + panel.height for panel, _, y in placed) * _ROW + _GAP
    picture = Picture(_WIDTH, height)
    picture.add("rect", "desk", x=0, y=0, width=_WIDTH, height=height)
    title = f"collbench: {dashboard.title}"
    picture.text(_GAP * 2, 28, title, classes="title")
    picture.text(_WIDTH - _GAP * 2, 28, values, "end", "ink")
    for panel, column, row in placed:
        x, y = column * _COLUMN + _GAP / 2, _TOP + row * _ROW
        wide, high = panel.width * _COLUMN - _GAP, panel.height * _ROW - _GAP
        picture.add("rect", "card", x=x, y=y, width=wide, height=high, rx=4)
        picture.text(x + 10, y + 19, _cut(panel.title, wide - 20, _BOLD), classes="head")
        if not found[panel.title]:
            picture.text(x + wide / 2, y + high / 2, "no data", "middle")
            continue
        _DRAWN[panel.kind](picture, panel, found[panel.title], _PanelBox(x + 10, y + _HEAD, x + wide - 10, y + high - 8))
    size = f'xmlns="http://www.w3.org/2000/svg" width="{_WIDTH:g}" height="{height:g}"'
    head, _, rest = picture.markup(title).replace("<svg", f"<svg {size}", 1).partition(">")
    return f"{head}><title>{title}</title><style>{_COLORS.read_text(encoding='utf-8')}{_STYLE}</style>{rest}\n"


# Values as text, in the unit of a panel.


def value_text(value: Any, unit: str = "short") -> str:
    """Return a value as a panel of that unit shows it: "5.07 GB/s", "12.35 µs", "63 %"; "–" if it is unknown."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    if isinstance(value, str):
        return printable(value)
    return _TEXTS[unit](float(value)) if unit in _TEXTS else f"{float(value):.4g}"


_TEXTS: Mapping[str, Callable[[float], str]] = {
    "Bps": lambda number: f"{format_rate(number)} GB/s",
    "s": lambda number: format_duration(number) if number >= 1 else f"{format_time(number)} µs",
    "percentunit": lambda number: format_percent(100 * number),
    "dateTimeFromNow": lambda number: datetime.fromtimestamp(number / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
    "hertz": lambda number: f"{number / 1e6:.0f} MHz",
    "watt": lambda number: f"{number:.0f} W",
    "celsius": lambda number: f"{number:.0f} °C",
}
# Of the axes of a chart: (factor, name).
_FACTORS = {"Bps": (1e-9, "GB/s"), "percentunit": (100.0, "%"), "hertz": (1e-6, "MHz"), "watt": (1.0, "W"), "celsius": (1.0, "°C")}


def _scaled(unit: str, most: float) -> tuple[float, str]:
    """Return (factor, name) of the unit of an axis; for seconds by the largest value."""
    of_time = (1.0, "s") if most >= 10 else (1e3, "ms") if most >= 0.01 else (1e6, "µs")
    return of_time if unit == "s" else _FACTORS.get(unit, (1.0, ""))


def _cut(text: str, wide: float, letter: float = _LETTER) -> str:
    most = max(4, int(wide / letter))
    return text if len(text) <= most else text[: most - 1] + "…"


def _color(panel: Panel, value: Any) -> str:
    """Return the class of a value's color; "" without limits and states."""
    if not isinstance(value, int | float):
        return ""
    if panel.states and int(value) in panel.states:
        return _CLASSES[panel.states[int(value)].color]
    known = [color for limit, color in panel.limits if limit is None or value >= limit]
    return _CLASSES[known[-1]] if known else ""


# The kinds of panels.


def _draw_stat(picture: Picture, panel: Panel, found: Records, room: _PanelBox) -> None:
    value = list(found[0].values())[-1]
    named = panel.states.get(int(value)) if panel.states and value is not None else None
    text = named.name if named else value_text(value, panel.unit)
    picture.text((room.left + room.right) / 2, (room.top + room.bottom) / 2 + 8, text, "middle", f"big {_color(panel, value)}".strip())


def _draw_table(picture: Picture, panel: Panel, found: Records, room: _PanelBox) -> None:
    most = int((room.bottom - room.top) / _LINE) - 1
    columns = [(name, [value_text(each[name]) for each in found[:most]]) for name in found[0]]
    widths = [max(1.2 * len(name), *map(len, texts)) + 2 for name, texts in columns]
    x = room.left
    for (name, texts), letters in zip(columns, widths, strict=True):
        wide = letters * (room.right - room.left) / sum(widths)
        picture.text(x, room.top + 12, _cut(name, wide - 8, _BOLD), classes="head")
        for line, text in enumerate(texts, 1):
            picture.text(x, room.top + 12 + line * _LINE, _cut(text, wide - 8), classes="ink")
        x += wide


def _draw_bars(picture: Picture, panel: Panel, found: Records, room: _PanelBox) -> None:
    pairs = [list(each.values()) for each in found]
    known = [(str(each[0]), float(each[-1])) for each in pairs if each[-1] is not None]
    left = room.left + max(len(name) for name, _ in known) * _LETTER + 10
    high = min(_LINE + 4, (room.bottom - room.top) / len(known))
    scale = (room.right - left - 90) / (max(value for _, value in known) or 1.0)
    for line, (name, value) in enumerate(known):
        y = room.top + line * high
        picture.text(room.left, y + high / 2 + 4, name, classes="ink")
        picture.add("rect", _color(panel, value) or "s0", x=left, y=y + 2, width=max(1.0, scale * value), height=high - 4)
        picture.text(room.right, y + high / 2 + 4, value_text(value, panel.unit), "end", "ink")


def _draw_lines(picture: Picture, panel: Panel, found: Records, room: _PanelBox) -> None:
    series: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        series.setdefault(each["metric"], []).append((each["time"].timestamp(), float(each["value"])))
    shown = dict(sorted(series.items())[:_MOST_SERIES])
    points = [point for line in shown.values() for point in line]
    factor, unit = _scaled(panel.unit, max(value for _, value in points))
    names, inside = [(name, number) for number, name in enumerate(shown)], Picture(room.right, 0)
    bottom = room.bottom - draw_legend(inside, names, room.left, 0) - 20
    values = [value * factor for _, value in points]
    low = 0.0 if panel.unit in ("Bps", "percentunit", "short") and panel.decimals != 3 else min(values)
    y = linear_scale(low, max(values), bottom, room.top + 12)
    x = _time_scale([time for time, _ in points], room.left + 46, room.right - 30)
    picture.axes(x, y)
    picture.text(room.left, room.top + 2, unit)
    for number, line in enumerate(shown.values()):
        at = [(x.at(time), y.at(value * factor)) for time, value in line]
        picture.line(at, series_classes(number))
        for place in at:
            picture.marker(*place, number, f"s{number % COLORS}")
    inside.elements.clear()
    draw_legend(inside, names, room.left, bottom + 36)
    picture.elements += inside.elements


def _draw_states(picture: Picture, panel: Panel, found: Records, room: _PanelBox) -> None:
    known = [(each["time"].timestamp(), int(each["result"])) for each in found]
    first, last = known[0][0], known[-1][0]
    end = last + max(1.0, (last - first) / max(1, len(known) - 1))
    x = replace(_time_scale([first, end], room.left + 4, room.right - 4), low=first, high=end)
    before, high = None, room.bottom - 26 - room.top - 18
    for (time, value), until in zip(known, [*(time for time, _ in known[1:]), end], strict=True):
        color = _color(panel, value) or "quiet"
        picture.add("rect", color, x=x.at(time), y=room.top + 18, width=max(1.0, x.at(until) - x.at(time) - 1), height=high)
        if panel.states and value != before:
            picture.text(x.at(time), room.top + 12, panel.states[value].name, classes=color)
        before = value
    for at, text in x.ticks:
        picture.text(x.at(at), room.bottom - 8, text, "middle")


_STEPS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400)


def _time_scale(times: Sequence[float], start: float, end: float) -> AxisScale:
    """Return the scale of moments in seconds since 1970, with about five round labels."""
    low, high = min(times), max(times)
    step = next((each for each in _STEPS_S if (high - low) / each <= 6), _STEPS_S[-1])
    form = "%m-%d" if step >= 86400 else "%m-%d %H:%M" if high - low > 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    first = int(low // step) + 1
    moments: list[float] = [each * step for each in range(first, int(high // step) + 1)] or [low]
    spare = 0.02 * (high - low) or 1.0
    ticks = [(float(at), datetime.fromtimestamp(at, UTC).strftime(form)) for at in moments]
    return AxisScale(low - spare, high + spare, start, end, ticks)


_DRAWN: Mapping[str, Callable[[Picture, Panel, Records, _PanelBox], None]] = {
    "stat": _draw_stat,
    "table": _draw_table,
    "bargauge": _draw_bars,
    "timeseries": _draw_lines,
    "state-timeline": _draw_states,
}
