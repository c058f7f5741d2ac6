"""Pictures of a page: what matplotlib draws, as SVG in the colors of the page.

A picture is drawn with the colors of `PAGE`, and `_SvgRenderer` writes each one as the variable of drawing.css that `VARIABLES` names, so
that the picture follows light, dark and print. It needs no script, and equal input gives equal text. A pixel is a point (1/72 inch).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from collbench.report.charts import BarPanel, RatioPanel
from collbench.report.figures import Look, draw, settings, within
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Tooltip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
WIDE, NARROW = 900, 540  # pixels: the width of a picture that needs the whole page, and of others
_RATIO_LINE, _BAR_LINE, _AXIS_HEIGHT = 19, 42, 54


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

        self.width, self.height = width, height
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
        renderer = _renderer(self.width, self.height)
        _set_canvas(self.figure, renderer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name with letters that the font lacks
            self.figure.draw(renderer)
        name = quoteattr(printable(title))
        box = f"0 0 {_number(self.width)} {_number(self.height)}"
        return f'<svg viewBox="{box}" role="img" aria-label={name}>{"".join(renderer.elements)}</svg>'

    def spots(self) -> list[Tooltip]:
        """Return the tooltips, in pixels. The picture has been drawn before."""
        spots: list[Tooltip] = []
        for axes, x, y, text in self._tips:
            across, up = axes.transData.transform((x, y))
            spots.append(Tooltip(round(float(across), 1), round(self.height - float(up), 1), text))
        return spots


def drawn(chart: Chart, draw_picture: Callable[[Picture], None], width: float = NARROW, height: float = 270) -> Chart:
    """Return the chart with the picture that `draw_picture` draws, in pixels. Without matplotlib it has none, and its caption says so."""
    wide = width > NARROW
    try:
        import matplotlib as mpl
    except ImportError:
        return replace(chart, caption=f"{chart.caption} {NO_PICTURE}", wide=wide)
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

    return drawn(chart, draw_bars, NARROW, _BAR_LINE * len(panel.bars) + _AXIS_HEIGHT)


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


def _set_canvas(figure: Figure, renderer: Any) -> None:
    """Give the figure a canvas with this renderer, which measures texts for the layout."""
    from matplotlib.backend_bases import FigureCanvasBase

    class SvgCanvas(FigureCanvasBase):
        def get_renderer(self) -> Any:
            return renderer

    SvgCanvas(figure)


def _renderer(width: float, height: float) -> Any:
    """Return a renderer of matplotlib that collects SVG elements."""
    from matplotlib.backend_bases import RendererBase
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    class SvgRenderer(RendererBase):
        def __init__(self) -> None:
            super().__init__()
            self.elements: list[str] = []
            self._are_written: list[bool] = []  # of the open groups, whether they are elements

        def open_group(self, s: str, gid: str | None = None) -> None:
            self._are_written.append(gid is not None)
            if gid is not None:
                self.elements.append(f"<g data-mark={quoteattr(gid)}>")

        def close_group(self, s: str) -> None:
            if self._are_written.pop():
                self.elements.append("</g>")

        def get_canvas_width_height(self) -> tuple[float, float]:
            return width, height

        def flipy(self) -> bool:
            return True

        def points_to_pixels(self, points: Any) -> Any:
            return points

        def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:  # noqa: N803
            self._add(_looks(gc, rgbFace), _steps(path, transform + Affine2D().scale(1, -1).translate(0, height)))

        def draw_markers(self, gc: Any, marker_path: Any, marker_trans: Any, path: Any, trans: Any, rgbFace: Any = None) -> None:  # noqa: N803, PLR0917
            steps: list[str] = []
            shape = marker_trans + Affine2D().scale(1, -1)
            for vertices, _ in path.iter_segments(trans, simplify=False):
                steps += _steps(marker_path, shape + Affine2D().translate(vertices[-2], height - vertices[-1]))
            self._add(_looks(gc, rgbFace), steps)

        def draw_image(self, gc: Any, x: float, y: float, im: Any, transform: Any = None) -> None:
            raise NotImplementedError("a picture of a page has no images")

        def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None) -> None:  # noqa: PLR0917
            more = ""
            if mtext is not None and not angle:  # the browser's font is of another width: it aligns the text
                x = float(mtext.get_transform().transform(mtext.get_unitless_position())[0])
                anchor = {"left": "", "center": "middle", "right": "end"}[mtext.get_ha()]
                more = f' text-anchor="{anchor}"' if anchor else ""
            if angle:
                more = f' transform="rotate({_number(-angle)} {_number(x)} {_number(y)})"'
            bold = ' font-weight="600"' if prop.get_weight() == "bold" else ""
            variable = VARIABLES.get(_hex(gc.get_rgb()), "ink")
            fill = "" if variable == "soft" else f' style="fill:var(--{variable})"'
            self.elements.append(f'<text x="{_number(x)}" y="{_number(y)}"{fill}{more}{bold}>{escape(printable(s))}</text>')

        def _add(self, looks: str, steps: list[str]) -> None:
            if looks and steps:
                self.elements.append(f'<path{looks} d="{"".join(steps)}"/>')

    def _steps(path: Any, transform: Any) -> list[str]:
        letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
        steps: list[str] = []
        for vertices, code in path.iter_segments(transform):
            places = " ".join(_number(min(max(float(place), -9999.0), 9999.0)) for place in vertices)
            steps.append("z" if code == Path.CLOSEPOLY else f"{letters[code]}{places}")
        return steps

    return SvgRenderer()


def _looks(graphics: Any, face: Any) -> str:
    """Return the attributes of a path from matplotlib's graphics context and color of the face; "" if nothing of it is visible."""
    strokes = graphics.get_linewidth() > 0 and graphics.get_rgb()[3] > 0
    fills = face is not None and (len(face) < 4 or face[3] > 0)
    if not strokes and not fills:
        return ""
    parts = [_paint("fill", face) if fills else ' fill="none"']
    if strokes:
        parts.append(_paint("stroke", graphics.get_rgb()))
        parts.append(f' stroke-width="{_number(graphics.get_linewidth())}"')
        _, dashes = graphics.get_dashes()
        if dashes is not None:
            parts.append(f' stroke-dasharray="{" ".join(_number(float(dash)) for dash in dashes)}"')
    alpha = graphics.get_alpha()
    if alpha is not None and alpha < 1:
        parts.append(f' opacity="{_number(alpha, 2)}"')
    return "".join(parts)


def _paint(what: str, color: Any) -> str:
    code = _hex(color)
    return f' {what}="var(--{VARIABLES[code]})"' if code in VARIABLES else f' {what}="{code}"'


def _hex(color: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(color)


def _number(value: float, digits: int = 1) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
