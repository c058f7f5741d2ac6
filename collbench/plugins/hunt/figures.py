"""The kind of figure `pairs`: the bandwidth and the latency of each pair of a run as a matrix, with the slow pairs marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from collbench.errors import UsageError
from collbench.plugins.hunt.pairs_page import quantities
from collbench.report.charts import MatrixPanel, Panel
from collbench.report.headlines import short

if TYPE_CHECKING:
    from collbench.plugins.hunt.pairs import PairFinding
    from collbench.report.material import Material


def figure_kinds() -> dict[str, Callable[[Material], list[Panel]]]:
    """Return the kinds of figures of this plug-in by name."""
    return {"pairs": pairs_panels}


def pairs_panels(material: Material) -> list[Panel]:
    """Return a matrix for each quantity of each run of pairs. Raises UsageError without such a run."""
    runs = material.of_kind("pairs")
    if not runs:
        raise UsageError("--kind pairs needs a run of `collbench pairs`")
    panels: list[Panel] = []
    for run, stored in runs:
        effects = stored.effects
        findings = effects.findings()
        names = [short(place, 24) for place in effects.matrix.places]
        suffix = f" of {short(run.path.resolve().name, 40)}" if len(runs) > 1 else ""
        for quantity in quantities(effects.matrix):
            if not np.isfinite(quantity.values).any():
                continue
            values = quantity.in_unit(quantity.values).tolist()
            marked = [pair for finding in findings if finding.quantity == quantity.name for pair in _cells(finding)]
            title = f"{quantity.name}, {quantity.size} messages{suffix}"
            panels.append(MatrixPanel(title, names, values, quantity.unit, marked, low_is_good=quantity.symmetric))
    return panels


def _cells(finding: PairFinding) -> list[tuple[int, int]]:
    """Return the cells of a slow pair: in both directions, where both are slow; none of a slow place."""
    if finding.kind != "pair":
        return []
    sender, receiver = finding.places
    return [(sender, receiver), (receiver, sender)] if finding.both_ways else [(sender, receiver)]
