"""Drawings by matplotlib, as SVG that takes its colours from the page: light, dark and print are the page's choice, not the drawing's.

    figure, axes = panel()
    axes.plot(xs, ys, **line(0))
    size_axis(axes, sizes); axes.set_ylim(bottom=0)
    return svg_of(figure, "allreduce-rate", "busbw over size"), spots(axes, xs, ys, texts)

Artists are drawn in placeholder colours (INK, SOFT, GRID, PAPER, LIMIT, BOUND, series_color), which become variables of the page's
style. Text stays text. A unit of the drawing is a pixel at its natural size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isfinite, log2, log10
from typing import TYPE_CHECKING, Any

from collbench.report.html.chart import Spot
from collbench.report.html.inks import BAD, BOUND, GRID, INK, LIMIT, PAPER, SERIES, SOFT
from collbench.report.html.svg import svg_of
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BAD", "BOUND", "GRID", "HEIGHT", "INK", "LIMIT", "PAPER", "SOFT", "WIDTH", "fixed_ticks", "line", "log_axis", "panel", "place",
    "series_color", "size_axis", "spots", "svg_of",
]  # fmt: skip

WIDTH, HEIGHT = 460, 290
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "osD^vP*X<>hp"
_MARGINS = (54, 12, 26, 40)  # left, right, top, bottom, in pixels
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "font.size": 11, "font.family": "sans-serif", "axes.edgecolor": GRID, "axes.labelcolor": SOFT,
    "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT, "axes.facecolor": "none", "figure.facecolor": "none",
    "figure.edgecolor": "none", "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "lines.linewidth": 1.6, "lines.markersize": 4.2, "legend.frameon": False, "legend.fontsize": 10, "grid.color": GRID,
    "grid.linewidth": 0.7, "axes.axisbelow": True, "text.parse_math": False, "figure.dpi": 72,
}  # fmt: skip


def panel(width: int = WIDTH, height: int = HEIGHT, margins: tuple[int, int, int, int] = _MARGINS) -> tuple[Figure, Axes]:
    """A figure of so many pixels with one pair of axes; margins are left, right, top, bottom."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(_SETTINGS)
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    left, right, top, bottom = margins
    return figure, figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))


def line(number: int) -> dict[str, Any]:
    """How the series of this number is drawn: colour, dash and marker together tell 4 × 4 × 12 apart, and never the colour alone."""
    color = series_color(number)
    return {
        "color": color, "linestyle": _DASHES[(number + number // 4) % 4], "marker": _MARKERS[number % len(_MARKERS)],
        "markerfacecolor": color, "markeredgecolor": PAPER, "markeredgewidth": 0.6,
    }  # fmt: skip


def series_color(number: int) -> str:
    """The placeholder of the series' colour; after four they come again."""
    return SERIES[number % len(SERIES)]


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Message sizes in bytes along x, drawn at log2 of the size (`place`): at most eight labels, at powers of two."""
    low, high = place(min(sizes)), place(max(sizes))
    step = max(1, ceil((high - low) / 7))
    ticks = list(range(round(low), round(high) + 1, step))
    fixed_ticks(axes.xaxis, ticks, [format_size(2**each) for each in ticks])
    axes.set_xlim(low - 0.4, high + 0.4)
    axes.set_xlabel("message size")


def log_axis(axes: Axes, low: float, high: float) -> None:
    """A logarithmic y from `low` to `high`, both above zero, with plain labels: powers of ten, and 2 and 5 where there is room."""
    axes.set_yscale("log")
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1, 2, 5) if log10(high / low) < 3 else (1,)
    every = 1 + len(decades) // 9
    ticks = [step * 10.0**decade for decade in decades if decade % every == 0 for step in steps]
    if sum(low <= tick <= high for tick in ticks) < 2:
        ticks = _even(low, high)
    fixed_ticks(axes.yaxis, ticks, [f"{tick:.10g}" if 1e-4 < tick < 1e7 else f"{tick:.0e}" for tick in ticks])
    axes.set_ylim(low, high)


def _even(low: float, high: float) -> list[float]:
    """For a range too narrow to hold two of the usual steps."""
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]


def place(size_bytes: int) -> float:
    """Where a size stands on `size_axis`."""
    return log2(max(1, size_bytes))


def spots(axes: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str]) -> list[Spot]:
    """The points in the drawing's units; to be called when the axes have their final limits. What is no number has no spot."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = figure.get_size_inches()[1] * 72
    known = [(x, y, text) for x, y, text in zip(xs, ys, texts, strict=True) if isfinite(x) and isfinite(y)]
    if not known:
        return []
    places = axes.transData.transform([(x, y) for x, y, _ in known])
    return [Spot(round(float(x), 1), round(float(height - y), 1), text) for (x, y), (_, _, text) in zip(places, known, strict=True)]


def fixed_ticks(axis: Any, ticks: Sequence[float], texts: Sequence[str]) -> None:
    """Ticks at these places and no others; `set_ticks` would build each at once."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(texts))
    axis.set_minor_locator(NullLocator())
