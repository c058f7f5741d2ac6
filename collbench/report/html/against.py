"""Several runs: the first one as the baseline, the others against it, with intervals."""

from __future__ import annotations

from collbench.report.html.chart import Section
from collbench.report.html.material import Material


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    return None
