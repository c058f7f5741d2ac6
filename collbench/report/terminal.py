"""The reporter: what rank 0 says while it measures. A format (how rows become lines) and a screen (where the lines go)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from collbench.errors import UsageError
from collbench.report.csv_text import CsvWriter
from collbench.report.json_lines import JsonWriter
from collbench.report.nccl_tests import NcclTestsWriter
from collbench.report.plan import PlanSummary
from collbench.report.screen import Screen, make_screen
from collbench.report.table import Line, RowWriter, TableWriter
from collbench.results.record import Row

FORMATS: dict[str, Callable[[int | None], RowWriter]] = {
    "table": TableWriter,
    "nccl-tests": lambda room: NcclTestsWriter(),
    "csv": lambda room: CsvWriter(),
    "json": lambda room: JsonWriter(),
}


class Reporter:
    """Prints a run as it goes; use it in a `with`, so that the terminal is whole again however the run ends."""

    def __init__(self, writer: RowWriter, screen: Screen) -> None:
        self._writer, self._screen = writer, screen
        self._open = False

    def start(self, plan: PlanSummary) -> None:
        """Before the first row: prints what stands above it."""
        self._open = True
        self._data(self._writer.start(plan))

    def progress(self, text: str, done: int, total: int, eta_s: float | None = None) -> None:
        """What is being measured now, how many of how many cells are done, and the seconds left (on terminals only)."""
        self._screen.progress(text, done, total, eta_s)

    def row(self, row: Row) -> None:
        """Prints a finished row at once (nccl-tests: with its partner in the other placing)."""
        self._data(self._writer.row(row))

    def note(self, sentence: str) -> None:
        """Says something about the run, apart from its data."""
        self._screen.talk(sentence)

    def end(self, summary: Iterable[str] = ()) -> None:
        """After the last row: prints the foot, then `summary` as talk."""
        self.close()
        for sentence in summary:
            self._screen.talk(sentence)

    def close(self) -> None:
        """Ends the output wherever it stands: the foot for the rows so far, and the terminal as it was before."""
        self._screen.close()
        if self._open:
            self._open = False
            self._data(self._writer.end())

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(error, OSError):  # perhaps our own output is gone: say nothing more
            with suppress(OSError):
                self._screen.close()
        else:
            self.close()

    def _data(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._screen.data(line)


def make_reporter(
    format: str = "table", stream: TextIO | None = None, err: TextIO | None = None, color: str = "auto", quiet: bool = False
) -> Reporter:
    """A reporter for one of FORMATS on `stream` and `err` (default: stdout and stderr of this process).

    `color` is auto, always or never; `quiet` leaves out everything but data. Raises UsageError for an unknown format or colour.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    screen = make_screen(stream or sys.stdout, err or sys.stderr, color, quiet)
    return Reporter(FORMATS[format](screen.room), screen)
