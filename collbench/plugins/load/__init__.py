"""How much slower an operation is while other ranks use the same links."""

from collbench.plugin import Plugin, RecordFile

FILE = "load.jsonl"

PLUGIN = Plugin(
    name="load",
    summary="how much slower an operation is while other ranks use the same links",
    commands={"load": "collbench.plugins.load.command:LOAD_COMMAND"},
    records={"load": RecordFile(FILE, "row", has_cases=True)},
    kinds=("collbench.plugins.load.text:LOAD",),
    sections={"collbench.plugins.load.page:section": "gate"},
    tables=("collbench.plugins.load.api:LOADS_TABLE",),
    api={"Runs.loads": "collbench.plugins.load.api:loads", "Runs.load_rows": "collbench.plugins.load.api:load_rows"},
    hooks={"compared_load": "collbench.plugins.load.text:compared_sentences"},
    needs=("channels",),
)
