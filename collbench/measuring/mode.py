"""The contract of a mode of measuring that a plug-in brings (`Plugin.modes`): how a case is prepared, and how its figures are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.backends.backend import Backend
    from collbench.control.world import World
    from collbench.measuring.monitored import MonitoredMeasurement
    from collbench.measuring.prepared_case import BackendContext, PreparedCase
    from collbench.measuring.row import RowContext
    from collbench.reason import Fact
    from collbench.results.row import Row


class CaseInMode(ABC):
    """A prepared case of such a mode. `ready` is what is measured."""

    ready: PreparedCase

    @abstractmethod
    def evaluate(self, watched: MonitoredMeasurement | None, world: World) -> Any:
        """Return the figures of the mode at rank 0, None elsewhere and without a measurement. All ranks must call it."""

    @abstractmethod
    def row(self, figures: Any, backend: Backend, watched: MonitoredMeasurement, around: RowContext) -> tuple[Row, dict[str, Any]]:
        """Return the row with these figures, and its arrays."""


class MeasurementMode(ABC):
    """A mode of measuring. The field of a row with the name of the mode has its figures."""

    @abstractmethod
    def prepare(self, ready: PreparedCase, context: BackendContext, world: World) -> CaseInMode | Fact:
        """Return the case as the mode measures it, or why it cannot run, the same at all ranks. All ranks must call it."""

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
