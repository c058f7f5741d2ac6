"""Many runs in a database, with metrics, dashboards and trackers."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="store",
    summary="many runs in a database, with metrics, dashboards and trackers",
    commands={"store": "collbench.plugins.store.command:add_store"},
)
