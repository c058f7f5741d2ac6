"""What rank 0 tells the user of a workload: how far it is, and each training's table as soon as it is whole."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from collbench.report.listening import Listening
from collbench.report.screen import is_terminal, wants_color
from collbench.report.workload import write_steps
from collbench.results.steps import StepRow


class WorkloadListening(Listening):
    """The runner's WorkloadListener. Use it in a `with`, as Listening."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._format, self._color = arguments.format, wants_color(sys.stdout, arguments.color)
        self._about: Mapping[str, Any] = {}
        self._waiting: list[StepRow] = []
        self._printed = 0
        watched = is_terminal(sys.stdout) or is_terminal(sys.stderr, "stderr")
        self._live = watched and os.environ.get("TERM") != "dumb"

    def begin_workload(self, about: Mapping[str, Any], folder: str) -> None:
        """What is known before the first step."""
        self._about, self._folder = about, folder

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """Moves the live line, or writes one for the log."""
        if self._live:
            super().progress(title, done, total, eta_s)
        else:
            self._reporter.note(f"{done + 1} of {total}: {title}")

    def step_row(self, row: StepRow) -> None:
        """For programs it is printed at once; for people with the others of its training, and where a live line stands at the end."""
        self._waiting.append(row)
        if self._format != "table":
            self._print(1)
        elif not self._live:
            backends = len(self._about["backends"])
            self._print(len(self._waiting) // backends * backends)

    def end(self) -> None:
        """Prints what is left, and where the run is kept."""
        self._reporter.close()
        self._print(len(self._waiting))
        super().end()

    def __enter__(self) -> WorkloadListening:
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reporter.close()
        self._print(len(self._waiting))  # what was measured before it broke off
        super().__exit__(kind, error, trace)

    def _print(self, count: int) -> None:
        """The first ones of those that wait."""
        those, self._waiting = self._waiting[:count], self._waiting[count:]
        if those:
            step_time_s, first = self._about.get("step_time_s"), not self._printed
            name = Path(self._folder).name
            write_steps(those, self._format, sys.stdout, color=self._color, step_time_s=step_time_s, run=name, first=first)
            sys.stdout.flush()
            self._printed += len(those)
