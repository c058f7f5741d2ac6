"""Everything that a page is made from: runs as they were read, put together once, for all sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.report.pairs_stored import holds_pairs
from collbench.report.plan import in_print_order
from collbench.results.reader import Run
from collbench.results.record import Row

if TYPE_CHECKING:  # they import numpy or many rooms, which a page without such runs does not need
    from collbench.analysis.combine import Launches
    from collbench.results.pair_reader import StoredPairs


@dataclass(frozen=True)
class Material:
    """runs      as read, in the order they were named
    where     the file that is written; links to raw files are relative to its folder
    warnings  what could not be read, or not be put together, in sentences
    """

    runs: Sequence[Run]
    where: Path
    warnings: Sequence[str] = ()

    @cached_property
    def tables(self) -> list[Launches]:
        """Launches of one allocation as one, in the order they were named; runs of pairs are not among them."""
        return self._together[0]

    @cached_property
    def apart(self) -> list[str]:
        """A sentence for each run that is kept apart although its allocation is the same."""
        return self._together[1]

    @cached_property
    def pairs(self) -> list[tuple[Run, StoredPairs]]:
        """The runs that measured pairs. Raises UsageError where one of them does not fit its run.json."""
        from collbench.results.pair_reader import read_pairs

        read = [(run, read_pairs(run)) for run in self.runs if holds_pairs(run)]
        return [(run, stored) for run, stored in read if stored is not None]

    def rows(self, table: Launches) -> list[Row]:
        """The table's rows, ascending in size."""
        return in_print_order(table.rows)

    @cached_property
    def _together(self) -> tuple[list[Launches], list[str]]:
        from collbench.analysis.combine import together

        return together([run for run in self.runs if not holds_pairs(run)])
