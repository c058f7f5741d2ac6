"""How the samples of each cell are spread, so that two modes are seen."""

from __future__ import annotations

from collbench.report.html.chart import Section
from collbench.report.html.material import Material


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    return None
