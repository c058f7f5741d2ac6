"""Files that start a command on a cluster."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="deploy",
    summary="files that start a command on a cluster",
    commands={"emit": "collbench.plugins.deploy.command:add_emit"},
    hooks={"completed_words": "collbench.plugins.deploy.command:completed_words"},
    needs=("importers", "training"),
)
