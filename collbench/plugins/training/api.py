"""`Runs.workloads` of the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.api.frames import DeclaredTable, frame_of
from collbench.plugins.training.kind import TRAINING

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs

WORKLOADS_TABLE = DeclaredTable("workloads", TRAINING)


def workloads(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per training and backend of runs of `collbench workload`.

    Raises UsageError without pandas, and for an invalid run.json.
    """
    return frame_of(WORKLOADS_TABLE, self, self.strict)
