"""What rank 0 shows of a pairs run: a line per round, then the matrix and the slow nodes and pairs in it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.analysis.hunt.protocol import Answer, Ask, Suspect
from collbench.analysis.hunt.strategy import answer_of, judge
from collbench.analysis.pairs import PairEffects, remeasured
from collbench.report.listening import Listening
from collbench.report.screen import is_terminal, wants_color
from collbench.results.rounds import PairMatrix, PairRound, matrix_of
from collbench.results.row import Row
from collbench.units import format_duration


class PairsListening(Listening):
    """The runner's PairsListener. Use it in a `with`, as Listening."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._arguments = arguments
        self._about: Mapping[str, Any] = {}
        self._effects: PairEffects | None = None
        self._judging: Generator[Ask, Answer, list[Suspect]] | None = None
        self._asked: Ask | None = None
        self._suspects: list[Suspect] = []
        self._theirs: list[Row] = []
        watched = is_terminal(sys.stdout) or is_terminal(sys.stderr, "stderr")
        self._live = watched and os.environ.get("TERM") != "dumb"

    def begin_pairs(self, about: Mapping[str, Any], folder: str) -> None:
        """What is known before the first round."""
        self._about, self._folder = about, folder

    def round(self, done: int, total: int | None, pairs: int, eta_s: float | None) -> None:
        """Moves the live line, or writes one for the log."""
        what = f"{pairs} {'pair' if pairs == 1 else 'pairs at once'}"
        if total is None:
            self._reporter.note(f"round {done} of suspects again: {what}")
        elif self._live:
            self._reporter.progress(f"round of {what}", done, total, eta_s)
        else:
            left = "" if eta_s is None or done == total else f", {format_duration(eta_s)} left"
            self._reporter.note(f"round {done} of {total}: {what}{left}")

    def again(self, last: list[PairRound]) -> Mapping[str, Any] | None:
        """The next round that measures suspects again."""
        try:
            if self._judging is None:
                self._judging = judge(self._matrix(last), last, self._arguments.seed or 0)
                self._asked = next(self._judging)
            else:
                assert self._asked is not None
                self._asked = self._judging.send(answer_of(self._asked.groups, last, self._about["size_bytes"]))
        except StopIteration as stop:
            self._suspects = stop.value
            return None
        return {"pairs": self._asked.groups, "pause_s": self._asked.pause_s}

    def matrix(self, rounds: list[PairRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict: slow nodes and pairs that measuring again confirmed, a sentence each, and the suspects."""
        judged = [each.as_json() for each in self._suspects]
        repeated = {pair for one in rounds if one.again for pair in one.pairs}
        self._about = about
        self._effects = effects = PairEffects(self._matrix(rounds), repeated, remeasured=remeasured(judged))
        found = effects.findings()
        result = "confirmed" if found else "no verdict" if effects.inconclusive() else "nobody"
        return {"result": result, "judged": judged, "findings": [each.sentence(effects.matrix.places) for each in found]}

    def theirs(self, rows: list[Row]) -> None:
        """Keeps what other tools said, to stand below the matrix."""
        self._theirs = rows

    def end(self) -> None:
        """Prints the matrix, and where the run is kept."""
        self._reporter.close()
        if self._effects:
            from collbench.report.pairs import write_pairs

            matrix, found, unsaid = self._effects.matrix, self._effects.findings(), self._effects.doubts()
            color = wants_color(sys.stdout, self._arguments.color)
            about, format, name = self._about, self._arguments.format, Path(self._folder).name
            write_pairs(matrix, found, about, format, sys.stdout, color=color, unsaid=unsaid, theirs=self._theirs, run=name)
            sys.stdout.flush()
        super().end()

    def _matrix(self, rounds: Sequence[PairRound]) -> PairMatrix:
        about = self._about
        return matrix_of(about["places"], rounds, about["size_bytes"], about["latency_size_bytes"])
