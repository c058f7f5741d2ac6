"""`collbench report`: stored runs once more, in any format, ascending in size whatever the order they were measured in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collbench.analysis.launches import Launches, rows_by_launch
from collbench.errors import FINE, INTERRUPTED, TERMINATED, USAGE, UsageError
from collbench.report.absent import OneLinePerAbsentBackend
from collbench.report.findings import lines as findings
from collbench.report.flags import printable
from collbench.report.html.material import Material
from collbench.report.kinds import not_drawn, write_all
from collbench.report.kinds import write_csv as write_csv_of_kinds
from collbench.report.outputs import STDOUT, Outputs, write_whole
from collbench.report.pairs_stored import holds_pairs, write_csv
from collbench.report.pairs_stored import write_all as write_all_pairs
from collbench.report.plan import in_print_order, plan_of
from collbench.report.readable import readable
from collbench.report.screen import PlainScreen, is_terminal, wants_color, write_line
from collbench.report.table import Line, RowWriter, TableWriter
from collbench.report.terminal import FORMATS
from collbench.results.importers.store import sentences as of_import
from collbench.results.reader import Run

if TYPE_CHECKING:  # they import numpy, which runs without pairs do not need
    from collbench.analysis.pairs import PairEffects
    from collbench.gate.verdict import Verdict
    from collbench.results.rounds import StoredPairs

_Print = Callable[[Line], None]


def report_run(
    paths: Sequence[Path],
    csv: Path | None,
    format: str,
    stream: TextIO,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    openmetrics: Path | None = None,
    verdict: Path | None = None,
    err: TextIO | None = None,
    color: str = "auto",
) -> int:
    """Prints the runs in `paths` on `stream`, and writes them to the files that are named.

    `csv` and `markdown` may be "-": to `stream`, and nothing else there. Launches of one allocation become one table, unless software,
    settings, hosts or links differ. `verdict` is a verdict.json, to stand first on the page. What could not be read, or not be put
    together, is said on `err`. Returns the exit code: USAGE where one of the paths gives nothing. Raises UsageError where none is a run
    that can be read, for a launch that is named twice, an unknown format, and a file that cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    asked = Outputs(csv, html, markdown, openmetrics)
    asked.check()
    err, found = err or sys.stderr, readable(paths)
    warnings = found.warnings
    warnings = [*warnings, *(not_drawn(found.runs) if html or markdown or openmetrics else ())]
    material = Material(found.runs, html or Path(), warnings, verdict=_verdict(verdict, html))
    of_imports = dict.fromkeys(sentence for run in found.runs for sentence in of_import(run.info))
    for sentence in (*warnings, *of_imports, *material.apart):
        write_line(err, printable(sentence))
    if csv is not None:
        _check_one_kind(material)
    _write_files(material, asked, err)
    if markdown == STDOUT:
        _print_markdown(material, stream)
    else:
        _print_runs(material, "csv" if csv == STDOUT else format, stream, err, color)
    return FINE if found.whole else USAGE


def _verdict(path: Path | None, html: Path | None) -> Verdict | None:
    """What the gate said, for the page alone."""
    if path is None:
        return None
    if html is None:
        raise UsageError("--verdict is for the page: name --html FILE, or see the verdict alone with `collbench gate --verdict FILE`")
    from collbench.gate.verdict import read_verdict

    return read_verdict(path)


def _check_one_kind(material: Material) -> None:
    of_pairs = [("a matrix of pairs", str(run.path)) for run in material.runs if holds_pairs(run)]
    of_kinds = [(kind.what, str(run.path)) for run, kind in material.others]
    of_rows = [("rows", table.name) for table in material.tables]
    (what, first), *others = [*of_pairs, *of_kinds, *of_rows]
    rest = [(one, other) for other, one in others if other != what]
    if rest:
        raise UsageError(f"{first} holds {what} and {' '.join(rest[0])}: write them to two CSV files")


def _print_runs(material: Material, format: str, stream: TextIO, err: TextIO, color: str) -> None:
    painted = wants_color(stream, color)
    print_line = PlainScreen(stream, err, painted).data
    if format == "table":
        _print_all(_with_baseline(material), format, print_line, _room(stream), _fallen(material))
    else:
        _print_all(material.tables, format, print_line)
    write_all_pairs(_pairs(material), format, out=stream, err=err, color=painted)
    write_all(material.others, format, out=stream, err=err, color=painted)


