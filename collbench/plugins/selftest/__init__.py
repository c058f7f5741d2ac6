"""How often the gate alarms without a slowdown, and how often it detects one."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="selftest",
    summary="how often the gate alarms and detects, on simulated clusters",
    hooks={"gate_options": "collbench.plugins.selftest.gate:add_options", "gate": "collbench.plugins.selftest.gate:run_self_test"},
)
