"""The input of a report (tables, Markdown, OpenMetrics, pages): the runs as read, and what follows from them, computed once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.plugin import hooks_of, loaded_parts, plugins
from collbench.report.kinds import RunKind, StoredRecords, kind_of, kinds
from collbench.report.plan import in_print_order
from collbench.results.reader import Run
from collbench.results.row import CaseKey, Row

if TYPE_CHECKING:  # these import numpy or many packages, which a page without such runs does not need
    from collbench.analysis.ceilings import CeilingDrops
    from collbench.analysis.compare import Comparison
    from collbench.analysis.concerns import Concern
    from collbench.analysis.health import CheckVerdict
    from collbench.analysis.launches import Launches
    from collbench.analysis.stragglers import Compared
    from collbench.gating.judge import TypicalTime
    from collbench.gating.verdict import Verdict
    from collbench.report.frame import Line
    from collbench.report.html.first_screen import FirstScreen

MOST_CANDIDATES = 8
MOST_DRAWN = 24  # runs with their own charts: more would take minutes, and would not be readable


class OtherComparison(ABC):
    """A comparison of runs that are not compared case by case, which a plug-in makes."""

    @abstractmethod
    def answer(self) -> str:
        """Return the answer in one sentence."""

    @abstractmethod
    def lines(self, format: str, width: int | None = None) -> Iterator[Line]:
        """Yield the comparison, as "table" or "markdown"."""

    @abstractmethod
    def screen(self, circumstances: str) -> FirstScreen:
        """Return the answer of a page."""


class Material(msgspec.Struct, frozen=True, dict=True):
    """The runs of a report.

    runs      as read, in the given order
    where     the file that is written; links to raw files are relative to its folder
    warnings  what could not be read or combined, in sentences
    verdict   of a gate about these runs; None if there is none
    baseline  the folder of the baseline that the verdict is about; None: unknown
    linked    whether the page links to the raw files of the runs
    """

    runs: Sequence[Run]
    where: Path
    warnings: Sequence[str] = ()
    verdict: Verdict | None = None
    baseline: Path | None = None
    linked: bool = True

    @cached_property
    def tables(self) -> list[Launches]:
        """The runs with rows, launches of one allocation as one table, in the given order."""
        return self._together[0]

    @property
    def drawn(self) -> list[Launches]:
        """The first ones of `tables`, which have charts of their own."""
        return self.tables[:MOST_DRAWN]

    @cached_property
    def apart(self) -> list[str]:
        """A sentence for each run that is kept separate although its allocation is the same."""
        return self._together[1]

    def of_kind(self, name: str) -> list[tuple[Run, Any]]:
        """Return the runs of a kind with the records of each; none without its plug-in. Raises UsageError."""
        kind = kinds().get(name)
        return [(run, self.stored(run, kind).records) for run in self.runs if kind.holds(run)] if kind else []

    def stored(self, run: Run, kind: RunKind) -> StoredRecords:
        """Return what a kind reads of a run, which it does once. Raises UsageError."""
        key = kind.name, run.path
        if key not in self._stored:
            self._stored[key] = kind.read(run)
        return self._stored[key]

    @cached_property
    def _stored(self) -> dict[tuple[str, Path], StoredRecords]:
        return {}

    @cached_property
    def tables_of_kinds(self) -> list[Launches]:
        """The cases of replays and block transfers, a table for each run: Markdown and OpenMetrics have them."""
        from collbench.analysis.launches import Launches

        drawn = {run.path for kind in kinds().values() if kind.drawn for run, _ in self.of_kind(kind.name)}  # with Markdown of their own
        return [
            Launches(run.path.resolve().name, (run,), run.rows) for run in self.runs if run.rows and kind_of(run) and run.path not in drawn
        ]

    @cached_property
    def typical_times(self) -> dict[CaseKey, TypicalTime]:
        """The times of the baseline by case; empty without one. Raises UsageError if it cannot be read."""
        if self.baseline is None:
            return {}
        from collbench.gating.baseline import load
        from collbench.gating.judge import typical_times

        return typical_times(load(self.baseline))

    @cached_property
    def check(self) -> CheckVerdict | None:
        """The verdict of the check that stored the run; None for other runs, and for several. Raises UsageError if it cannot be read."""
        from collbench.report.health import read_check

        return read_check(self.runs[0].path) if len(self.runs) == 1 else None

    @property
    def runs_of_kinds(self) -> list[Run]:
        """The runs of other kinds than rows, by kind."""
        return [run for kind in sorted(kinds().values(), key=lambda kind: not kind.answers_last) for run, _ in self.of_kind(kind.name)]

    @cached_property
    def compared(self) -> list[list[Compared]]:
        """For each of `tables` the cases with comparable ranks, of all its launches."""
        from collbench.analysis.stragglers import compared

        return [[case for run in table.runs for case in compared(run)] for table in self.tables]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The first 8 comparisons of `tables` with the first one.

        On the page of a gate the tables are candidates, which are compared with the baseline only. Of paired stacks the first half of the
        tables is the old stack; each table is the baseline of its counterpart.
        """
        from collbench.analysis.compare import compare_pair

        return [compare_pair(baseline, candidate) for baseline, candidate in self._compared_tables[:MOST_CANDIDATES]]

    @cached_property
    def alternatives(self) -> OtherComparison | None:
        """The tables as alternatives, if one of them has no case in common with the first one; None for a gate, and without any."""
        if self.verdict is not None or all(comparison.cases for comparison in self.comparisons):
            return None
        return next(filter(None, (compared(self._ordered_tables) for compared in hooks_of("alternatives"))), None)

    @property
    def _ordered_tables(self) -> list[Launches]:
        return [replace(table, rows=self.rows(table)) for table in self.tables]

    @property
    def _compared_tables(self) -> list[tuple[Launches, Launches]]:
        if self.verdict is None:
            return [(self.tables[0], candidate) for candidate in self.tables[1:]]
        half, odd = divmod(len(self.tables), 2)
        return [] if self.verdict.mode == "baseline" or odd else list(zip(self.tables[:half], self.tables[half:], strict=True))

    @property
    def _fallen(self) -> list[tuple[str, CeilingDrops]]:
        """For each candidate the ceilings that are lower than in its baseline."""
        from collbench.analysis.ceilings import CeilingDrops

        if self.verdict is not None and self.verdict.ceilings:
            return [(", ".join(self.verdict.candidates), CeilingDrops((), self.verdict.ceilings, True))]
        return [(comparison.b.name, comparison.fallen) for comparison in self.comparisons]

    @cached_property
    def concerns(self) -> list[Concern]:
        """Findings, flags and what is missing, the worst first."""
        from collbench.analysis.concerns import SEVERITIES, concerns

        findings = [concern for kind in kinds().values() for concern in kind.findings(self)]
        warnings = [*self.warnings, *self.apart]
        core_concerns = concerns(self.runs, self._ordered_tables, self.compared, findings, warnings, fallen=self._fallen)
        parts = [kind.concerns for kind in kinds().values()]
        parts += loaded_parts(place for plugin in plugins().values() for place in plugin.concerns)
        more = [concern for concerns_of in parts for concern in concerns_of(self)]
        return sorted([*core_concerns, *more], key=lambda concern: SEVERITIES.index(concern.severity))

    def rows(self, table: Launches) -> list[Row]:
        """Return the rows of a table, ascending in size; a ceiling that is lower than in the first table is replaced by the one there."""
        return self._in_order.get(id(table)) or in_print_order(table.rows)

    @cached_property
    def _in_order(self) -> dict[int, list[Row]]:
        """The sorted rows by table, computed once: a thousand rows take a while."""
        return {id(table): in_print_order(self._on_the_baseline(table)) for table in self.tables}

    def _on_the_baseline(self, table: Launches) -> list[Row]:
        """Return the rows with the ceilings of the baseline where their own are lower, so that percentages do not hide the loss."""
        from collbench.analysis.ceilings import dropped_ceilings, link_ceilings, share_hosts, with_ceilings_before

        if self.verdict is not None:
            return with_ceilings_before(self.verdict.ceilings, "the baseline", table.rows)
        baseline = self.tables[0]
        if table is baseline or not share_hosts(baseline.runs[0], table.runs[0]):
            return table.rows
        changes = dropped_ceilings(link_ceilings(baseline.rows), link_ceilings(table.rows))
        return with_ceilings_before(changes, baseline.name, table.rows)

    @cached_property
    def _together(self) -> tuple[list[Launches], list[str]]:
        from collbench.analysis.launches import together

        return together([run for run in self.runs if not kind_of(run)])
