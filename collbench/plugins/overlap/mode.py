"""The mode "overlap", as the core measures and shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collbench.measuring.mode import MeasurementMode
from collbench.plugins.overlap.records import flat_values

if TYPE_CHECKING:
    from collbench.measuring.tasks.cases import CaseWork
    from collbench.results.row import Row


class OverlapMode(MeasurementMode):
    """An operation and a computation, alone and together. What measures and what makes text is imported when it is needed."""

    @property
    def work(self) -> type[CaseWork]:
        """The cases that are measured with a computation."""
        from collbench.plugins.overlap.measurement import OverlapWork

        return OverlapWork

    def text_of(self, row: Row, column: str) -> str | None:
        """Return the text of a column in µs or percent."""
        from collbench.plugins.overlap.text import text_of

        return text_of(row, column)

    def flat_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures without nested objects."""
        return flat_values(values)

    def legend(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield how to read the columns, and why a row is inconclusive."""
        from collbench.plugins.overlap.text import overlap_lines

        yield from overlap_lines(rows)

    def compared(self, a: Iterable[Row], b: Iterable[Row]) -> Iterator[str]:
        """Yield the exposed time and the overlap of each case of both sides."""
        from collbench.plugins.overlap.text import exposed_sentences

        yield from exposed_sentences(a, b)


OVERLAP = OverlapMode()
