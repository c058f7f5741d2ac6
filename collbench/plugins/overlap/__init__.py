"""How much of an operation a computation hides."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="overlap",
    summary="how much of an operation a computation hides",
    sections={"collbench.plugins.overlap.page:section": "consistency"},
    concerns=("collbench.plugins.overlap.page:concerns",),
    hooks={
        "prepare_overlap": "collbench.plugins.overlap.measurement:prepare_overlap",
        "overlap_text": "collbench.plugins.overlap.text:text_of",
        "overlap_lines": "collbench.plugins.overlap.text:overlap_lines",
        "overlap_values": "collbench.plugins.overlap.records:flat_values",
        "compared_overlap": "collbench.plugins.overlap.text:exposed_sentences",
    },
)
