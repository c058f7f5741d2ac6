"""The state of the machine on the time axis of the cells: canary, stolen time, telemetry of GPUs."""

from __future__ import annotations

from collbench.report.html.chart import Section
from collbench.report.html.material import Material


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    return None
