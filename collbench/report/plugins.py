"""Output of `collbench plugins`: a line per plug-in, or one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from collbench.plugin import Plugin, package_of
from collbench.report.frame import Column, Frame, Line, table_lines


def _brings(plugin: Plugin) -> str:
    parts = {
        "commands": plugin.commands,
        "kinds of runs": [place.rpartition(":")[2].lower() for place in plugin.kinds],
        "Python": plugin.api,
        "backends": plugin.backends,
    }
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in parts.items() if names) or plugin.summary


_COLUMNS: tuple[Column[Plugin], ...] = (
    Column("", "plug-in", lambda plugin: plugin.name, least=10),
    Column("", "package", package_of),
    Column("", "brings", _brings, wrap=True),
    Column("", "needs", lambda plugin: ", ".join(plugin.needs) or "–", wrap=True),
)


def plugin_lines(plugins: Iterable[Plugin], format: str, width: int | None) -> Iterator[Line]:
    """Yield the table of the plug-ins, or with the format "json" an object of each."""
    if format == "json":
        for plugin in plugins:
            parts = {"commands": list(plugin.commands), "kinds": list(plugin.kinds), "api": list(plugin.api)}
            about = {"name": plugin.name, "package": package_of(plugin), "summary": plugin.summary}
            yield Line(json.dumps({**about, **parts, "backends": list(plugin.backends), "needs": list(plugin.needs)}))
        return
    yield from table_lines(Frame(_COLUMNS, list(plugins)), width)
