"""Grafana dashboards as JSON: one definition of a panel, with a query for Prometheus and one for PostgreSQL (`report/dashboards`).

The files need no plug-in, and have no addresses: a variable at the top of each dashboard selects the data source. `deploy/grafana` has
them in the repository, and `collbench store dashboards` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.errors import UsageError
from collbench.report.writers import write_whole

PROMETHEUS = "prometheus"
POSTGRESQL = "postgresql"
SOURCES = (PROMETHEUS, POSTGRESQL)
_TYPES = {PROMETHEUS: "prometheus", POSTGRESQL: "postgres"}  # names of Grafana's plug-ins; newer versions know "postgres" as an alias
_COLUMNS = 24  # of Grafana's grid
_SCHEMA = 36  # of Grafana 10.1; newer versions convert it
_COLORS = {"good": "green", "doubtful": "orange", "bad": "red", "unknown": "#8e8e8e"}


class Series(msgspec.Struct, frozen=True):
    """A query of Prometheus, and the legend of its series: `{{node}}` is the value of a label."""

    query: str
    legend: str = ""


class ValueState(msgspec.Struct, frozen=True):
    """The meaning of a value: its name, and "good", "doubtful", "bad" or "unknown" for its color."""

    name: str
    color: str


class Panel(msgspec.Struct, frozen=True):
    """A panel of a dashboard.

    kind        Grafana's: stat, timeseries, bargauge, table or state-timeline
    summary     what the figures are; shown when the pointer is on the title
    prometheus  queries; a table has one
    postgresql  one query. A column `time` is the time, `metric` the name of a series; other text columns are labels
    unit        Grafana's: Bps (bytes per second), s, percentunit, dateTimeFromNow (milliseconds since 1970) …
    limits      (value, color) in ascending order: the color of values from there on; the first one is for all below
    states      names of values, for state-timeline and stat
    width       1 to 24 columns; height in Grafana's rows
    """

    title: str
    kind: str
    summary: str
    prometheus: tuple[Series, ...]
    postgresql: str
    unit: str = "short"
    limits: tuple[tuple[float | None, str], ...] = ()
    states: Mapping[int, ValueState] | None = None
    width: int = 12
    height: int = 8
    decimals: int | None = None

    @property
    def instant(self) -> bool:
        """Return whether it shows the newest values only."""
        return self.kind in ("stat", "bargauge", "table")


class DashboardVariable(msgspec.Struct, frozen=True):
    """A choice at the top of a dashboard: values from Prometheus (`label_values(…)`), or the rows of a query of PostgreSQL."""

    name: str
    label: str
    prometheus: str
    postgresql: str
    many: bool = False


class Dashboard(msgspec.Struct, frozen=True):
    """A dashboard: `name` is that of its file, `hours` the length of its default time range, `refresh` Grafana's: "5m"."""

    name: str
    title: str
    summary: str
    variables: tuple[DashboardVariable, ...]
    panels: tuple[Panel, ...]
    hours: int = 30 * 24
    refresh: str = "5m"


def text_of(dashboard: Dashboard, source: str) -> str:
    """Return the file of a dashboard for a source: JSON that Grafana imports."""
    return json.dumps(content(dashboard, source), indent=2, ensure_ascii=False) + "\n"


def file_name(dashboard: Dashboard, source: str) -> str:
    """Return the name of a dashboard's file."""
    return f"{dashboard.name}-{source}.json"


def write_dashboards(dashboards: Sequence[Dashboard], source: str, folder: Path) -> list[Path]:
    """Write a file for each dashboard into a folder, which is made if it is missing; return the files. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot make the folder ({error.strerror or error}); choose another one") from error
    paths = [folder / file_name(dashboard, source) for dashboard in dashboards]
    for dashboard, path in zip(dashboards, paths, strict=True):
        write_whole(path, text_of(dashboard, source), "dashboard")
    return paths


def content(dashboard: Dashboard, source: str) -> dict[str, Any]:
    """Return a dashboard as Grafana's JSON has it."""
    tag = f"collbench-{source}"
    data_source = {"name": "datasource", "label": "data source", "type": "datasource", "query": _TYPES[source], "hide": 0, "refresh": 1}
    return {
        "uid": f"collbench-{dashboard.name}-{source}",
        "title": f"collbench: {dashboard.title}",
        "description": dashboard.summary,
        "tags": ["collbench", tag],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": _SCHEMA,
        "refresh": dashboard.refresh,
        "time": {"from": f"now-{dashboard.hours}h", "to": "now"},
        "templating": {"list": [data_source, *(_variable(variable, source) for variable in dashboard.variables)]},
        "annotations": {"list": []},
        "links": [_links_to_others(tag)],
        "panels": list(_panels(dashboard.panels, source)),
    }


