"""Drawings by matplotlib, as SVG that takes its colours from the page: light, dark and print are the page's choice, not the drawing's.

    figure, axes = panel()
    axes.plot(xs, ys, **line(0))
    size_axis(axes, sizes); axes.set_ylim(bottom=0)
    return svg_of(figure, "allreduce-rate", "busbw over size"), spots(axes, xs, ys, texts)

Artists are drawn in placeholder colours (INK, SOFT, GRID, PAPER, LIMIT, BOUND, series_color), which become variables of the page's
style. Text stays text. A unit of the drawing is a pixel at its natural size.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import count
from math import isfinite, log2
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from collbench.report.html.chart import Spot
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 460, 290
INK, SOFT, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
LIMIT, BOUND, BAD = "#050505", "#060606", "#070707"  # the ring reference, the hard bound, what is wrong
_SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04")
_NAMES = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper", LIMIT: "limit", BOUND: "bound", BAD: "bad",
          **{color: f"series-{number}" for number, color in enumerate(_SERIES)}}  # fmt: skip
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MARKERS = "osD^vP*X<>hp"
_MARGINS = (54, 12, 26, 40)  # left, right, top, bottom, in pixels
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "font.size": 11, "font.family": "sans-serif", "axes.edgecolor": GRID, "axes.labelcolor": SOFT,
    "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT, "axes.facecolor": "none", "figure.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.6, "lines.markersize": 4.2, "legend.frameon": False,
    "legend.fontsize": 10, "grid.color": GRID, "grid.linewidth": 0.7, "axes.grid": True, "axes.axisbelow": True,
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
    return _SERIES[number % len(_SERIES)]


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Message sizes in bytes along x, drawn at log2 of the size (`place`): at most eight labels, at powers of two."""
    low, high = place(min(sizes)), place(max(sizes))
    step = max(1, round((high - low) / 7))
    ticks = list(range(round(low), round(high) + 1, step))
    axes.set_xticks(ticks, [format_size(2**each) for each in ticks])
    axes.set_xlim(low - 0.4, high + 0.4)
    axes.set_xlabel("message size")


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


def svg_of(figure: Figure, key: str, title: str) -> str:
    """The figure as an SVG element for the page, small and in the page's colours. `key` makes its identifiers unique in the page."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = key
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}, transparent=True)
    return _compact(written.getvalue(), key, title)


def _compact(svg: str, key: str, title: str) -> str:
    """Without the head, the style that would hold for the whole page, identifiers nobody uses, and what repeats itself."""
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', _opening(title), text, count=1)
    for pattern, instead in _SHORTER:
        text = pattern.sub(instead, text)
    text = re.sub(r"#0[0-9a-f]{5}", lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], text)
    return _own_names(text, key)


def _opening(title: str) -> Callable[[re.Match[str]], str]:
    name = escape(title, {'"': "&quot;"})
    return lambda found: f'<svg viewBox="{found[1]}" role="img" aria-label="{name}">'


def _one_style(found: re.Match[str]) -> str:
    """A group of equal marks carries their style, once."""
    style = f' style="{found[3]}"'
    return f"{found[1]}{style}>{found[2].replace(style, '')}</g>"


def _text_style(found: re.Match[str]) -> str:
    size, anchor, fill = (re.search(pattern, found[2]) for pattern in (r"([\d.]+)px", r"text-anchor: (\w+)", r"fill: (#[0-9a-f]{6})"))
    anchored = f' text-anchor="{anchor[1]}"' if anchor else ""
    return f'{found[1]} font-size="{size[1] if size else 11}"{anchored} fill="{fill[1] if fill else INK}"'


_SHORTER: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"\s*\n\s*"), " "),
    (re.compile(r'(<text[^>]*?) style="([^"]*)"'), _text_style),
    (re.compile(r' transform="rotate\(-?0 [^"]*"'), ""),
    (re.compile(r"-?\d+\.\d\d\d+"), lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip(".")),
    (re.compile(r'(<path id="[^>]*?) style="[^"]*"'), r"\1"),
    (re.compile(r'<path d="[^"]*" style="fill: none"/>'), ""),
    (re.compile(r"xlink:href"), "href"),
    (re.compile(r">\s+<"), "><"),
    (re.compile(r"(?<=[a-z]): (?=[^\"]*\"[/>])"), ":"),
    (re.compile(r'(<g[^>]*)>((?:<use [^>]*? style="([^"]*)"/>)(?:<use [^>]*? style="\3"/>)*)</g>'), _one_style),
    (re.compile(r"<defs></defs>"), ""),
    (re.compile(r"<g></g>"), ""),
    (re.compile(r' d="[^"]*"'), lambda found: re.sub(r" (?=[zM\"])|(?<=[MLz]) ", "", found[0])),
)


def _own_names(text: str, key: str) -> str:
    """Identifiers that are referred to, numbered within this drawing; all others go."""
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', text))
    numbers = count()
    names = {name: f"{key}-{next(numbers)}" for name in sorted(used)}
    text = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{names[found[1]]}"' if found[1] in names else "", text)
    return re.sub(r"((?:href=\"#|url\(#))([\w.-]+)", lambda found: found[1] + names.get(found[2], found[2]), text)
