"""`Runs.plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.api.runs import Runs
from collbench.errors import UsageError
from collbench.plugins.plot.figures import STYLES, figure_of, panels_of
from collbench.report.figures import draw
from collbench.report.frame import printable
from collbench.report.material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(runs: Runs, kind: str = "bandwidth", ax: Axes | None = None, *, operation: str | Sequence[str] = (), style: str = "paper") -> Any:
    """Draw the runs with matplotlib, as `collbench plot` does, and return what was drawn.

    kind       bandwidth, time or percent (of the expected bandwidth) over message size; scaling over ranks or nodes; history over dates;
               compare: each case against the first run; pairs: the matrix of a run of pairs; or a kind of another plug-in
    ax         matplotlib's axes to draw on, which are returned; the runs must have one panel then (select it with `operation`). None: a new
               figure with all panels, which is returned (`figure.savefig("fig.pdf")` writes it)
    operation  only these operations: a name, or several
    style      "paper" or "slide", of a new figure

    Bandwidths are in GB/s, times in seconds. Raises UsageError for an unknown kind or style, for runs without such values, and without
    matplotlib (extra: report).
    """
    if style not in STYLES:
        raise UsageError(f"style '{printable(style)}' is unknown: choose from {', '.join(STYLES)}")
    panels = panels_of(Material(list(runs), Path()), kind, [operation] if isinstance(operation, str) else operation)
    if ax is None:
        return figure_of(panels, style)
    if len(panels) > 1:
        raise UsageError(
            f"one panel fits on `ax`, and these runs have {len(panels)}: select one with operation, such as {panels[0].title!r}"
        )
    draw(panels[0], ax)
    return ax
