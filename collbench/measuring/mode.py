"""The contract of a mode of measuring that a plug-in brings (`Plugin.modes`): how a case is prepared, and how its figures are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.measuring.tasks.cases import CaseWork
    from collbench.results.row import Row


class MeasurementMode(ABC):
    """A mode of measuring. The field of a row with the name of the mode has its figures."""

    @property
    @abstractmethod
    def work(self) -> type[CaseWork]:
        """The class of the cases that are measured in this mode: how they are prepared and sampled, and their rows."""

    @abstractmethod
    def text_of(self, row: Row, column: str) -> str | None:
        """Return the text of a column of the mode in tables; None without a value."""

    @abstractmethod
    def flat_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures of a row for CSV, by name."""

    def legend(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield how to read the columns."""
        yield from ()

    def compared(self, a: Iterable[Row], b: Iterable[Row]) -> Iterator[str]:
        """Yield the sentences of `compare` about the rows of both sides."""
        yield from ()
