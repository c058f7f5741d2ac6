"""Files that start a command on a cluster."""

from collbench.plugin import Plugin

PLUGIN = Plugin(name="deploy", summary="files that start a command on a cluster")
