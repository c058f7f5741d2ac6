"""Progress and results on rank 0 while a run measures: the reporter, which combines a format with a screen, and the runner's listeners."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import msgspec
from msgspec.structs import replace

from collbench.report import FORMATS
from collbench.report.blocks import DEFAULT_VIEW, View
from collbench.report.frame import Line
from collbench.report.plan import PlanSummary
from collbench.report.screen import check_format, is_terminal, make_screen, wants_color
from collbench.report.writers import make_writer
from collbench.results.row import Row
from collbench.units import format_duration

if TYPE_CHECKING:
    from collbench.measuring.session import Plan
    from collbench.records import RecordKind


class Reporter:
    """Prints a run as it goes. Use it in a `with`, so that the terminal is restored however the run ends.

    format  one of FORMATS. In those for people, rows with a place wait for all rows before them, so that sizes ascend although cases are
            measured in random order
    stream  for data, and `err` for remarks (default: stdout and stderr of this process)
    color   auto, always or never
    quiet   whether only data is printed
    view    selects the columns of the table

    Raises UsageError for an unknown format or color.
    """

    def __init__(
        self,
        format: str = "table",
        stream: TextIO | None = None,
        err: TextIO | None = None,
        color: str = "auto",
        quiet: bool = False,
        *,
        view: View = DEFAULT_VIEW,
    ) -> None:
        check_format(format, FORMATS)
        self._screen = make_screen(stream or sys.stdout, err or sys.stderr, color, quiet)
        self._writer = make_writer(format, self._screen.room, view)
        self._open = False
        self._held: dict[int, list[Row]] = {}
        self._next = 0

    def start(self, plan: PlanSummary) -> None:
        """Print the lines above the first row."""
        self._open = True
        self._data(self._writer.start(plan))

    def status(self, text: str, left_s: float | None = None) -> None:
        """Show what happens before the first case: on a terminal at once, elsewhere if nothing else was printed for 3 s."""
        self._screen.status(text, left_s)

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Show what is measured now, how many of how many cases are done, and the estimated seconds left.

        This is a live line on terminals; elsewhere an occasional line while no rows appear.
        """
        self._screen.progress(text, done, total or 0, eta_s)

    def row(self, row: Row, place: int | None = None) -> None:
        """Print a finished row; `place` is its position (from 0) among all planned rows, in printing order.

        Without a place it is printed at once (nccl-tests: with its partner in the other placing).
        """
        if place is None or self._writer.for_programs:
            self._data(self._writer.row(row))
            return
        self._held.setdefault(place, []).append(row)
        while self._next in self._held:
            self._release(self._next)
            self._next += 1

    def note(self, sentence: str) -> None:
        """Print a sentence about the run, apart from its data."""
        self._screen.talk(sentence)

    def close(self) -> None:
        """End the output at any point: print the waiting rows in order and the foot, and restore the terminal."""
        self._screen.close()
        if self._open:
            self._open = False
            for place in sorted(self._held):
                self._release(place)
            self._data(self._writer.end())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(error, OSError):  # the output may be closed, so print nothing more
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


class Output(msgspec.Struct, frozen=True):
    """How a command prints: the values of --format, --color and --quiet, and the view of a table of cases."""

    format: str = "table"
    color: str = "auto"
    quiet: bool = False
    view: View = DEFAULT_VIEW


