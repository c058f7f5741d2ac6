"""The reporter: what rank 0 says while it measures. A format (how rows become lines) and a screen (where the lines go)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from collbench.errors import UsageError
from collbench.report.absent import OneLinePerAbsentBackend, comment_line
from collbench.report.csv_text import CsvWriter
from collbench.report.json_lines import JsonWriter
from collbench.report.nccl_tests import NcclTestsWriter
from collbench.report.plan import PlanSummary
from collbench.report.screen import Screen, make_screen
from collbench.report.table import Line, RowWriter, TableWriter
from collbench.results.row import Row

FORMATS: dict[str, Callable[[int | None], RowWriter]] = {
    "table": lambda room: OneLinePerAbsentBackend(TableWriter(room)),
    "nccl-tests": lambda room: OneLinePerAbsentBackend(NcclTestsWriter(), comment_line),
    "csv": lambda room: CsvWriter(),
    "json": lambda room: JsonWriter(),
}
# For programs: each row as soon as it is measured, in that order, as in cells.jsonl.
AS_MEASURED = frozenset({"csv", "json"})


class Reporter:
    """Prints a run as it goes; use it in a `with`, so that the terminal is whole again however the run ends.

    `ordered`: rows that come with their place wait until all before them are there, so that people read ascending sizes although
    cells are measured in shuffled order.
    """

    def __init__(self, writer: RowWriter, screen: Screen, ordered: bool = True) -> None:
        self._writer, self._screen, self._ordered = writer, screen, ordered
        self._open = False
        self._held: dict[int, list[Row]] = {}
        self._next = 0

    def start(self, plan: PlanSummary) -> None:
        """Before the first row: prints what stands above it."""
        self._open = True
        self._data(self._writer.start(plan))

    def progress(self, text: str, done: int, total: int, eta_s: float | None = None) -> None:
        """What is being measured now, how many of how many cells are done, and the seconds left.

        On terminals a live line; elsewhere now and then a line of talk, while no rows appear.
        """
        self._screen.progress(text, done, total, eta_s)

    def row(self, row: Row, place: int | None = None) -> None:
        """Takes a finished row; `place` is its position (from 0) among all that are planned, in the order to be printed.

        Without a place it is printed at once (nccl-tests: with its partner in the other placing).
        """
        if place is None or not self._ordered:
            self._data(self._writer.row(row))
            return
        self._held.setdefault(place, []).append(row)
        while self._next in self._held:
            self._release(self._next)
            self._next += 1

    def note(self, sentence: str) -> None:
        """Says something about the run, apart from its data."""
        self._screen.talk(sentence)

    def end(self, summary: Iterable[str] = ()) -> None:
        """After the last row: prints the foot, then `summary` as talk."""
        self.close()
        for sentence in summary:
            self._screen.talk(sentence)

    def close(self) -> None:
        """Ends the output wherever it stands: the rows that still wait, in order, the foot, and the terminal as it was before."""
        self._screen.close()
        if self._open:
            self._open = False
            for place in sorted(self._held):
                self._release(place)
            self._data(self._writer.end())

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(error, OSError):  # perhaps our own output is gone: say nothing more
            with suppress(OSError):
                self._screen.close()
        else:
            self.close()

    def _release(self, place: int) -> None:
        for row in self._held.pop(place):
            self._data(self._writer.row(row))

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
    return Reporter(FORMATS[format](screen.room), screen, ordered=format not in AS_MEASURED)
