"""The section "Provenance": commands, versions, environment, differences between runs, definitions, raw files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from collbench.analysis.differences import NOTHING as NOT_THERE
from collbench.analysis.differences import differences, facts
from collbench.analysis.launches import known
from collbench.errors import INTERRUPTED, TERMINATED
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import FileLink, Section, Table
from collbench.report.html.material import Material
from collbench.results.folder import CELLS, EVENTS, HUNT, PAIRS, ROUNDS, RUN, SAMPLES, TOOLS, TOPOLOGY, WORKLOAD
from collbench.results.importers.store import import_notes
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_bytes, format_duration, plural

# Imported runs: their files, and what is missing in them.

_MOST = 40


def imported_texts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the notes of imported runs, each once: tables, what they lack, what is doubtful."""
    notes = dict.fromkeys(short(f"{sentence}.", 600) for run in runs for sentence in import_notes(run.info))
    yield from list(notes)[:_MOST]
    if len(notes) > _MOST:
        yield f"And {plural(len(notes) - _MOST, 'more note')} on imported runs: see each run.json."


def imported_files(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """Return a table of the imported files with their checksums; nothing if every run was measured."""
    rows = list(dict.fromkeys(_file(each) for run in runs for each in _files(run)))
    more = f" (the first {_MOST} of {len(rows)})" if len(rows) > _MOST else ""
    head = ("file", "format", "size", "SHA-256")
    return [(f"Files that were imported{more}", Table(head, rows[:_MOST], frozenset({2})))] if rows else []


def _files(run: Run) -> Iterator[Mapping[str, Any]]:
    imported = run.info.get("imported")
    listed = imported.get("files") if isinstance(imported, dict) else None
    yield from (each for each in (listed if isinstance(listed, list) else []) if isinstance(each, dict))


def _file(stored: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, form, digest = (short(str(value), 120) if (value := stored.get(key)) else NOTHING for key in ("name", "format", "sha256"))
    size = stored.get("size_bytes")
    return name, form, format_bytes(size) if isinstance(size, int) and known(size) else NOTHING, digest


# The definition of each number on the page, a line each.

_TIME = (
    "the median over iterations of the slowest rank's time per message, in µs; a barrier precedes each sample (mode isolated), or calls "
    "follow each other (batched, pipelined, graph)"
)
_LAUNCHES = "the median of the medians of the launches"
_INTERVAL = "95 % confidence interval of the median, from order statistics, widened for autocorrelation; it holds for one launch"
_OVER_LAUNCHES = "95 % confidence interval of the median over launches; the launch is the unit of evidence"
_DOUBTED = ". “?” marks a doubtful one: the flags of the row give the reason"
_ALGBW = "message size / time; GB/s is 1e9 bytes per second, one direction, and sizes are powers of 1024"
_BUSBW = (
    "algbw × the bus factor of the operation (2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter, all-to-all, gather and "
    "scatter, 1 for broadcast, reduce and point-to-point), so that it compares with a link"
)
_CEILING = (
    "busbw / the ceiling: between hosts and GPUs the rate of a ring on the slowest link, from probed rates; inside a host a copy or "
    "stream measured by all ranks before the first case; or the given rate. The second percentage is of the hard limit, which no "
    "algorithm can exceed. No percentage is shown if no rate is known, or if a flag excludes it"
)
_WRONG = "elements that differ from the expected ones, counted after the timed iterations; “–”: not verified"
_STATE_PROBE = "the time of a cache line between two ranks, before and after each case; it shows changes of the machine state"
_IMPORTED = (
    "the statistic of the other tool, named above; bandwidths follow from it by the definitions below, without samples and without an "
    "interval within a launch"
)
_PAIRS = (
    "latency and bandwidth of each direction of every pair, disjoint pairs at the same time, every message verified; suspects were "
    "measured again, alone, before they were reported"
)
_HUNT = (
    "rounds of disjoint pairs or groups at the same time; a suspect is confirmed if it is slow again with each of at least two healthy "
    "partners, next to control pairs that are not slow"
)
_TRAINING = (
    "the exchanges of a step in their order, without the computation between them, from the ranks' meeting to the end of the slowest; "
    "moves: the bytes of the busiest rank, as busbw counts them"
)


def made_table(material: Material) -> Table:
    """Return the definitions of the numbers that occur on the page."""
    return Table(("number", "definition"), list(_lines(material)))


def _lines(material: Material) -> Iterator[tuple[str, str]]:
    rows = [row for table in material.tables for row in table.rows]
    yield from _times(rows)
    if any(row.busbw_bytes_per_s is not None for row in rows):
        yield from (("algbw", _ALGBW), ("busbw", _BUSBW))
    if any(row.ceiling is not None for row in rows):
        yield "of expected", _CEILING
    if any(row.wrong is not None for row in rows):
        yield "wrong", _WRONG
    if any(value is not None for row in rows for value in row.canary_s.values()):
        yield "state probe", _STATE_PROBE
    if material.pairs:
        yield "pairs", _PAIRS
    if material.hunts:
        yield "hunt", _HUNT
    if material.trainings:
        yield "training", _TRAINING


def _times(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    measured = [row for row in rows if "imported" not in row.flags]
    launches = {row.launches > 1 for row in rows if row.time_s is not None and row.time_s.ci_low is not None}
    if measured:
        yield "time", _TIME
    if any(row.launches > 1 for row in rows):
        yield "time of several launches", _LAUNCHES
    if len(measured) < len(rows):
        yield "time of imported rows", _IMPORTED
    if False in launches:
        yield "95 % interval", _INTERVAL + _DOUBTED
    if True in launches:
        yield "95 % interval over launches", _OVER_LAUNCHES + _DOUBTED


# Links from the page to the raw files of a run.

_FILES = (RUN, TOPOLOGY, CELLS, PAIRS, HUNT, WORKLOAD, TOOLS, SAMPLES, EVENTS)


def raw_files(run: Run, page: Path) -> list[FileLink]:
    """Return links to the files of a run that exist, relative to the folder of `page`; never an address with a scheme."""
    return [
        FileLink(f"{name} ({format_bytes(size)})", _address(run.path / name, page)) for name in _FILES if (size := _size(run.path / name))
    ]


def _size(path: Path) -> int:
    """Return the size in bytes; 0 if it is empty, missing, or not a regular file."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _address(path: Path, page: Path) -> str:
    """Return the relative URL. Symbolic links are not resolved, since a browser does not resolve them."""
    relative = os.path.relpath(path, page.parent)
    return quote(os.fsencode(relative.replace(os.sep, "/")))


_MOST_RUNS, _MOST_COLUMNS, _MOST_LINES, _MOST_DIFFERENCES = 60, 4, 200, 60
_KINDS = ("software", "machine", "launcher", "ranks", "environment", "libraries")  # of facts in the table of versions
_LONGEST = 300


def section(material: Material) -> Section:
    """Return the section: runs with their commands, versions and environment, differences, definitions, links to the files."""
    named = _named(material)
    tables = [("Runs", _runs_table(material.runs)), *imported_files(material.runs), *_differing(named), *_versions(named[:_MOST_COLUMNS])]
    tables.append(("Definitions", made_table(material)))
    links = [
        (short(run.path.resolve().name, 80), files)
        for run in material.runs[:_MOST_RUNS]
        if material.linked and (files := raw_files(run, material.where))
    ]
    return Section("provenance", "Provenance", list(_texts(material, named, linked=bool(links))), tables, links=links)


def _named(material: Material) -> list[tuple[str, Run]]:
    """Return one run of each table, and each run of another kind, with its name on the page."""
    others = [(run.path.resolve().name, run) for run in material.of_kinds]
    return [(short(name, 80), run) for name, run in (*((table.name, table.runs[0]) for table in material.tables), *others)]


def _texts(material: Material, named: Sequence[tuple[str, Run]], linked: bool) -> Iterator[str]:
    yield from (short(f"{sentence}.", 600) for sentence in material.apart)
    yield from imported_texts(material.runs)
    if len(named) > _MOST_COLUMNS:
        yield f"Versions and environment are those of the first {_MOST_COLUMNS} of {len(named)} runs; differences are shown for all."
    if len(material.runs) > _MOST_RUNS:
        yield f"The table shows the first {_MOST_RUNS} of {len(material.runs)} runs."
    if linked:
        yield "The links at the end lead to the raw files. They work as long as this page is beside its runs."


def _runs_table(runs: Sequence[Run]) -> Table:
    head = ("run", "command", "start", "duration", "collbench", "launcher", "ranks", "hosts", "rows", "end")
    marks = {place: "doubtful" for place, run in enumerate(runs[:_MOST_RUNS]) if _end(run) is not _End.COMPLETE}
    return Table(head, [_run(run) for run in runs[:_MOST_RUNS]], frozenset({6, 8}), marks)


def _run(run: Run) -> tuple[str, ...]:
    info = run.info
    return (
        short(run.path.resolve().name, 80), _command(info.get("command")), _began(info), _took(info),
        _text(info.get("collbench")), _text(info.get("launcher")), _count(info.get("rank_map")), _hosts(info.get("hosts")),
        NOTHING if ROUNDS.keys() & run.info else str(len(run.rows)), _end_text(run),
    )  # fmt: skip


def _command(arguments: Any) -> str:
    """Return the command quoted for a shell."""
    return short(shlex.join(map(str, arguments)), _LONGEST) if isinstance(arguments, list) and arguments else NOTHING


def _text(value: Any) -> str:
    return short(value, 80) if isinstance(value, str) and value else NOTHING


def _count(values: Any) -> str:
    return str(len(values)) if isinstance(values, list) and values else NOTHING


def _hosts(values: Any) -> str:
    from collbench.machine.cluster import folded

    names = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return short(folded(names)) or NOTHING


def _began(info: dict[str, Any]) -> str:
    """Return when the run began, or was imported (when the other tool began is unknown)."""
    return f"{'imported ' if 'imported' in info else ''}{_text(info.get('started_utc'))}"


def _took(info: dict[str, Any]) -> str:
    if "imported" in info:
        return NOTHING
    try:
        began, ended = (datetime.fromisoformat(info[name]) for name in ("started_utc", "finished_utc"))
        return format_duration(max(0.0, (ended - began).total_seconds()))
    except (KeyError, TypeError, ValueError):  # not finished, or not valid times; or one with a time zone and one without
        return NOTHING


class _End(Enum):
    """How a run ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"
    UNFINISHED = "not finished"


def _end(run: Run) -> _End:
    code = run.info.get("exit_code")
    if not run.finished:
        return _End.UNFINISHED
    if code in (INTERRUPTED, TERMINATED):
        return _End.STOPPED
    return _End.COMPLETE if code in (0, None) else _End.FAILED


def _end_text(run: Run) -> str:
    end = _end(run)
    return f"{end.value} (exit code {run.info.get('exit_code')})" if end in (_End.STOPPED, _End.FAILED) else end.value


def _versions(named: Sequence[tuple[str, Run]]) -> list[tuple[str, Table]]:
    """Return the table of versions and settings: a column per run, or one for all if they are equal."""
    known = [{item: text for item, text in facts(run).items() if item.kind in _KINDS} for _, run in named]
    items = sorted(dict.fromkeys(item for each in known for item in each), key=lambda item: _KINDS.index(item.kind))
    rows = [(short(item.kind, 40), short(item.what, 120), *_values([each.get(item, NOT_THERE) for each in known])) for item in items]
    if not rows:
        return []
    equal = all(len(set(row[2:])) == 1 for row in rows)
    columns = ["value" if len(named) == 1 else "in all runs"] if equal else [name for name, _ in named]
    shown = [row[:3] if equal else row for row in rows[:_MOST_LINES]]
    title = "Versions, machine and environment"
    return [(f"{title}; the first {_MOST_LINES} of {len(rows)} lines" if len(rows) > _MOST_LINES else title,
             Table(("kind", "what", *columns), shown))]  # fmt: skip


def _values(values: Sequence[str]) -> list[str]:
    return [short(value, _LONGEST) for value in values]


def _differing(named: Sequence[tuple[str, Run]]) -> list[tuple[str, Table]]:
    """Return a table of the differences between the first run and each of the others."""
    if len(named) < 2:
        return []
    (first, baseline), *others = named
    return [_difference(f"Differences: {first} → {name}", baseline, run, (first, name)) for name, run in others[:_MOST_RUNS]]


def _difference(title: str, baseline: Run, run: Run, names: tuple[str, str]) -> tuple[str, Table]:
    found = differences(baseline, run)
    rows = [(each.kind, short(each.what, 120), short(each.a, _LONGEST), short(each.b, _LONGEST)) for each in found[:_MOST_DIFFERENCES]]
    if not rows:
        rows = [("none", "in what the runs recorded", NOTHING, NOTHING)]
    more = f" (the first {_MOST_DIFFERENCES} of {len(found)}; `collbench compare` has all)" if len(found) > _MOST_DIFFERENCES else ""
    return f"{title}{more}", Table(("kind", "what", *names), rows)
