"""What rank 0 tells the user of a pairs run: a line per round, then the matrix and who is slow in it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.analysis.pair_effects import PairFinding, findings, suspects
from collbench.cli.listening import Listening
from collbench.report.screen import is_terminal, wants_color
from collbench.results.pairs import PairMatrix, PairRound, matrix_of
from collbench.results.record import Row
from collbench.units import format_duration


class PairsListening(Listening):
    """The runner's PairsListener. Use it in a `with`, as Listening."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._arguments = arguments
        self._about: Mapping[str, Any] = {}
        self._found: tuple[PairMatrix, list[PairFinding]] | None = None
        self._repeated: list[tuple[int, int]] = []
        self._theirs: list[Row] = []
        watched = is_terminal(sys.stdout) or is_terminal(sys.stderr, "stderr")
        self._live = watched and os.environ.get("TERM") != "dumb"

    def begin_pairs(self, about: Mapping[str, Any], folder: str) -> None:
        """What is known before the first round."""
        self._about, self._folder = about, folder

    def round(self, done: int, total: int, pairs: int, eta_s: float | None) -> None:
        """Moves the live line, or writes one for the log."""
        what = f"{pairs} {'pair' if pairs == 1 else 'pairs at once'}"
        if self._live:
            self._reporter.progress(f"round of {what}", done, total, eta_s)
        else:
            left = "" if eta_s is None or done == total else f", {format_duration(eta_s)} left"
            self._reporter.note(f"round {done} of {total}: {what}{left}")

    def again(self, rounds: list[PairRound]) -> list[tuple[int, int]]:
        """Whom a second look could clear or convict."""
        return suspects(self._matrix(rounds))

    def matrix(self, rounds: list[PairRound], about: Mapping[str, Any]) -> list[str]:
        """Names who is slow; a sentence each."""
        self._about, matrix = about, self._matrix(rounds)
        self._repeated = [pair for one in rounds if one.again for pair in one.pairs]
        found = findings(matrix, again=self._repeated)
        self._found = (matrix, found)
        return [each.sentence(matrix.places) for each in found]

    def theirs(self, rows: list[Row]) -> None:
        """Keeps what other tools said, to stand below the matrix."""
        self._theirs = rows

    def end(self) -> None:
        """Prints the matrix, and where the run is kept."""
        self._reporter.close()
        if self._found:
            from collbench.analysis.pair_effects import doubts
            from collbench.report.pairs import write_pairs

            matrix, found = self._found
            color = wants_color(sys.stdout, self._arguments.color)
            unsaid = doubts(matrix, self._repeated)
            about, format, name = self._about, self._arguments.format, Path(self._folder).name
            write_pairs(matrix, found, about, format, sys.stdout, color=color, unsaid=unsaid, theirs=self._theirs, run=name)
            sys.stdout.flush()
        super().end()

    def _matrix(self, rounds: Sequence[PairRound]) -> PairMatrix:
        about = self._about
        return matrix_of(about["places"], rounds, about["size_bytes"], about["latency_size_bytes"])