def _with_baseline(material: Material) -> list[Launches]:
    """Return the tables with the ceilings of the first one where their own fell."""
    return [replace(table, rows=material.rows(table)) for table in material.tables]


def _fallen(material: Material) -> list[list[str]]:
    """Return for each table what became slower since the first one."""
    return [[], *(found.fallen.sentences() for found in material.comparisons)]


def _print_markdown(material: Material, stream: TextIO) -> None:
    from collbench.report.markdown import markdown

    for line in markdown(material).splitlines():
        write_line(stream, line)


def _pairs(material: Material) -> list[tuple[Run, StoredPairs, PairEffects]]:
    return [(run, stored, effects) for (run, stored), effects in zip(material.pairs, material.effects, strict=True)]


def _write_files(material: Material, asked: Outputs, err: TextIO) -> None:
    """Before anything is printed, so that they are there even if nobody reads stdout to its end."""
    if asked.csv is not None and asked.csv != STDOUT:
        _write_one_csv(material, asked.csv, err)
    if asked.markdown is not None and asked.markdown != STDOUT:
        from collbench.report.markdown import markdown

        write_whole(asked.markdown, markdown(material), "--markdown")
    if asked.openmetrics is not None:
        from collbench.report.openmetrics import openmetrics

        write_whole(asked.openmetrics, openmetrics(material), "--openmetrics")
    if asked.html is not None:
        from collbench.report.html.page import write_html

        write_html(material)


def _write_one_csv(material: Material, path: Path, err: TextIO) -> None:
    """All that is asked for is of one kind."""
    if material.tables:
        _write_csv(material.tables, path)
    elif material.others:
        write_csv_of_kinds(material.others, path, err)
    else:
        write_csv(_pairs(material), path, err)


def _print_all(
    tables: Sequence[Launches], format: str, print_line: _Print, room: int | None = None, fallen: Sequence[Sequence[str]] = ()
) -> None:
    """Print the tables; `fallen` has for each the links and ceilings that are lower than in the first one."""
    for number, table in enumerate(tables):
        rows = in_print_order(table.rows)
        writer: RowWriter = FORMATS[format](room)
        if format == "table":
            writer = OneLinePerAbsentBackend(TableWriter(room, rows), rows=rows)
        before, after = writer.start(plan_of(table.runs[0], rows, table.name)), []
        if format == "table":
            sentences = fallen[number] if number < len(fallen) else ()
            lost = [Line(printable(f"since {tables[0].name}: {text}"), "wrong") for text in sentences]
            before, after = [*_heading(table, first=number == 0), *lost, *before], findings(table.runs, rows)
        elif format == "csv" and number > 0:
            before = []  # one header for all
        for line in [*before, *(line for row in rows for line in writer.row(row)), *writer.end(), *after]:
            print_line(line)


def _heading(table: Launches, first: bool) -> list[Line]:
    launches, broken = len(table.runs), sum(map(_broke_off, table.runs))
    of = [parts for run in table.runs if (parts := len(rows_by_launch(run))) > 1]
    if launches == 1:
        words = [f"{len(table.rows)} rows", *(["not finished"] if broken else []), *(f"resumed: of {parts} launches" for parts in of)]
    else:
        told = [f"{count} {what}" for count, what in ((broken, "not finished"), (len(of), "resumed")) if count]
        words = [f"{launches} launches", f"{len(table.rows)} rows", *told]
    return [*([] if first else [Line("")]), Line(printable(f"{table.name} ({', '.join(words)})"), "head")]


def _broke_off(run: Run) -> bool:
    """Whether it was killed, or stopped by a signal, which it could still write down."""
    return not run.finished or run.info.get("exit_code") in (INTERRUPTED, TERMINATED)


def _write_csv(tables: Sequence[Launches], path: Path) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            _print_all(tables, "csv", lambda line: write_line(file, line.text))
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error


def _room(stream: TextIO) -> int | None:
    if not is_terminal(stream):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
