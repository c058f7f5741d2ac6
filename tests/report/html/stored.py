"""Runs with arrays in memory, for the sections that show samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.report.material import Material
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.stats.median import modes
from tests.results.rows import make_row, make_times

HOSTS = [{"rank": rank, "host": f"node{rank // 2}"} for rank in range(8)]


class InMemory(Run, frozen=True):
    """A run with arrays in memory: by name, for each row's place."""

    arrays: Mapping[tuple[int, str], Any] = msgspec.field(default_factory=dict)

    def array(self, row: Row, name: str) -> NDArray[Any]:
        known = self.arrays.get((self.rows.index(row), name))
        if known is None:
            raise UsageError(f"array '{name}' was not stored")
        return np.asarray(known)


def sampled_row(series: Sequence[float], size_bytes: int = 1024, **changes: Any) -> Row:
    """The row that such samples make, with its two values and the flag for it if they have two."""
    both = modes(np.array(series))
    known = {
        "time_s": replace(make_times(float(np.median(series))), min=min(series), max=max(series)),
        "modes": [{"time_s": mode.value, "share": mode.share} for mode in both or ()], "flags": ("two_modes",) if both else (),
    }  # fmt: skip
    return make_row(size_bytes, **{**known, **changes})


def run_of(cases: Sequence[tuple[Row, Mapping[str, Any]]], name: str = "run", **info: Any) -> Run:
    """A run with these rows and their arrays."""
    arrays = {(place, array): values for place, (_, each) in enumerate(cases) for array, values in each.items()}
    return InMemory(Path(name), {"rank_map": HOSTS, **info}, [row for row, _ in cases], arrays=arrays)


def material(*runs: Run) -> Material:
    """What a page of these runs is made from."""
    return Material(runs, Path("page.html"))
