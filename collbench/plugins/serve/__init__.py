"""The runs of a folder in a browser: `collbench report --serve`."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="serve",
    summary="the runs of a folder in a browser: `collbench report --serve`",
    hooks={"report_views": "collbench.plugins.serve.command:add_options", "report": "collbench.plugins.serve.command:serve_runs"},
)
