"""`Runs.kv` and `Runs.kv_rows` of the Python API."""

from __future__ import annotations

from collbench.api.frames import DeclaredTable
from collbench.plugins.kv.text import KV

KV_TABLE = DeclaredTable("kv", KV)
kv = KV_TABLE.frames("method and blocks of runs of `collbench kv`")
kv_rows = KV_TABLE.all_records()
