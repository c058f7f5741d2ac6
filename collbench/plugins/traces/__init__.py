"""Traces of jobs: recording, replay, and autopsy of hung ones."""

from collbench.plugin import Plugin

PLUGIN = Plugin(name="traces", summary="traces of jobs: recording, replay, and autopsy of hung ones")
