"""Where the numbers come from: command, versions, environment, what differs between the runs, the raw files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from collbench.analysis.differences import NOTHING as NOT_THERE
from collbench.analysis.differences import differences, facts
from collbench.errors import INTERRUPTED, TERMINATED
from collbench.report.columns import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.html.imported import imported_files, imported_texts
from collbench.report.html.made import made_table
from collbench.report.html.material import Material
from collbench.report.html.raw_files import raw_files
from collbench.results.reader import Run
from collbench.units import format_duration

_MOST_RUNS, _MOST_COLUMNS, _MOST_LINES, _MOST_DIFFERENCES = 60, 4, 200, 60
_KINDS = ("software", "machine", "launcher", "ranks", "environment", "libraries")  # what stands in the table of versions
_LONGEST = 300


def section(material: Material) -> Section:
    """Every run with its command; versions and environment; differences; how numbers are made; links to the files."""
    named = _named(material)
    tables = [("Runs", _runs_table(material.runs)), *imported_files(material.runs), *_differing(named), *_versions(named[:_MOST_COLUMNS])]
    tables.append(("How each number was made, in short", made_table(material)))
    links = [(short(run.path.resolve().name, 80), files) for run in material.runs[:_MOST_RUNS] if (files := raw_files(run, material.where))]
    return Section("provenance", "Provenance", list(_texts(material, named, linked=bool(links))), tables, links=links)


def _named(material: Material) -> list[tuple[str, Run]]:
    """One run of each table and each matrix, with the name it is shown by."""
    of_pairs = [(run.path.resolve().name, run) for run, _ in material.pairs]
    return [(short(name, 80), run) for name, run in (*((table.name, table.runs[0]) for table in material.tables), *of_pairs)]


def _texts(material: Material, named: Sequence[tuple[str, Run]], linked: bool) -> Iterator[str]:
    yield from (short(f"{sentence}.", 600) for sentence in material.apart)
    yield from imported_texts(material.runs)
    if len(named) > _MOST_COLUMNS:
        yield f"Versions and environment are those of the first {_MOST_COLUMNS} of {len(named)}; what differs is told of all."
    if len(material.runs) > _MOST_RUNS:
        yield f"The first {_MOST_RUNS} of {len(material.runs)} runs are listed."
    if linked:
        yield "The links at the end lead to the raw files, where this page still lies beside its runs."


def _runs_table(runs: Sequence[Run]) -> Table:
    head = ("run", "command", "began", "took", "collbench", "launched by", "ranks", "hosts", "rows", "end")
    marks = {place: "doubtful" for place, run in enumerate(runs[:_MOST_RUNS]) if _end(run) != "came to its end"}
    return Table(head, [_run(run) for run in runs[:_MOST_RUNS]], frozenset({6, 8}), marks)


def _run(run: Run) -> tuple[str, ...]:
    info = run.info
    return (
        short(run.path.resolve().name, 80), _command(info.get("command")), _began(info), _took(info),
        _word(info.get("collbench")), _word(info.get("launcher")), _count(info.get("rank_map")), _hosts(info.get("hosts")),
        NOTHING if "pairs" in run.info else str(len(run.rows)), _end(run),
    )  # fmt: skip


def _command(words: Any) -> str:
    """As it could be typed again."""
    return short(shlex.join(map(str, words)), _LONGEST) if isinstance(words, list) and words else NOTHING


def _word(value: Any) -> str:
    return short(value, 80) if isinstance(value, str) and value else NOTHING


def _count(values: Any) -> str:
    return str(len(values)) if isinstance(values, list) and values else NOTHING


def _hosts(values: Any) -> str:
    from collbench.machine.cluster import folded

    names = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    return short(folded(names)) or NOTHING


def _began(info: dict[str, Any]) -> str:
    """When it began; of another tool's output that is not known."""
    return f"{'imported ' if 'imported' in info else ''}{_word(info.get('started_utc'))}"


def _took(info: dict[str, Any]) -> str:
    if "imported" in info:
        return NOTHING
    try:
        began, ended = (datetime.fromisoformat(info[name]) for name in ("started_utc", "finished_utc"))
        return format_duration(max(0.0, (ended - began).total_seconds()))
    except (KeyError, TypeError, ValueError):  # not finished, or no time that anybody knows; or one with a zone and one without
        return NOTHING


def _end(run: Run) -> str:
    code = run.info.get("exit_code")
    if not run.finished:
        return "broke off"
    if code in (INTERRUPTED, TERMINATED):
        return f"stopped (exit code {code})"
    return "came to its end" if code in (0, None) else f"exit code {code}"


def _versions(named: Sequence[tuple[str, Run]]) -> list[tuple[str, Table]]:
    """What was loaded, set and used; one column per run, or one for all where they are equal."""
    told = [{key: text for key, text in facts(run).items() if key[0] in _KINDS} for _, run in named]
    keys = sorted(dict.fromkeys(key for each in told for key in each), key=lambda key: _KINDS.index(key[0]))
    rows = [(short(kind, 40), short(what, 120), *_values([each.get((kind, what), NOT_THERE) for each in told])) for kind, what in keys]
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
    """What each of the others has otherwise than the first one."""
    if len(named) < 2:
        return []
    (first, baseline), *others = named
    return [_difference(f"What differs: {first} → {name}", baseline, run, (first, name)) for name, run in others[:_MOST_RUNS]]


def _difference(title: str, baseline: Run, run: Run, names: tuple[str, str]) -> tuple[str, Table]:
    found = differences(baseline, run)
    rows = [(each.kind, short(each.what, 120), short(each.a, _LONGEST), short(each.b, _LONGEST)) for each in found[:_MOST_DIFFERENCES]]
    if not rows:
        rows = [("nothing", "that the runs recorded", NOTHING, NOTHING)]
    more = f" (the first {_MOST_DIFFERENCES} of {len(found)}; `collbench compare` has all)" if len(found) > _MOST_DIFFERENCES else ""
    return f"{title}{more}", Table(("kind", "what", *names), rows)
