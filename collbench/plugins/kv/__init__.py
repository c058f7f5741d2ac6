"""Transfers of scattered blocks, such as those of a key-value cache."""

from collbench.plugin import Plugin, RecordFile

FILE = "kv.jsonl"

PLUGIN = Plugin(
    name="kv",
    summary="transfers of scattered blocks, such as those of a key-value cache",
    commands={"kv": "collbench.plugins.kv.command:KV_COMMAND"},
    records={"kv": RecordFile(FILE, "row", has_cases=True)},
    kinds=("collbench.plugins.kv.text:KV",),
    sections={"collbench.plugins.kv.page:section": "gate"},
    tables=("collbench.plugins.kv.api:KV_TABLE",),
    api={"Runs.kv": "collbench.plugins.kv.api:kv", "Runs.kv_rows": "collbench.plugins.kv.api:kv_rows"},
    needs=("libraries",),
)
