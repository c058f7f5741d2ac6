"""The output of other benchmarks and tools."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="importers",
    summary="the output of other benchmarks and tools",
    hooks={"read_files": "collbench.plugins.importers.files:read_files"},
    commands={"import": "collbench.plugins.importers.command:add_import"},
)
