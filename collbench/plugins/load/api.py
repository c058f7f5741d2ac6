"""`Runs.loads` and `Runs.load_rows` of the Python API."""

from __future__ import annotations

from collbench.api.frames import DeclaredTable
from collbench.plugins.load.text import LOAD

LOADS_TABLE = DeclaredTable("loads", LOAD)
loads = LOADS_TABLE.frames("pattern and level of runs of `collbench load`: quantiles, aggressors off and on, and factors")
load_rows = LOADS_TABLE.all_records()
