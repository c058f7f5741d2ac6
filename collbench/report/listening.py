"""What rank 0 tells the user while it measures: the runner's events, shown by the room report."""

from __future__ import annotations

import argparse
import time
from types import TracebackType
from typing import Any

from collbench.operations.cell import Cell
from collbench.report.plan import PlanSummary
from collbench.report.terminal import make_reporter
from collbench.results.row import Row


class Listening:
    """The runner's Listener. Use it in a `with`: the terminal is whole again however the run ends."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._reporter = make_reporter(arguments.format, color=arguments.color, quiet=arguments.quiet)
        self._began = time.monotonic()
        self._folder = ""

    def begin(self, cells: list[Cell], ranks: int, nodes: int, rank_map: list[dict[str, Any]], folder: str) -> None:
        """Everything that will be measured."""
        self._began, self._folder = time.monotonic(), folder
        self._reporter.start(PlanSummary.of(cells, rank_map, folder, ranks=ranks, nodes=nodes))

    def progress(self, title: str, done: int, total: int, eta_s: float | None) -> None:
        """A cell begins; the time left is guessed from the cells so far."""
        spent = time.monotonic() - self._began
        self._reporter.progress(title, done, total, eta_s or (spent / done * (total - done) if done else None))

    def row(self, row: Row, place: int) -> None:
        """A cell has ended; it is printed when all before it are there."""
        self._reporter.row(row, place)

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        self._reporter.note(sentence)

    def end(self) -> None:
        """Nothing more will come: the foot of the table, and where the run is kept."""
        self._reporter.close()
        if self._folder:
            self._reporter.note(f"run folder: {self._folder}")
            self._folder = ""

    def __enter__(self) -> Listening:
        self._reporter.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._reporter.__exit__(kind, error, trace)
        if self._folder:
            self._reporter.note(f"run folder: {self._folder}")
