"""Backends, stacks or rank counts as alternatives: which is the fastest at each size, or how an operation scales."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="alternatives",
    summary="backends, stacks or rank counts as alternatives: which is the fastest at each size",
    sections={
        "collbench.plugins.alternatives.page:section": "consistency",
        "collbench.plugins.alternatives.page:equal_section": "against",
    },
    hooks={
        "compare_options": "collbench.plugins.alternatives.options:add_options",
        "compare": "collbench.plugins.alternatives.command:compare",
        "alternatives": "collbench.plugins.alternatives.page:comparison",
        "answer_remark": "collbench.plugins.alternatives.text:fastest_backend",
        "record_kinds": "collbench.plugins.alternatives.text:record_kinds",
    },
)
