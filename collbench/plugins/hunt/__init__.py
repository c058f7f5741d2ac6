"""Pairs of ranks or nodes, and the slow node, NIC or link among them."""

from collbench.plugin import Plugin, RecordFile

HUNT_FILE, PAIRS_FILE, TOOLS_FILE = "hunt.jsonl", "pairs.jsonl", "tools.jsonl"

PLUGIN = Plugin(
    name="hunt",
    summary="pairs of ranks or nodes, and the slow node, NIC or link among them",
    commands={"pairs": "collbench.plugins.hunt.command:PAIRS_COMMAND", "hunt": "collbench.plugins.hunt.command:HUNT_COMMAND"},
    records={
        "pairs": RecordFile(PAIRS_FILE, "round", named_by="round", more_files=(TOOLS_FILE,)),
        "hunt": RecordFile(HUNT_FILE, "round", named_by="round"),
    },
    kinds=("collbench.plugins.hunt.kind:HUNT", "collbench.plugins.hunt.kind:PAIRS"),
    sections={"collbench.plugins.hunt.page:section": "gate", "collbench.plugins.hunt.pairs_page:section": "against"},
    tables=("collbench.plugins.hunt.api:PAIRS_TABLE", "collbench.plugins.hunt.api:HUNTS_TABLE"),
    api={"Runs.pairs": "collbench.plugins.hunt.api:pairs", "Runs.hunts": "collbench.plugins.hunt.api:hunts"},
    hooks={"figure_kinds": "collbench.plugins.hunt.figures:figure_kinds"},
    needs=("channels",),
)
