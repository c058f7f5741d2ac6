"""The completion of command lines in shells."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="completion",
    summary="the completion of command lines in bash, zsh and fish",
    commands={"completion": "collbench.plugins.completion.command:add_completion"},
)
