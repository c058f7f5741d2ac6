"""Figures for papers, slides and mails: `collbench plot` and `Runs.plot`."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="plot",
    summary="figures for papers, slides and mails, as PDF, SVG or PNG",
    commands={"plot": "collbench.plugins.plot.command:add_plot"},
    api={"Runs.plot": "collbench.plugins.plot.api:plot"},
)
