"""Acceptance of a cluster, or of nodes that come back from repair: one page and one certificate from the evidence of other commands."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="certify",
    summary="acceptance of a cluster or of repaired nodes, with a certificate",
    commands={"certify": "collbench.plugins.certify.command:add_certify"},
    needs=("hunt",),
)
