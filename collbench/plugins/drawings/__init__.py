"""Drawings of machines and of the links between hosts: `probe --svg`, and the section Machines of a page."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="drawings",
    summary="drawings of machines and of the links between hosts",
    sections={"collbench.plugins.drawings.section:section": "timeline"},
    hooks={
        "probe_views": "collbench.plugins.drawings.command:add_options",
        "probed": "collbench.plugins.drawings.command:draw",
        "machine_drawings": "collbench.plugins.drawings.section:drawings",
        "page_style": "collbench.plugins.drawings.svg:style",
    },
)
