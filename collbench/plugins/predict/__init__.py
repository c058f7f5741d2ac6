"""Times at node counts that were not measured."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="predict",
    summary="times at node counts that were not measured",
    commands={"predict": "collbench.plugins.predict.command:add_predict"},
    api={"predict": "collbench.plugins.predict.api:predict"},
    hooks={"gate_options": "collbench.plugins.predict.gate:add_option", "gate": "collbench.plugins.predict.gate:hold"},
)
