"""Many runs in a database, with metrics, dashboards and trackers."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="store",
    summary="many runs in a database, with metrics, dashboards and trackers",
    commands={"store": "collbench.plugins.store.command:add_store"},
    hooks={
        "run_options": "collbench.plugins.store.command:add_run_options",
        "check_run_options": "collbench.plugins.store.command:check_run_options",
        "selected_runs": "collbench.plugins.store.command:selected_runs",
        "runs_for_report": "collbench.plugins.store.command:runs_for_report",
        "report_options": "collbench.plugins.store.trackers:add_options",
        "report_writer": "collbench.plugins.store.trackers:report_writer",
    },
    needs=("hunt", "serve"),
)
