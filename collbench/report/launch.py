"""How this shell would launch, for people and as JSON: where it is, MPI, launchers, what does not fit, what to type."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from collbench.errors import FINE, NEGATIVE
from collbench.launch.explain import Explanation, Found, HostName
from collbench.launch.software import NAMES
from collbench.report.flags import printable
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, wants_color
from collbench.report.table import Line

SCHEMA = 1
_MOST_NAMES = 8
_MOST_HOSTS = 8
_STYLES = {"severe": "wrong", "warning": "doubtful", "note": ""}


def tell_launch(told: Explanation, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Prints it on `stream` as "table" or "json". Returns the exit code: 1 with a severe problem, else 0."""
    screen = PlainScreen(stream, sys.stderr, wants_color(stream, color))
    lines = json_lines(told) if format == "json" else table_lines(told)
    for line in wrapped(lines, None if format == "json" else width_of(stream)):
        screen.data(line)
    return NEGATIVE if told.severe else FINE


def table_lines(told: Explanation) -> Iterator[Line]:
    """Where this shell is and what it has, then a line for each problem, then what to type."""
    for place in told.places:
        yield Line(printable(f"this shell  {place}"))
    yield Line(printable(f"names       {_names(told.names)}"))
    loaded = told.library
    file = f" ({loaded.path})" if loaded.path else ""
    yield Line(printable(f"MPI         {f'mpi4py {loaded.mpi4py} loads {loaded.name}{file}' if loaded.name else 'no library'}"))
    yield from _launchers(told.launchers)
    yield from _hosts(told.hosts)
    for problem in told.problems:
        yield Line(printable(f"{problem.severity}: {problem.what}"), _STYLES[problem.severity])
    yield Line("what to type", "head")
    room = max(len(each.purpose) for each in told.commands)
    for each in told.commands:
        yield Line(printable(f"  {each.purpose:<{room}}  {each.line}"))


def _names(names: Sequence[HostName]) -> str:
    shown = [f"{each.name} {', '.join(each.addresses) or 'does not resolve'}" for each in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return "; ".join([f"{shown[0]} (this host)", *shown[1:], *more])


def _launchers(found: Sequence[Found]) -> Iterator[Line]:
    rows = [(each.name, str(each.path), _what(each)) for each in found]
    if not rows:
        yield Line("launchers   none found: collbench starts ranks on this host by itself")
        return
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for number, (name, path, what) in enumerate(rows):
        yield Line(printable(f"{'launchers' if number == 0 else '':<12}{name:<{widths[0]}}  {path:<{widths[1]}}  {what}".rstrip()))


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """The software of the hosts, of those that are alike once."""
    for number, one in enumerate(hosts):
        names = [*one["hosts"][:_MOST_HOSTS], *(["…"] if len(one["hosts"]) > _MOST_HOSTS else [])]
        versions = ", ".join(f"{NAMES[name]} {one[name]}" for name in NAMES if name in one and name != "native")
        yield Line(printable(f"{'software' if number == 0 else '':<12}{', '.join(names)}: {versions}"))


def _what(found: Found) -> str:
    plugins = f", --mpi={'|'.join(found.plugins)}" if found.plugins else ""
    hidden = "" if found.first else " (not the first in PATH)"
    return (f"{found.family} {found.version}".rstrip() if found.family else f"does not say what it is: {found.trouble}") + plugins + hidden


def json_lines(told: Explanation) -> Iterator[Line]:
    """One object: schema, places, the MPI library, launchers, problems, what to type."""
    loaded = told.library
    document = {
        "schema": SCHEMA,
        "places": told.places,
        "names": [{"name": each.name, "own": each.own, "addresses": each.addresses, "reachable": each.reachable} for each in told.names],
        "mpi": {"library": loaded.name, "path": loaded.path, "mpi4py": loaded.mpi4py, "problem": loaded.problem},
        "hosts": [dict(one) for one in told.hosts],
        "launchers": [_found(each) for each in told.launchers],
        "problems": [{"severity": each.severity, "what": each.what} for each in told.problems],
        "type": [{"purpose": each.purpose, "line": each.line} for each in told.commands],
    }
    yield Line(json.dumps(document))


def _found(each: Found) -> dict[str, object]:
    known = {"name": each.name, "path": str(each.path), "family": each.family, "version": each.version, "first_in_path": each.first}
    return {**known, "mpi_plugins": list(each.plugins), "trouble": each.trouble}
