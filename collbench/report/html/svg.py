"""A renderer of matplotlib that writes the SVG of a page: small elements whose colors are variables of the style sheet.

matplotlib's own SVG repeats fonts and styles in each element, has fixed colors, and identifiers that two pictures of a page would share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, Transform

from collbench.report.frame import printable

_ANCHORS = {"left": "", "center": ' text-anchor="middle"', "right": ' text-anchor="end"'}
_LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
_FURTHEST = 9999.0  # pixels
_BORDER = 1e-6  # a value between two figures is rounded up, although processors compute it with other last digits


class SvgCanvas(FigureCanvasBase):
    """A canvas whose renderer measures texts for the layout."""

    def __init__(self, figure: Figure, renderer: SvgRenderer) -> None:
        super().__init__(figure)
        self._renderer = renderer

    def get_renderer(self) -> SvgRenderer:
        """Return the renderer."""
        return self._renderer


class SvgRenderer(RendererBase):
    """Collects the elements of a picture of so many pixels; a pixel is a point (1/72 inch).

    variables  by color ("#0072b2") the variable of the style sheet that replaces it
    elements   what has been drawn, in order; an artist with a gid is a group with `data-mark`
    """

    def __init__(self, width: float, height: float, variables: Mapping[str, str]) -> None:
        super().__init__()
        self.width = width
        self.height = height
        self._variables = variables
        self.elements: list[str] = []
        self._are_written: list[bool] = []  # of the open groups, whether they are elements

    def open_group(self, s: str, gid: str | None = None) -> None:
        """Begin a group."""
        self._are_written.append(gid is not None)
        if gid is not None:
            self.elements.append(f"<g data-mark={quoteattr(gid)}>")

    def close_group(self, s: str) -> None:
        """End a group."""
        if self._are_written.pop():
            self.elements.append("</g>")

    def get_canvas_width_height(self) -> tuple[float, float]:
        """Return the size in pixels."""
        return self.width, self.height

    def flipy(self) -> bool:
        """Return that y grows downwards."""
        return True

    def points_to_pixels(self, points: Any) -> Any:
        """Return the points: a pixel is a point."""
        return points

    def draw_path(self, gc: Any, path: Path, transform: Transform, rgbFace: Any = None) -> None:  # noqa: N803
        """Add a path."""
        self._add(gc, rgbFace, _steps(path, transform + self._downwards(self.height)))

    def draw_markers(self, gc: Any, marker_path: Path, marker_trans: Transform, path: Path, trans: Transform, rgbFace: Any = None) -> None:  # noqa: N803, PLR0917
        """Add all markers of an artist as one path."""
        shape = marker_trans + self._downwards(0.0)
        is_circle = marker_path.codes is not None and bool(np.any(marker_path.codes == Path.CURVE4))  # the one marker with curves
        radius = marker_path.get_extents(shape).width / 2
        steps: list[str] = []
        for vertices, _ in path.iter_segments(trans, simplify=False):
            x = float(vertices[-2])
            y = self.height - float(vertices[-1])
            steps += [_circle(x, y, radius)] if is_circle else _steps(marker_path, shape + Affine2D().translate(x, y))
        self._add(gc, rgbFace, steps)

    def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None) -> None:  # noqa: PLR0917
        """Add a text. The browser aligns it, since its font has another width."""
        more = ""
        if angle:
            more = f' transform="rotate({_number(-angle)} {_number(x)} {_number(y)})"'
        elif mtext is not None:
            x = float(mtext.get_transform().transform(mtext.get_unitless_position())[0])
            more = _ANCHORS[mtext.get_ha()]
        variable = self._variables.get(to_hex(gc.get_rgb()), "ink")
        fill = "" if variable == "soft" else f' style="fill:var(--{variable})"'
        self.elements.append(f'<text x="{_number(x)}" y="{_number(y)}"{fill}{more}>{escape(printable(s))}</text>')

    @staticmethod
    def _downwards(height: float) -> Transform:
        """Return the transform from matplotlib's upward y axis."""
        return Affine2D().scale(1, -1).translate(0, height)

    def _add(self, graphics: Any, face: Any, steps: Iterator[str] | list[str]) -> None:
        """Add a path with the look of matplotlib's graphics context and this color inside; nothing if it is not visible."""
        has_line = graphics.get_linewidth() > 0 and graphics.get_rgb()[3] > 0
        is_filled = face is not None and (len(face) < 4 or face[3] > 0)
        text = "".join(steps)
        if not text or not (has_line or is_filled):
            return
        parts = [self._paint("fill", face) if is_filled else ' fill="none"']
        if has_line:
            parts += [self._paint("stroke", graphics.get_rgb()), f' stroke-width="{_number(graphics.get_linewidth())}"']
            _, dashes = graphics.get_dashes()
            if dashes is not None:
                parts.append(f' stroke-dasharray="{" ".join(_number(float(dash)) for dash in dashes)}"')
        alpha = graphics.get_alpha()
        if alpha is not None and alpha < 1:
            parts.append(f' opacity="{_number(alpha)}"')
        self.elements.append(f'<path{"".join(parts)} d="{text}"/>')

    def _paint(self, attribute: str, color: Any) -> str:
        code = to_hex(color)
        return f' {attribute}="var(--{self._variables[code]})"' if code in self._variables else f' {attribute}="{code}"'


def _steps(path: Path, transform: Transform) -> Iterator[str]:
    for vertices, code in path.iter_segments(transform):
        places = " ".join(_number(min(max(float(place), -_FURTHEST), _FURTHEST)) for place in vertices)
        yield "z" if code == Path.CLOSEPOLY else f"{_LETTERS[code]}{places}"


def _circle(x: float, y: float, radius: float) -> str:
    """Return the command of a circle: two arcs, a fifth of matplotlib's curves."""
    arc = f"a{_number(radius)} {_number(radius)} 0 1 0"
    return f"M{_number(x - radius)} {_number(y)}{arc} {_number(2 * radius)} 0{arc} {_number(-2 * radius)} 0z"


def _number(value: float) -> str:
    text = f"{value + _BORDER:.1f}"
    return text.removesuffix(".0")
