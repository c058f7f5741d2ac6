"""A file that makes a library choose the algorithms that a sweep showed to be faster than its own choice."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="tune",
    summary="a tuner file for NCCL, RCCL, Open MPI or MPICH, from a measured sweep of algorithms",
    commands={"tune": "collbench.plugins.tune.command:add_tune"},
)
