"""Rates of memory, links, storage and wire tools."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="channels",
    summary="rates of memory, links, storage and wire tools",
    commands={"kernels": "collbench.plugins.channels.kernels_command:add_kernels"},
    hooks={"probe_options": "collbench.plugins.channels.probe:add_options", "probe": "collbench.plugins.channels.probe:probe"},
)
