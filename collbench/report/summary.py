"""`collbench report`: prints stored runs again, in any format, ascending in size whatever the order they were measured in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from collbench.analysis.combine import Launches, read_all, together
from collbench.analysis.resumed import rows_by_launch
from collbench.analysis.resumed import sentence as resumed
from collbench.errors import FINE, INTERRUPTED, TERMINATED, UsageError
from collbench.report.findings import lines as findings
from collbench.report.flags import printable
from collbench.report.pairs_stored import holds_pairs, write_csv, write_stored
from collbench.report.plan import in_print_order, plan_of
from collbench.report.screen import PlainScreen, is_terminal, wants_color, write_line
from collbench.report.table import Line, RowWriter, TableWriter
from collbench.report.terminal import FORMATS
from collbench.results.reader import Run

_Print = Callable[[Line], None]


def report_run(
    paths: Sequence[Path],
    csv: Path | None,
    format: str,
    stream: TextIO,
    *,
    err: TextIO | None = None,
    color: str = "auto",
) -> int:
    """Prints the runs in `paths` on `stream` and writes their rows to `csv` ("-": to `stream`, and nothing else there).

    Launches of one allocation become one table, unless software, settings, hosts or links differ. What could not be read, or not be
    put together, is said on `err`. Returns the exit code. Raises UsageError for a path that is no run, a launch that is named twice,
    an unknown format, and a CSV file that cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    err, runs = err or sys.stderr, read_all(paths)
    for warning in (warning for run in runs for warning in (*run.warnings, resumed(run)) if warning):
        write_line(err, printable(warning))
    painted, of_pairs = wants_color(stream, color), [run for run in runs if holds_pairs(run)]
    tables, apart = together([run for run in runs if not holds_pairs(run)])
    for sentence in apart:
        write_line(err, printable(sentence))
    if of_pairs and tables and csv is not None:
        raise UsageError(f"{of_pairs[0].path} holds a matrix of pairs and {tables[0].name} rows: write them to two CSV files")
    shown = "csv" if csv == Path("-") else format
    _print_all(tables, shown, PlainScreen(stream, err, painted).data, _room(stream))
    for run in of_pairs:
        write_stored(run, shown, stream, err, painted)
    if csv is not None and csv != Path("-"):
        _write_csv(tables, csv) if tables else write_csv(of_pairs, csv, err)
    return FINE


def _print_all(tables: Sequence[Launches], format: str, print_line: _Print, room: int | None = None) -> None:
    for number, table in enumerate(tables):
        rows = in_print_order(table.rows)
        writer: RowWriter = TableWriter(room, rows) if format == "table" else FORMATS[format](room)
        before, after = writer.start(plan_of(table.runs[0], rows, table.name)), []
        if format == "table":
            before, after = [*_heading(table, first=number == 0), *before], findings(table.runs, rows)
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
