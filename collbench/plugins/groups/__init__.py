"""Faults between groups of hosts: leaf switches, blocks, NVLink domains, or groups that the pairs of a hunt show."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="groups",
    summary="slow paths between groups of hosts, such as leaf switches",
    hooks={"hunt_groups": "collbench.plugins.groups.stage:group_stage"},
    needs=("hunt",),
)
