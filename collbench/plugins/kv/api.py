"""`Runs.kv` and `Runs.kv_rows` of the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.api.frames import DeclaredTable, frame_of
from collbench.plugins.kv.text import KV

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs

KV_TABLE = DeclaredTable("kv", KV)


def kv(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per method and blocks of runs of `collbench kv`.

    Raises UsageError without pandas, and UnreadableRun for damaged records.
    """
    return frame_of(KV_TABLE, self, self.strict)


kv_rows = KV_TABLE.all_records()