class ProgressPrinter(Reporter):
    """The listener of a sweep: it prints the runner's events. Use it in a `with`, so that the terminal is restored however the run ends.

    request  that of the command, for listeners that decide by it
    """

    def __init__(self, output: Output, request: Any = None) -> None:
        super().__init__(output.format, color=output.color, quiet=output.quiet, view=output.view)
        self._output = output
        self._request = request
        self._began_s = time.monotonic()
        self._folder = ""
        self._ended_folder = ""

    @cached_property
    def _live(self) -> bool:
        """Whether a live line shows the progress, instead of lines for a log."""
        return (is_terminal(sys.stdout) or is_terminal(sys.stderr, "stderr")) and os.environ.get("TERM") != "dumb"

    def begin(self, plan: Plan, folder: str) -> None:
        """Print the lines above the first row, for all cases that will be measured."""
        self._began_s = time.monotonic()
        self._folder = folder
        summary = PlanSummary.of(plan.cases, plan.rank_map, folder, ranks=plan.ranks, nodes=plan.nodes)
        self.start(replace(summary, requested=plan.facts.get("asked", {})))

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Show the case that begins; the time left is estimated from the cases so far."""
        cases = total or 0
        if eta_s is None and done:
            eta_s = (time.monotonic() - self._began_s) / done * (cases - done)
        super().progress(text, done, cases, eta_s)

    def record(self, record: Any, place: int | None) -> None:
        """Print a finished case as soon as all before it are printed."""
        self.row(record, place)

    def end(self) -> None:
        """Print the foot of the table, and the run's folder."""
        self.close()
        self._name_folder()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._name_folder()

    def write_records(self, kind: RecordKind[Any], records: Any, headed: bool = False) -> None:
        """Print the records of the run, or a result with records, in the format of the command. headed: see `forms.write`."""
        from collbench.report.forms import write

        color = wants_color(sys.stdout, self._output.color)
        name = Path(self._folder).name
        write(kind, records, self._output.format, sys.stdout, color=color, run=name, headed=headed, quiet=self._output.quiet)
        sys.stdout.flush()

    def _name_folder(self) -> None:
        if self._folder:
            self.note(f"run folder: {self._folder}")
            self._ended_folder = self._folder
            self._folder = ""

    def write_trace(self, path: Path | None) -> None:
        """Write the file of --trace (None: without it), once the run has ended. Raises UsageError if it cannot be written.

        Of several launches `--launches` writes it, with all of them.
        """
        if path is None or not self._ended_folder:
            return
        from collbench.report.trace import write_trace
        from collbench.report.writers import confirm_written
        from collbench.results.reader import read_run

        for sentence in write_trace([read_run(Path(self._ended_folder))], path):
            self.note(sentence)
        if not self._output.quiet:
            confirm_written((path,), sys.stderr)


class QuietProgressPrinter(ProgressPrinter):
    """A listener that shows only what is measured now, and the runner's notes if wanted; it keeps the run's folder.

    It is that of a run without printed rows: of one launch of several (the rows wait for the others), and of a check.
    """

    def __init__(self, output: Output, request: Any = None, notes: bool = False) -> None:
        super().__init__(output, request)
        self.folder = Path()
        self._notes = notes

    def begin(self, plan: Plan, folder: str) -> None:
        """Store the folder."""
        self._began_s = time.monotonic()
        self.folder = Path(folder)

    def record(self, record: Any, place: int | None) -> None:
        """Print nothing: the row is in the run's folder."""

    def note(self, sentence: str) -> None:
        """Print the sentence if notes are wanted. They are equal in all launches, and in the run's folder."""
        if self._notes:
            super().note(sentence)


class RecordsProgressPrinter(ProgressPrinter):
    """A listener that keeps the records of a run. Use it in a `with`, as `ProgressPrinter`."""

    def __init__(self, output: Output, request: Any = None) -> None:
        super().__init__(output, request)
        self._rows: list[Any] = []

    def begin(self, plan: Plan, folder: str) -> None:
        """Store the folder."""
        self._folder = folder

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line; a log gets a line for each tenth."""
        if self._live:
            super().progress(text, done, total, eta_s)
        elif total and done * 10 // total != (done - 1) * 10 // total:
            remaining = "" if eta_s is None else f", {format_duration(eta_s)} left"
            self.note(f"{done + 1} of {total}: {text}{remaining}")

    def record(self, record: Any, place: int | None) -> None:
        """Keep the row for the table."""
        self._rows.append(record)
