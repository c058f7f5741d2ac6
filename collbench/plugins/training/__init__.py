"""The exchanges of training steps, and frameworks that train."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="training",
    summary="the exchanges of training steps, and frameworks that train",
    commands={"workload": "collbench.plugins.training.command:add_workload"},
    resumed=("workload",),
    kinds=("collbench.plugins.training.kind:TRAINING",),
    sections={"collbench.plugins.training.page:section": "gate"},
    concerns=("collbench.plugins.training.kind:concerns",),
    hooks={"completed_words": "collbench.plugins.training.command:completed_words"},
    tables=("collbench.plugins.training.api:WORKLOADS_TABLE",),
    api={"Runs.workloads": "collbench.plugins.training.api:workloads"},
    needs=("libraries", "overlap", "traces"),
)
