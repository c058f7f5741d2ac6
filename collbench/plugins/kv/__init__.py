"""Transfers of scattered blocks, such as those of a key-value cache."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="kv",
    summary="transfers of scattered blocks, such as those of a key-value cache",
    commands={"kv": "collbench.plugins.kv.command:add_kv"},
    resumed=("kv",),
    kinds=("collbench.plugins.kv.kind:KV",),
    sections={"collbench.plugins.kv.page:section": "gate"},
    concerns=("collbench.plugins.kv.kind:concerns",),
    tables=("collbench.plugins.kv.api:KV_TABLE",),
    api={"Runs.kv": "collbench.plugins.kv.api:kv", "Runs.kv_rows": "collbench.plugins.kv.api:kv_rows"},
    needs=("libraries",),
)
