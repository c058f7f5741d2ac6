"""Time over size, small sizes first, with the α–β fit and the sizes at which the regime switches."""

from __future__ import annotations

from collbench.report.html.chart import Section
from collbench.report.html.material import Material


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    return None
