"""Pictures of a page: what matplotlib draws, as SVG in the colors of the page.

A picture is drawn with the colors of `PAGE`, and `html.svg` writes each one as the variable of drawing.css that `VARIABLES` names, so
that the picture follows light, dark and print. It needs no script, and equal input gives equal text. A pixel is a point (1/72 inch).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from msgspec.structs import replace

from collbench.report.charts import BarPanel, RatioPanel
from collbench.report.figures import Look, draw, settings, within
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Tooltip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The light colors of drawing.css, and their variables there.
VARIABLES = {
    "#0072b2": "series-0", "#b33a00": "series-1", "#4b0055": "series-2", "#767676": "series-3", "#6b4fbb": "series-4",
    "#7d3c1e": "series-5", "#0b7285": "series-6", "#556070": "soft", "#1a2330": "ink", "#dde2e8": "grid", "#ffffff": "paper",
    "#00694f": "limit", "#7a5200": "bound", "#a8005a": "bad",
}  # fmt: skip
_COLORS = {variable: color for color, variable in VARIABLES.items()}
PAGE = Look(
    series=tuple(color for color, variable in VARIABLES.items() if variable.startswith("series-")),
    quiet=_COLORS["soft"], expected=_COLORS["limit"], bound=_COLORS["bound"], wrong=_COLORS["bad"], paper=_COLORS["paper"],
    grid=_COLORS["grid"], ink=_COLORS["ink"], slower=_COLORS["bad"], faster=_COLORS["series-0"],
)  # fmt: skip
NO_PICTURE = "The picture is missing, because matplotlib is not installed: pip install 'collbench[report]'."
NO_PICTURE_FOR_PRINT = f"Printed, and without a script: {NO_PICTURE[0].lower()}{NO_PICTURE[1:]}"  # the script draws the chart
WIDE, NARROW = 900, 540  # pixels: the width of a picture that needs the whole page, and of others
_RATIO_LINE, _BAR_LINE, _AXIS_HEIGHT = 19, 24, 54


def _settings() -> Any:
    """Return matplotlib's settings of pictures of a page."""
    return {
        **settings(),
        "figure.dpi": 72.0, "figure.facecolor": "none", "font.size": 11.0, "text.color": PAGE.ink,
        "lines.linewidth": 1.8, "lines.markersize": 6.0, "legend.fontsize": 11.0,
        "axes.titlesize": 11.0, "axes.titlelocation": "left", "axes.titlecolor": PAGE.quiet, "axes.facecolor": "none",
        "axes.labelcolor": PAGE.quiet, "axes.edgecolor": PAGE.grid, "axes.spines.left": False, "axes.axisbelow": True,
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": PAGE.grid, "grid.linewidth": 0.7,
        "xtick.color": PAGE.quiet, "xtick.major.size": 0.0, "ytick.color": PAGE.quiet, "ytick.major.size": 0.0,
    }  # fmt: skip


class Picture:
    """A picture that is being drawn: matplotlib's figure, and the points of it that have a tooltip."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.width = width
        self.height = height
        self.figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        self._tips: list[tuple[Axes, float, float, str]] = []

    def axes(self, rows: int | None = None) -> Any:
        """Return the axes; with a number of rows an array of them, one below the other over the same x axis."""
        return self.figure.subplots() if rows is None else self.figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]

    def tip(self, axes: Axes, x: float, y: float, text: str) -> None:
        """Add a tooltip at a place in the units of the axes."""
        self._tips.append((axes, x, y, text))

    def legend(self, columns: int) -> None:
        """Draw a legend above the axes, of all that has a label."""
        self.figure.legend(loc="outside upper left", ncols=columns)

    def svg(self, title: str) -> str:
        """Return the picture as an SVG element; `title` is its accessible name."""
        from collbench.report.html.svg import SvgCanvas, SvgRenderer

        renderer = SvgRenderer(self.width, self.height, VARIABLES)
        SvgCanvas(self.figure, renderer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name with letters that the font lacks
            self.figure.draw(renderer)
        name = quoteattr(printable(title))
        return f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label={name}>{"".join(renderer.elements)}</svg>'

    def spots(self) -> list[Tooltip]:
        """Return the tooltips, in pixels. The picture has been drawn before."""
        spots: list[Tooltip] = []
        for axes, x, y, text in self._tips:
            across, up = axes.transData.transform((x, y))
            spots.append(Tooltip(round(float(across), 1), round(self.height - float(up), 1), text))
        return spots


def drawn(chart: Chart, draw_picture: Callable[[Picture], None], width: float = WIDE, height: float = 270) -> Chart:
    """Return the chart with the picture that `draw_picture` draws, in pixels. Without matplotlib it has none, and its caption says so."""
    wide = width > NARROW
    try:
        import matplotlib as mpl
    except ImportError:
        note = NO_PICTURE if chart.data is None else NO_PICTURE_FOR_PRINT
        return replace(chart, caption=f"{chart.caption} {note}", wide=wide)
    with mpl.rc_context(_settings()):
        picture = Picture(width, height)
        draw_picture(picture)
        svg = picture.svg(chart.title)
    return replace(chart, drawing=svg, spots=picture.spots(), wide=wide)


def ratio_chart(chart: Chart, panel: RatioPanel) -> Chart:
    """Return the chart with the picture of ratios, one line below the other, each with a tooltip."""

    def draw_ratios(picture: Picture) -> None:
        axes = picture.axes()
        draw(panel, axes, PAGE)
        for place, line in enumerate(panel.lines):
            picture.tip(axes, within(axes, line.marks[0].ratio), place, line.tooltip)

    return drawn(chart, draw_ratios, WIDE, _RATIO_LINE * len(panel.lines) + _AXIS_HEIGHT)


def bar_chart(chart: Chart, panel: BarPanel) -> Chart:
    """Return the chart with the picture of bars, one below the other, each with a tooltip."""

    def draw_bars(picture: Picture) -> None:
        axes = picture.axes()
        draw(panel, axes, PAGE)
        for place, bar in enumerate(panel.bars):
            picture.tip(axes, bar.value, place, short(f"{bar.name}: {bar.text}", 300))

    return drawn(chart, draw_bars, WIDE, _BAR_LINE * len(panel.bars) + _AXIS_HEIGHT)


def apart(wanted: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones (in any order) that are `least` apart, from `low` to `high`; closer if there are too many."""
    least = min(least, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    positions = [0.0] * len(wanted)
    before = low - least
    for index in order:
        before = max(wanted[index], before + least)
        positions[index] = before
    after = high + least
    for index in reversed(order):
        after = min(positions[index], after - least)
        positions[index] = after
    return positions
