"""A matrix of pairs as an image, with the places and pairs that stand out by name."""

from __future__ import annotations

from collbench.report.html.chart import Section
from collbench.report.html.material import Material


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    return None
