"""How much slower an operation is while other ranks use the same links."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="load",
    summary="how much slower an operation is while other ranks use the same links",
    kinds=("collbench.plugins.load.kind:LOAD",),
    sections={"collbench.plugins.load.page:section": "gate"},
    concerns=("collbench.plugins.load.kind:concerns",),
)
