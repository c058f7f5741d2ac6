"""Texts and grid lines that a drawing gets as SVG, past matplotlib: its layout of one text takes as long as a line of a series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary
from xml.sax.saxutils import escape, quoteattr

from collbench.report.flags import printable
from collbench.report.html.inks import GRID, INK, PAPER, SOFT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 11  # pixels of a letter's height, unless told
_below: WeakKeyDictionary[Figure, list[str]] = WeakKeyDictionary()
_above: WeakKeyDictionary[Figure, list[str]] = WeakKeyDictionary()


def write(figure: Figure, at: tuple[float, float], text: str, *, color: str = SOFT, size: float = SIZE, anchor: str = "start") -> None:
    """Text over the drawing; `at` is the start, middle or end of its base line in pixels from the figure's lower left."""
    x, y = at
    place = f'x="{_tenths(x)}" y="{_tenths(_height(figure) - y)}"'
    element = f"<text{text_attributes(color, size, anchor)} {place}>{escape(printable(text))}</text>"
    _above.setdefault(figure, []).append(element)


def rule(figure: Figure, lines: Iterable[tuple[float, float, float, float]]) -> None:
    """Lines of the grid under the drawing, from x, y to x, y in pixels from the figure's lower left."""
    top = _height(figure)
    drawn = "".join(f"M{_tenths(a)} {_tenths(top - b)}L{_tenths(c)} {_tenths(top - d)}" for a, b, c, d in lines)
    if drawn:
        _below.setdefault(figure, []).append(f'<path d="{drawn}" style="fill:none;stroke:{GRID};stroke-width:0.7"/>')


def text_attributes(color: str, size: float, anchor: str) -> str:
    """What differs from the drawing's usual text. Words in a colour of their own have a halo, so that lines do not hide them."""
    attributes = {
        "font-size": "" if size == SIZE else f"{size:g}",
        "text-anchor": "" if anchor == "start" else anchor,
        "fill": "" if color == SOFT else color,
        "stroke": "" if color in (INK, SOFT, GRID, PAPER) else PAPER,
    }
    halo = ' stroke-width="3" paint-order="stroke"' if attributes["stroke"] else ""
    return "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items() if value) + halo


def overlaid(figure: Figure, svg: str) -> str:
    """The drawing with what was written over it and ruled under it."""
    first, last = svg.index(">", svg.index("<svg")) + 1, svg.rindex("</svg>")
    below, above = ("".join(parts.get(figure, ())) for parts in (_below, _above))
    return f"{svg[:first]}{below}{svg[first:last]}{above}{svg[last:]}"


def _height(figure: Figure) -> float:
    return float(figure.get_size_inches()[1]) * 72


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
