"""`Runs.loads` and `Runs.load_rows` of the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.api.frames import DeclaredTable, frame_of
from collbench.plugins.load.text import LOAD

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs

LOADS_TABLE = DeclaredTable("loads", LOAD)


def loads(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per pattern and level of runs of `collbench load`: quantiles, aggressors off and on, and factors.

    Raises UsageError without pandas, and UnreadableRun for damaged records.
    """
    return frame_of(LOADS_TABLE, self, self.strict)


load_rows = LOADS_TABLE.all_records()
