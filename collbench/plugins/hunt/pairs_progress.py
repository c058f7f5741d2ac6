"""Progress of a run of pairs: a line per round, then the matrix with its slow nodes and pairs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.plugins.hunt.pairs import remeasured
from collbench.plugins.hunt.pairs_text import finding_json
from collbench.plugins.hunt.records import PairMatrix, PairRound, matrix_of
from collbench.plugins.hunt.strategy import answer_of, judge
from collbench.report.progress import ProgressPrinter
from collbench.report.screen import wants_color
from collbench.results.row import Row
from collbench.units import format_duration

if TYPE_CHECKING:
    from collbench.measuring.session import Plan
    from collbench.plugins.hunt.pairs import PairEffects
    from collbench.plugins.hunt.places import RoundOrder
    from collbench.plugins.hunt.protocol import RoundRequest, RoundResult, Suspect


class PairsProgressPrinter(ProgressPrinter):
    """The listener of a pairs run (a `RoundsListener`). Use it in a `with`, as `ProgressPrinter`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self._effects: PairEffects | None = None
        self._retest: Generator[RoundRequest, RoundResult, list[Suspect]] | None = None
        self._round_request: RoundRequest | None = None
        self._suspects: list[Suspect] = []
        self._external: list[Row] = []

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store what is known before the first round."""
        self._about = about
        return {}

    def begin(self, plan: Plan, folder: str) -> None:
        """Store the folder."""
        self._folder = folder

    def progress(self, text: str, done: int, total: int | None, eta_s: float | None = None) -> None:
        """Update the live line, or print one for the log."""
        if total is None:
            self.note(f"suspects again, round {done}: {text}")
        elif self._live:
            self._screen.progress(f"round of {text}", done, total, eta_s)
        else:
            left = "" if eta_s is None or done == total else f", {format_duration(eta_s)} left"
            self.note(f"round {done} of {total}: {text}{left}")

    def record(self, record: Any, place: int | None) -> None:
        """Keep the rows of external tools, to print below the matrix."""
        if isinstance(record, Row):
            self._external.append(record)

    def next(self, last: Sequence[PairRound]) -> RoundOrder | None:
        """Return the next round that measures suspects again; None if there is none."""
        from collbench.plugins.hunt.places import RoundOrder

        try:
            if self._retest is None:
                self._retest = judge(self._matrix(last), last, self._arguments.seed or 0)
                self._round_request = next(self._retest)
            else:
                assert self._round_request is not None
                self._round_request = self._retest.send(answer_of(self._round_request.groups, last, self._about["size_bytes"]))
        except StopIteration as stop:
            self._suspects = stop.value
            return None
        return RoundOrder(**vars(self._round_request))

    def verdict(self, rounds: Sequence[PairRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict: each slow node and pair that measuring again confirmed, and the judged suspects."""
        from collbench.plugins.hunt.pairs import PairEffects

        judged = [each.as_json() for each in self._suspects]
        repeated = {pair for one in rounds if one.again for pair in one.pairs}
        self._about = about
        self._effects = effects = PairEffects(self._matrix(rounds), repeated, remeasured=remeasured(judged))
        found = effects.findings()
        result = "confirmed" if found else "no verdict" if effects.inconclusive() else "nobody"
        return {"result": result, "judged": judged, "findings": [finding_json(each, effects.matrix.places) for each in found]}

    def end(self) -> None:
        """Print the matrix, and the run's folder."""
        self.close()
        if self._effects:
            from collbench.plugins.hunt.pairs_text import write_pairs

            matrix, found, unsaid = self._effects.matrix, self._effects.findings(), self._effects.doubts()
            color = wants_color(sys.stdout, self._arguments.color)
            about, format, name = self._about, self._arguments.format, Path(self._folder).name
            quiet = self._arguments.quiet
            write_pairs(
                matrix, found, about, format, sys.stdout, color=color, unsaid=unsaid, external=self._external, run=name, quiet=quiet
            )
            sys.stdout.flush()
        super().end()

    def _matrix(self, rounds: Sequence[PairRound]) -> PairMatrix:

        return matrix_of(self._about, rounds)
