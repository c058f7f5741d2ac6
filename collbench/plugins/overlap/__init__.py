"""How much of an operation a computation hides."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="overlap",
    summary="how much of an operation a computation hides",
    sections={"collbench.plugins.overlap.page:section": "consistency"},
    concerns=("collbench.plugins.overlap.page:concerns",),
    modes={"overlap": "collbench.plugins.overlap.mode:OVERLAP"},
)
