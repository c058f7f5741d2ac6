"""What rank 0 tells the user while it measures one launch of several: the rows wait for those of the others."""

from __future__ import annotations

import argparse
from typing import Any

from collbench.operations.cell import Cell
from collbench.report.listening import Listening
from collbench.results.row import Row


class OneOfSeveral(Listening):
    """Listens to one launch of several: shows progress, and what the first one notes; the rows are printed at the end, together."""

    def __init__(self, arguments: argparse.Namespace, first: bool) -> None:
        super().__init__(arguments)
        self._first = first

    def begin(self, cells: list[Cell], ranks: int, nodes: int, rank_map: list[dict[str, Any]], folder: str) -> None:
        """Nothing is printed above rows that are not."""

    def row(self, row: Row, place: int) -> None:
        """It is in the launch's folder."""

    def note(self, sentence: str) -> None:
        """What the first launch has said holds for the others."""
        if self._first:
            super().note(sentence)
