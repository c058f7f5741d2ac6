"""Traces of jobs: recording, replay, and autopsy of hung ones."""

from collbench.plugin import Plugin, RecordFile

PLUGIN = Plugin(
    name="traces",
    summary="traces of jobs: recording, replay, and autopsy of hung ones",
    commands={
        "replay": "collbench.plugins.traces.replay_command:REPLAY_COMMAND",
        "autopsy": "collbench.plugins.traces.autopsy_command:add_autopsy",
        "trace": "collbench.plugins.traces.trace_command:add_trace",
    },
    records={"replay": RecordFile("workload.jsonl", "row", has_cases=True, named_by="regime")},
    api={"autopsy": "collbench.plugins.traces.api:autopsy", "replay": "collbench.plugins.traces.api:replay"},
    needs=("training",),
)
