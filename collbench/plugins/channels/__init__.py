"""Rates of memory, links, storage and wire tools."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="channels",
    summary="rates of memory, links, storage and wire tools",
    commands={"kernels": "collbench.plugins.channels.kernels_command:add_kernels"},
)
