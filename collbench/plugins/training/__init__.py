"""The exchanges of training steps, and frameworks that train."""

from collbench.plugin import Plugin, RecordFile

FILE = "workload.jsonl"

PLUGIN = Plugin(
    name="training",
    summary="the exchanges of training steps, and frameworks that train",
    commands={"workload": "collbench.plugins.training.command:WORKLOAD_COMMAND"},
    records={"workload": RecordFile(FILE, "row", has_cases=True, named_by="regime")},
    kinds=("collbench.plugins.training.text:TRAINING",),
    sections={"collbench.plugins.training.page:section": "gate"},
    hooks={"completed_words": "collbench.plugins.training.command:completed_words"},
    tables=("collbench.plugins.training.api:WORKLOADS_TABLE",),
    api={"Runs.workloads": "collbench.plugins.training.api:workloads"},
    needs=("libraries", "overlap", "traces"),
)
