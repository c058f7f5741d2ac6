"""Progress of a load run, and each row as soon as it is finished."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from collbench.plugins.load.text import LoadWriter
from collbench.report.progress import ProgressPrinter, RecordsProgressPrinter
from collbench.report.screen import print_lines, wants_color

if TYPE_CHECKING:
    from collbench.measuring.session import Plan


class LoadProgressPrinter(RecordsProgressPrinter):
    """The listener of a load run. Use it in a `with`, as `ProgressPrinter`."""

    def begin(self, plan: Plan, folder: str) -> None:
        """Prepare the table of the planned rows."""
        super().begin(plan, folder)
        self._lines = LoadWriter(self._output.format, Path(folder).name, plan.facts["load"]["against"], self._screen.room)

    def record(self, record: Any, place: int | None) -> None:
        """Print the row."""
        self._rows.append(record)
        self._data(self._lines.row(record))

    def end(self) -> None:
        """Print the sentences below the rows, and the run's folder."""
        self._end_table()
        ProgressPrinter.end(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if not isinstance(error, OSError):  # the output may be closed
            self._end_table()
        super().__exit__(kind, error, trace)

    def _end_table(self) -> None:
        self.close()
        if self._rows:
            print_lines(self._lines.end(), sys.stdout, wants_color(sys.stdout, self._output.color), quiet=self._output.quiet)
            sys.stdout.flush()
            self._rows = []
