"""`collbench report`: prints stored runs again, in any format, ascending in size whatever the order they were measured in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from collbench.errors import FINE, UsageError
from collbench.report.flags import printable
from collbench.report.plan import in_print_order, plan_of
from collbench.report.screen import PlainScreen, is_terminal, wants_color, write_line
from collbench.report.table import Line, RowWriter, TableWriter
from collbench.report.terminal import FORMATS
from collbench.results.reader import Run, read_run

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

    What could not be read of a run is said on `err`. Returns the exit code. Raises UsageError for a path that is no run, an unknown
    format, and a CSV file that cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    runs = [read_run(path) for path in paths]
    for warning in (warning for run in runs for warning in run.warnings):
        write_line(err or sys.stderr, printable(warning))
    screen = PlainScreen(stream, err or sys.stderr, wants_color(stream, color))
    if csv == Path("-"):
        _print_all(runs, "csv", screen.data)
        return FINE
    _print_all(runs, format, screen.data, _room(stream))
    if csv is not None:
        _write_csv(runs, csv)
    return FINE


def _print_all(runs: Sequence[Run], format: str, print_line: _Print, room: int | None = None) -> None:
    for number, run in enumerate(runs):
        rows = in_print_order(run.rows)
        writer: RowWriter = TableWriter(room, rows) if format == "table" else FORMATS[format](room)
        before = writer.start(plan_of(run))
        if format == "table":
            before = [*_heading(run, first=number == 0), *before]
        elif format == "csv" and number > 0:
            before = []  # one header for all runs
        for line in [*before, *(line for row in rows for line in writer.row(row)), *writer.end()]:
            print_line(line)


def _heading(run: Run, first: bool) -> list[Line]:
    state = "" if run.finished else ", not finished"
    return [*([] if first else [Line("")]), Line(printable(f"{run.path.resolve().name} ({len(run.rows)} rows{state})"), "head")]


def _write_csv(runs: Sequence[Run], path: Path) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            _print_all(runs, "csv", lambda line: write_line(file, line.text))
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error


def _room(stream: TextIO) -> int | None:
    if not is_terminal(stream):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
