"""The section "Provenance": commands, versions, environment, differences between runs, definitions, raw files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from collbench.analysis.differences import differences, facts
from collbench.errors import INTERRUPTED, TERMINATED
from collbench.plugin import record_files
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import FileLink, Section, Table, marks_of
from collbench.report.material import Material
from collbench.results.folder import CASES, EVENTS, RUN, SAMPLES, TOPOLOGY, files_of_plugins
from collbench.results.imported import import_notes
from collbench.results.reader import Run
from collbench.units import format_bytes, format_duration, plural

_MOST_NOTES = 40
_MOST_RUNS = 60
_MOST_FACTS = 200
_MOST_DIFFERENCES = 60
_COMPLETE = "complete"
_KINDS = ("software", "machine", "launcher", "ranks", "environment")  # of facts; the paths of libraries are in run.json
_DEFINITIONS = (
    ("time", "the median over iterations of the slowest rank's time per message, in µs; a barrier precedes each sample (mode isolated), or "
     "calls follow each other (batched, pipelined, graph); of several launches the median of their medians"),
    ("95 % interval", "of the median, from order statistics, widened for autocorrelation; it holds for one launch. Of several launches: of "
     "the median over launches. “?” marks a doubtful result: the flags of the row give the reason"),
    ("busbw", "message size / time × the bus factor of the operation (2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter, "
     "all-to-all, gather and scatter, else 1), so that it compares with a link; GB/s is 1e9 bytes per second, one direction"),
    ("of expected", "busbw / the rate of a ring on the slowest link, or inside a host a memory rate measured in the run, or the given "
     "rate. No algorithm can exceed the hard limit. No percentage is shown if no rate is known, or if a flag excludes it"),
)  # fmt: skip


def section(material: Material) -> Section:
    """Return the section: runs with their commands, versions and environment, differences, definitions, links to the files."""
    named = [(short(table.name, 80), table.runs[0]) for table in material.tables]
    named += [(short(run.path.resolve().name, 80), run) for run in material.runs_of_kinds]
    rows = [_run(run) for run in material.runs[:_MOST_RUNS]]
    marks = marks_of("" if row[-1] == _COMPLETE else "doubtful" for row in rows)
    runs = Table(("run", "command", "start", "duration", "rows", "end"), rows, frozenset({4}), marks)
    tables = [("Runs", runs), *_differing(named), *_versions(named)]
    if material.tables:
        tables.append(("Definitions", Table(("number", "definition"), _DEFINITIONS)))
    linked = [(run, raw_files(run, material.where)) for run in material.runs[:_MOST_RUNS]] if material.linked else []
    links = [(short(run.path.resolve().name, 80), files) for run, files in linked if files]
    return Section("provenance", "Provenance", list(_texts(material, linked=bool(links))), tables, links=links)


def _texts(material: Material, linked: bool) -> Iterator[str]:
    yield from (f"{sentence}." for sentence in material.apart)
    notes = list(dict.fromkeys(short(f"{sentence}.", 600) for run in material.runs for sentence in import_notes(run.info)))
    yield from notes[:_MOST_NOTES]
    if len(notes) > _MOST_NOTES:
        yield f"And {plural(len(notes) - _MOST_NOTES, 'more note')} on imported runs: see each run.json."
    if len(material.runs) > _MOST_RUNS:
        yield f"The table shows the first {_MOST_RUNS} of {len(material.runs)} runs."
    if linked:
        yield "The links at the end lead to the raw files. They work as long as this page is beside its runs."


def _run(run: Run) -> tuple[str, ...]:
    info = run.info
    words = info.get("command")
    command = short(shlex.join(map(str, words)), 300) if isinstance(words, list) and words else NOTHING
    start = info.get("started_utc")
    began = start if isinstance(start, str) and start else NOTHING
    duration = _duration(info)
    if "imported" in info:
        began = f"imported {began}"
        duration = NOTHING
    rows = NOTHING if record_files().keys() & info else str(len(run.rows))
    return run.path.resolve().name, command, began, duration, rows, _end(run)


def _duration(info: dict[str, Any]) -> str:
    try:
        began, ended = (datetime.fromisoformat(info[name]) for name in ("started_utc", "finished_utc"))
        return format_duration(max(0.0, (ended - began).total_seconds()))
    except (KeyError, TypeError, ValueError):  # not finished, or not valid times; or one with a time zone and one without
        return NOTHING


def _end(run: Run) -> str:
    code = run.info.get("exit_code")
    if not run.finished:
        return "not finished"
    if code in (0, None):
        return _COMPLETE
    return f"stopped, exit code {code}" if code in (INTERRUPTED, TERMINATED) else f"exit code {code}"


def _versions(named: Sequence[tuple[str, Run]]) -> Iterator[tuple[str, Table]]:
    """Yield the table of versions and settings of the first run."""
    rows = [(fact.kind, fact.what, text) for _, run in named[:1] for fact, text in facts(run).items() if fact.kind in _KINDS]
    rows.sort(key=lambda row: _KINDS.index(row[0]))
    more = f" ({_MOST_FACTS} of {len(rows)} lines)" if len(rows) > _MOST_FACTS else ""
    title = f"Versions, machine and environment{' of the first run' if len(named) > 1 else ''}{more}"
    if rows:
        yield title, Table(("kind", "what", "value"), rows[:_MOST_FACTS])


def _differing(named: Sequence[tuple[str, Run]]) -> Iterator[tuple[str, Table]]:
    """Yield a table of the differences between the first run and each of the others."""
    for name, run in named[1:_MOST_RUNS]:
        first, baseline = named[0]
        rows = [(difference.kind, difference.what, difference.a, difference.b) for difference in differences(baseline, run)]
        more = f" (the first {_MOST_DIFFERENCES} of {len(rows)}; `collbench compare` has all)" if len(rows) > _MOST_DIFFERENCES else ""
        none = [("none", "in what the runs recorded", NOTHING, NOTHING)]
        yield f"Differences: {first} → {name}{more}", Table(("kind", "what", first, name), rows[:_MOST_DIFFERENCES] or none)


def raw_files(run: Run, page: Path) -> list[FileLink]:
    """Return links to the files of a run that exist, relative to the folder of `page`; never an address with a scheme.

    Symbolic links are not resolved, since a browser does not resolve them.
    """
    links = []
    for name in (RUN, TOPOLOGY, CASES, *files_of_plugins(), SAMPLES, EVENTS):
        size = _size(run.path / name)
        if size:
            relative = os.path.relpath(run.path / name, page.parent)
            links.append(FileLink(f"{name} ({format_bytes(size)})", quote(os.fsencode(relative.replace(os.sep, "/")))))
    return links


def _size(path: Path) -> int:
    """Return the size in bytes; 0 if it is empty, missing, or not a regular file."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
