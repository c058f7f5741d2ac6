"""The samples behind the rows, for what shows how they are distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collbench.analysis.launches import cell_of, time_of
from collbench.errors import UsageError
from collbench.report.columns import NOTHING, two_modes
from collbench.results.row import Row
from collbench.stats.median import quantile, sound
from collbench.units import format_percent, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from collbench.analysis.launches import Launches
    from collbench.report.html.material import Material
    from collbench.results.reader import Run


@dataclass(frozen=True)
class Sampled:
    """A cell with its samples in seconds, ascending (at least one); of several launches those of all. `time_s` is the row's median."""

    row: Row
    ordered: NDArray[np.float64]
    time_s: float

    def at(self, share: float) -> float:
        """A quantile in seconds; `share` from 0 to 1."""
        return quantile(self.ordered, share)

    def ratio(self, share: float) -> float:
        """A quantile over the row's median."""
        return self.at(share) / self.time_s

    def text(self, share: float) -> str:
        """A quantile in µs, as text."""
        return format_time(self.at(share))

    @property
    def spread(self) -> float:
        """The 99th percentile over the first."""
        return self.at(0.99) / self.at(0.01)


def sampled(material: Material, table: Launches) -> tuple[list[Sampled], list[Row]]:
    """The table's cells in print order, and the rows with a time whose samples are not there (imported, or samples.bin was cut)."""
    there: list[Sampled] = []
    without: list[Row] = []
    stored = _stored(table)
    for row in material.rows(table):
        time_s = time_of(row)
        if time_s is None or row.size_bytes < 0:
            continue
        parts = [part for run, each in stored.get(cell_of(row), ()) if len(part := _samples(run, each))]
        if parts:
            there.append(Sampled(row, np.sort(np.concatenate(parts)), time_s))
        else:
            without.append(row)
    return there, without


def both_modes(row: Row) -> str:
    """The two values that the samples gather around: "2.345 µs (82 %) and 10.70 µs (18 %)"; a dash where there is one."""
    return " and ".join(f"{format_time(time_s)} µs ({format_percent(100 * share)})" for time_s, share in two_modes(row)) or NOTHING


def _stored(table: Launches) -> dict[tuple[object, ...], list[tuple[Run, Row]]]:
    found: dict[tuple[object, ...], list[tuple[Run, Row]]] = {}
    for run, row in _rows(table):
        found.setdefault(cell_of(row), []).append((run, row))
    return found


def _rows(table: Launches) -> Iterator[tuple[Run, Row]]:
    for run in table.runs:
        yield from ((run, row) for row in run.rows)


def _samples(run: Run, row: Row) -> NDArray[np.float64]:
    """The row's samples that a clock can give; none where they were not stored, or are no series of numbers."""
    try:
        stored = run.array(row, "max_s")
    except UsageError:
        return np.empty(0)
    series = sound(stored.astype(np.float64)) if stored.ndim == 1 else np.empty(0)
    return series[(series > 1e-15) & (series < 1e12)]