def _links_to_others(tag: str) -> dict[str, Any]:
    return {
        "title": "collbench",
        "type": "dashboards",
        "icon": "external link",
        "tooltip": "",
        "url": "",
        "tags": [tag],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _source_of(source: str) -> dict[str, str]:
    return {"type": _TYPES[source], "uid": "${datasource}"}


def _variable(variable: DashboardVariable, source: str) -> dict[str, Any]:
    query = variable.prometheus if source == PROMETHEUS else variable.postgresql
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _source_of(source),
        "query": {"query": query, "refId": variable.name} if source == PROMETHEUS else query,
        "hide": 0,
        "refresh": 2,  # whenever the time range changes
        "sort": 3 if variable.name == "size_bytes" else 1,  # by number, by name
        "multi": variable.many,
        "includeAll": variable.many,
    }


def places(panels: Sequence[Panel]) -> Iterator[tuple[Panel, int, int]]:
    """Yield the panels with their column and row on Grafana's grid: in rows from left to right."""
    x = y = row_height = 0
    for panel in panels:
        if x + panel.width > _COLUMNS:
            x = 0
            y += row_height
            row_height = 0
        yield panel, x, y
        x += panel.width
        row_height = max(row_height, panel.height)


def _panels(panels: Sequence[Panel], source: str) -> Iterator[dict[str, Any]]:
    for number, (panel, x, y) in enumerate(places(panels), 1):
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.summary,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
            "datasource": _source_of(source),
            "targets": list(_targets(panel, source)),
            "fieldConfig": {"defaults": _field(panel, source), "overrides": []},
            "options": _OPTIONS[panel.kind],
            "transformations": [_WITHOUT_COLUMNS] if panel.kind == "table" and source == PROMETHEUS else [],
        }


def _targets(panel: Panel, source: str) -> Iterator[dict[str, Any]]:
    if source == POSTGRESQL:
        yield {
            "refId": "A",
            "datasource": _source_of(source),
            "rawQuery": True,
            "rawSql": panel.postgresql,
            "format": "table" if panel.instant else "time_series",
            "editorMode": "code",
        }
        return
    for letter, series in zip("ABCDEFGH", panel.prometheus, strict=False):
        yield {
            "refId": letter,
            "datasource": _source_of(source),
            "expr": series.query,
            "legendFormat": series.legend,
            "instant": panel.instant,
            "range": not panel.instant,
            "format": "table" if panel.kind == "table" else "time_series",
            "editorMode": "code",
        }


def _field(panel: Panel, source: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "color": {"mode": "thresholds" if panel.limits or panel.states else "palette-classic"}}
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if source == POSTGRESQL and panel.kind == "timeseries":
        defaults["displayName"] = "${__field.labels.metric}"
    if panel.limits:
        steps = [{"value": value, "color": _COLORS[color]} for value, color in panel.limits]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.states:
        texts = {str(value): {"text": state.name, "color": _COLORS[state.color], "index": value} for value, state in panel.states.items()}
        defaults["mappings"] = [{"type": "value", "options": texts}]
    return defaults | _STYLE.get(panel.kind, {})


# The columns that Prometheus adds to each series.
_WITHOUT_COLUMNS = {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "__name__", "instance", "job"), True)}}
_STYLE: dict[str, dict[str, Any]] = {
    "timeseries": {"custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "always", "spanNulls": True}},
    "state-timeline": {"custom": {"lineWidth": 0, "fillOpacity": 70}},
}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": list[str]()}
_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {
        "reduceOptions": _REDUCED,
        "orientation": "auto",
        "textMode": "auto",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
    },
    "bargauge": {
        "reduceOptions": {**_REDUCED, "values": True},
        "orientation": "horizontal",
        "displayMode": "gradient",
        "showUnfilled": True,
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "state-timeline": {
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
        "showValue": "auto",
        "rowHeight": 0.9,
        "mergeValues": True,
    },
}
