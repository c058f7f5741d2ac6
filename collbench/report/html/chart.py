"""Sections, tables and charts of a page, and drawings by matplotlib as SVG.

All texts are plain: the template escapes them. Only `Chart.drawing` is markup, and made by this package.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, pairwise
from math import ceil, floor, hypot, isfinite, log2, log10
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary
from xml.sax.saxutils import escape, quoteattr

from collbench.report.cases import NOTHING, value_of
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.results.row import SERIES, Row
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of texts. `right` has the numbers of right-aligned columns, `marks` a style by row number: "na", "doubtful", "wrong"."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    marks: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tooltip:
    """A point of a drawing, in units of its viewBox, and the exact values there: shown under the pointer, and by the arrow keys."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart.

    key      its identifier in the page: letters, digits and hyphens
    title    what is drawn: "allreduce: bus bandwidth"
    caption  what the drawing shows, in a sentence, which screen readers use instead of the drawing
    method   how the numbers were measured or computed, one paragraph
    drawing  SVG (see `svg_of`), possibly followed by elements for the script of its kind (matrix.js)
    table    the values
    spots    points with tooltips
    data     what the page's script needs beyond tooltips, JSON-ready (the values of a large matrix); else None
    wide     whether it needs the whole width of the page
    """

    key: str
    title: str
    caption: str
    method: str
    drawing: str
    table: Table
    spots: Sequence[Tooltip] = ()
    data: dict[str, object] | None = None
    wide: bool = False


@dataclass(frozen=True)
class FileLink:
    """A link to a file beside the page; `address` is relative and percent-encoded."""

    text: str
    address: str


@dataclass(frozen=True)
class Section:
    """A section of the page: texts, tables with captions, charts, lists of links with captions. `key` is its anchor."""

    key: str
    title: str
    texts: Sequence[str] = ()
    tables: Sequence[tuple[str, Table]] = ()
    charts: Sequence[Chart] = ()
    links: Sequence[tuple[str, Sequence[FileLink]]] = ()


# The colors of drawings: placeholders, which become CSS variables of the page.

INK, SOFT, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
LIMIT, BOUND, BAD = "#050505", "#060606", "#070707"  # the ring reference, the hard limit, errors
INKS_SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04")
NAMES = {INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper", LIMIT: "limit", BOUND: "bound", BAD: "bad",
         **{color: f"series-{number}" for number, color in enumerate(INKS_SERIES)}}  # fmt: skip


# Texts and grid lines added to a drawing as SVG. In matplotlib the layout of one text takes as long as a line of a series.

SIZE = 11  # default font size in pixels
_below: WeakKeyDictionary[Figure, list[str]] = WeakKeyDictionary()
_above: WeakKeyDictionary[Figure, list[str]] = WeakKeyDictionary()


def write(figure: Figure, at: tuple[float, float], text: str, *, color: str = SOFT, size: float = SIZE, anchor: str = "start") -> None:
    """Write a text over the drawing; `at` is the start, middle or end of its base line in pixels from the lower left of the figure."""
    x, y = at
    place = f'x="{_tenths(x)}" y="{_tenths(_height(figure) - y)}"'
    element = f"<text{text_attributes(color, size, anchor)} {place}>{escape(printable(text))}</text>"
    _above.setdefault(figure, []).append(element)


def rule(figure: Figure, lines: Iterable[tuple[float, float, float, float]]) -> None:
    """Draw grid lines under the drawing, each from x, y to x, y in pixels from the lower left of the figure."""
    top = _height(figure)
    drawn = "".join(f"M{_tenths(a)} {_tenths(top - b)}L{_tenths(c)} {_tenths(top - d)}" for a, b, c, d in lines)
    if drawn:
        _below.setdefault(figure, []).append(f'<path d="{drawn}" style="fill:none;stroke:{GRID};stroke-width:0.7"/>')


def text_attributes(color: str, size: float, anchor: str) -> str:
    """Return the attributes that differ from the default text. Colored text has a halo, so that lines do not hide it."""
    attributes = {
        "font-size": "" if size == SIZE else f"{size:g}",
        "text-anchor": "" if anchor == "start" else anchor,
        "fill": "" if color == SOFT else color,
        "stroke": "" if color in (INK, SOFT, GRID, PAPER) else PAPER,
    }
    halo = ' stroke-width="3" paint-order="stroke"' if attributes["stroke"] else ""
    return "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items() if value) + halo


def overlaid(figure: Figure, svg: str) -> str:
    """Return the drawing with the texts written over it and the grid lines under it."""
    first, last = svg.index(">", svg.index("<svg")) + 1, svg.rindex("</svg>")
    below, above = ("".join(parts.get(figure, ())) for parts in (_below, _above))
    return f"{svg[:first]}{below}{svg[first:last]}{above}{svg[last:]}"


def _height(figure: Figure) -> float:
    return float(figure.get_size_inches()[1]) * 72


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# Grid, tick labels and titles of axes, as one path and a few texts.
#
# The axes of matplotlib take 70 % of a drawing's time and a third of its bytes: five artists per tick. Its locators and formatters are
# still used. Axes with special settings (rotated labels, a second side) stay as they are.

_PLAIN = {"bottom": True, "top": False, "left": True, "right": False, "gridOn": None, "length": 0, "labelsize": None, "size": 0,
          "labelbottom": True, "labeltop": False, "labelleft": True, "labelright": False}  # fmt: skip


def draw_frame(axes: Axes) -> None:
    """Replace ticks, labels and titles of the axes by SVG, on each side with default settings."""
    if not axes.axison:
        return
    for axis, across, title in ((axes.xaxis, False, axes.get_xlabel()), (axes.yaxis, True, axes.get_ylabel())):
        if axis.get_visible() and _is_plain(axis):
            _side(axes, axis, across, title)


def _is_plain(axis: Axis) -> bool:
    """Return whether its tick settings are among those that `_side` can draw."""
    settings = axis.get_tick_params()
    return all(name in _PLAIN and (_PLAIN[name] is None or _PLAIN[name] == value) for name, value in settings.items())


def _side(axes: Axes, axis: Axis, across: bool, title: str) -> None:
    """Draw one side: grid lines, labels and title, in pixels of the figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    ticks, box = _ticks(axis), axes.bbox
    axis.set_visible(False)
    size = axis.get_tick_params().get("labelsize", SIZE)
    places = axes.transData.transform(
        [(axes.get_xlim()[0], tick) if across else (tick, axes.get_ylim()[0]) for tick, _ in ticks] or [(1, 1)]
    )
    for (x, y), (_, text) in zip(places, ticks, strict=False):
        at = (box.x0 - 7, float(y) - 0.35 * size) if across else (float(x), box.y0 - 7 - 0.75 * size)
        write(figure, at, text, size=size, anchor="end" if across else "middle")
    rule(figure, [(box.x0, y, box.x1, y) if across else (x, box.y0, x, box.y1) for x, y in places[: len(ticks)].tolist()])
    if title:  # the title of y is horizontal, above the axes
        at, anchor = ((max(4.0, box.x0 - 50), box.y1 + 10), "start") if across else (((box.x0 + box.x1) / 2, box.y0 - 30), "middle")
        write(figure, at, title, anchor=anchor)


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return the ticks within the view with their labels."""
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    low, high = sorted(axis.get_view_interval())
    spare = 1e-9 * (high - low)
    places = [float(tick) for tick in axis.get_majorticklocs() if isfinite(tick)]
    form: Any = axis.get_major_formatter()
    own = not isinstance(form, ScalarFormatter | LogFormatter)  # these may write a separate exponent, or mathematics
    texts = form.format_ticks(places) if own else [f"{tick:.6g}" for tick in places]
    return [(tick, text) for tick, text in zip(places, texts, strict=True) if low - spare <= tick <= high + spare]


# A figure of matplotlib as an SVG element: small, in the colors of the page, with unique identifiers.

_WITHOUT_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}  # so that equal figures give equal text


def svg_of(figure: Figure, key: str, title: str) -> str:
    """Return the figure as an SVG element. `key` makes its identifiers unique in the page, `title` is its accessible name."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    mpl.rcParams["svg.hashsalt"] = key
    for axes in figure.axes:
        draw_frame(axes)
    written = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text stays text, in the fonts of the browser
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(written, metadata=_WITHOUT_DATE)
    return _in_page_colours(overlaid(figure, _compact(written.getvalue(), key, title)))


def _in_page_colours(text: str) -> str:
    return re.sub(r"#0[0-9a-f]{5}", lambda found: f"var(--{NAMES[found[0]]})" if found[0] in NAMES else found[0], text)


def _compact(svg: str, key: str, title: str) -> str:
    """Return the SVG without its head, its style (which would apply to the whole page), unused identifiers and repetitions."""
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', _opening(title), text, count=1)
    for pattern, instead in _SHORTER:
        text = pattern.sub(instead, text)
    text = _marks(_own_names(text, key), key)
    for pattern, instead in _WITHOUT_NAMES:
        text = pattern.sub(instead, text)
    return text


def _opening(title: str) -> Callable[[re.Match[str]], str]:
    name = escape(title, {'"': "&quot;"})
    return lambda found: f'<svg viewBox="{found[1]}" role="img" aria-label="{name}" font-size="{SIZE}" fill="{SOFT}">'


def _marks(text: str, key: str) -> str:
    """Return the SVG with equal markers as one path with `marker` attributes, instead of an element each: a third of the bytes."""
    shapes = dict(re.findall(r'<path id="([^"]*)" d="([^"]*)"/>', text))
    names: dict[tuple[str, str], str] = {}

    def path(found: re.Match[str]) -> str:
        """Return consecutive equal markers as one path; the first of a kind includes its definition."""
        clip, uses, shape, style = found.groups()
        known = (shape, style) in names
        name = names.setdefault((shape, style), f"{key}-m{len(names)}")
        drawn = f'<path d="{shapes[shape]}" style="{style}"/>'
        mark = "" if known else f'<marker id="{name}" overflow="visible" markerUnits="userSpaceOnUse">{drawn}</marker>'
        places = re.findall(r' x="([^"]*)" y="([^"]*)"', uses)
        ends = "".join(f' marker-{end}="url(#{name})"' for end in (("start", "mid", "end") if len(places) > 1 else ("start",)))
        corners = "L".join(f"{x} {y}" for x, y in places)
        return f'{mark}<path d="M{corners}{"" if len(places) > 1 else "h0"}"{clip} fill="none"{ends}/>'

    text = _USES.sub(path, text)
    unused = set(shapes) - set(re.findall(r'href="#([^"]*)"', text))
    return re.sub(r'<path id="([^"]*)" d="[^"]*"/>', lambda found: "" if found[1] in unused else found[0], text)


def _text_style(found: re.Match[str]) -> str:
    """Return the style as attributes, without the defaults of the drawing."""
    size, anchor, fill = (re.search(pattern, found[2]) for pattern in (r"([\d.]+)px", r"text-anchor: (\w+)", r"fill: (#[0-9a-f]{6})"))
    color = fill[1] if fill else INK
    return found[1] + text_attributes(color, float(size[1]) if size else SIZE, anchor[1] if anchor else "start")


def _short_path(found: re.Match[str]) -> str:
    """Return shorter path data: tenths of a pixel, no unneeded blanks."""
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), found[0])
    return re.sub(r" ?([MLzQC]) ?", r"\1", text).replace('d=" ', 'd="').replace(' "', '"')


def _short_numbers(found: re.Match[str]) -> str:
    """Return coordinates in tenths of a pixel; numbers in texts stay."""
    return re.sub(r'(?<=[ ("-])\d+\.\d\d+', lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), found[0])


_SHORTER: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"\s*\n\s*"), " "),
    (re.compile(r'(<text[^>]*?) style="([^"]*)"'), _text_style),
    (re.compile(r' transform="rotate\(-?0 [^"]*"'), ""),
    (re.compile(r' d="[^"]*"'), _short_path),
    (re.compile(r' (?:x|y|width|height|transform|style|points)="[^"]*"'), _short_numbers),
    (re.compile(r'(<path id="[^>]*?) style="[^"]*"'), r"\1"),
    (re.compile(r'<path d="[^"]*" style="fill: none"/>'), ""),
    (re.compile(r"; stroke-linecap: (square|butt)|; stroke-linejoin: miter|; stroke-dashoffset: 0"), ""),
    (re.compile(r"xlink:href"), "href"),
    (re.compile(r">\s+<"), "><"),
    (re.compile(r"(?<=[a-z]): (?=[^\"]*\"[/>])"), ":"),
    (re.compile(r"; (?=[a-z-]+:[^\"<>]*\"[/>])"), ";"),
)
_USES = re.compile(
    r'<g((?: clip-path="[^"]*")?)>((?:<use href="#([^"]*)"[^>]*? style="([^"]*)"/>)(?:<use href="#\3"[^>]*? style="\4"/>)*)</g>'
)
_WITHOUT_NAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"<defs></defs>"), ""),
    (re.compile(r"<g>((?:<(?:path|text)[^>]*?(?:/>|>[^<]*</text>)|<defs>.*?</defs>)*)</g>"), r"\1"),
)


def _own_names(text: str, key: str) -> str:
    """Return the SVG with its used identifiers numbered and the others removed."""
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', text))
    numbers = count()
    names = {name: f"{key}-{next(numbers)}" for name in sorted(used)}
    text = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{names[found[1]]}"' if found[1] in names else "", text)
    return re.sub(r"((?:href=\"#|url\(#))([\w.-]+)", lambda found: found[1] + names.get(found[2], found[2]), text)


# Drawings by matplotlib, as SVG with the colors of the page (light, dark or print).
#
#     figure, axes = panel()
#     axes.plot(xs, ys, **line(0))
#     size_axis(axes, sizes); axes.set_ylim(bottom=0)
#     return svg_of(figure, "allreduce-rate", "busbw over size"), spots(axes, xs, ys, texts)
#
# Artists have placeholder colors (INK, SOFT, GRID, PAPER, LIMIT, BOUND, series_color), which become CSS variables. Text stays text.
# A unit of the drawing is a pixel at its natural size.

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
    """Return a figure of this size in pixels, with one pair of axes; margins are left, right, top, bottom."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(_SETTINGS)
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    left, right, top, bottom = margins
    return figure, figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))


def line(number: int) -> dict[str, Any]:
    """Return the style of a series: color, dash and marker distinguish 4 × 4 × 12 series, never the color alone."""
    color = series_color(number)
    return {
        "color": color, "linestyle": _DASHES[(number + number // 4) % 4], "marker": _MARKERS[number % len(_MARKERS)],
        "markerfacecolor": color, "markeredgecolor": PAPER, "markeredgewidth": 0.6,
    }  # fmt: skip


def series_color(number: int) -> str:
    """Return the placeholder of the color of a series; four colors repeat."""
    return INKS_SERIES[number % len(INKS_SERIES)]


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """Make x the message size in bytes, at log2 of the size (`x_of_size`), with at most eight labels at powers of two."""
    low, high = x_of_size(min(sizes)), x_of_size(max(sizes))
    step = max(1, ceil((high - low) / 7))
    ticks = list(range(round(low), round(high) + 1, step))
    fixed_ticks(axes.xaxis, ticks, [format_size(2**each) for each in ticks])
    axes.set_xlim(low - 0.4, high + 0.4)
    axes.set_xlabel("message size")


def log_axis(axes: Axes, low: float, high: float) -> None:
    """Make y logarithmic from `low` to `high` (both above 0), with plain labels: powers of ten, and 2 and 5 if there is room."""
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
    """Return ticks for a range too narrow for two of the usual steps."""
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]


def x_of_size(size_bytes: int) -> float:
    """Return the position of a size on `size_axis`."""
    return log2(max(1, size_bytes))


def spots(axes: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str]) -> list[Tooltip]:
    """Return tooltips at these points. Call it once the axes have their final limits. Points that are not finite are left out."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = figure.get_size_inches()[1] * 72
    known = [(x, y, text) for x, y, text in zip(xs, ys, texts, strict=True) if isfinite(x) and isfinite(y)]
    if not known:
        return []
    places = axes.transData.transform([(x, y) for x, y, _ in known])
    return [Tooltip(round(float(x), 1), round(float(height - y), 1), text) for (x, y), (_, _, text) in zip(places, known, strict=True)]


def fixed_ticks(axis: Any, ticks: Sequence[float], texts: Sequence[str]) -> None:
    """Set ticks at these positions only; `set_ticks` would build each of them."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(texts))
    axis.set_minor_locator(NullLocator())


# Names in charts.

_LONGEST_SERIES_NAME = 60


def distinguishing(rows: Sequence[Row]) -> list[str]:
    """Return the fields that distinguish the series of one operation: the backend, and all that differ."""
    return [name for name in SERIES if name == "backend" or (name != "operation" and len({getattr(row, name) for row in rows}) > 1)]


def series_name(row: Row, names: Sequence[str]) -> str:
    """Return the name of a series by its fields `names`: "mpi", "gloo in place"."""
    values = [text for name in names if (text := value_of(row, name)) != NOTHING]
    return cut(" ".join(values), _LONGEST_SERIES_NAME)


def cut(text: str, most: int = 40) -> str:
    """Return a name for a drawing: printable, with at most this many characters."""
    return short(text, most)


# An axis of ratios to a median, at their log2: half and double are equally far from 1.

_LOWEST, _HIGHEST = 0.05, 20.0  # ratios beyond are drawn at the edge
_LEAST = 1.1  # the axis reaches at least this far to either side, so that noise looks small
# In the order of priority of their labels.
_TICKS = (1, 2, 0.5, 10, 0.1, 5, 0.2, 20, 0.05, 1.5, 0.7, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95)


def level(ratio: float) -> float:
    """Return the position of a ratio on the axis."""
    return log2(min(_HIGHEST, max(_LOWEST, ratio)))


def ratio_axis(axes: Axes, levels: Sequence[float], upright: bool) -> None:
    """Make y (or, not upright, x) an axis that includes all `levels`, with 1 marked."""
    low, high = min(-log2(_LEAST), *levels), max(log2(_LEAST), *levels)
    room = 0.05 * (high - low)
    low, high = low - room, high + room
    box = axes.bbox
    ticks = ticks_within(_TICKS, low, high, 16 * (high - low) / box.height if upright else 40 * (high - low) / box.width)
    places, texts = [log2(tick) for tick in ticks], [f"×{tick:g}" for tick in ticks]
    if upright:
        fixed_ticks(axes.yaxis, places, texts)
        axes.set_ylim(low, high)
        axes.set_ylabel("sample / median")
        axes.axhline(0, color=SOFT, linewidth=0.8)
    else:
        fixed_ticks(axes.xaxis, places, texts)
        axes.set_xlim(low, high)
        axes.set_xlabel("sample / median")
        axes.axvline(0, color=SOFT, linewidth=0.8)


def ticks_within(ticks: Sequence[float], low: float, high: float, apart: float, level: Callable[[float], float] = log2) -> list[float]:
    """Return those of `ticks` between two levels, ascending; of two closer than `apart` the one that is first in `ticks`."""
    chosen: list[float] = []
    for tick in ticks:
        if low <= level(tick) <= high and all(abs(level(tick) - level(other)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


# Drawings one below the other, with the same time axis.

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _LEFT, _RIGHT = 940, 104, 30, 40, 54, 12  # in pixels; height and top are those of each
_UNITS = ((180.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (float("inf"), 3600.0, "h"))
_ORDER = "cases in the order of measurement"


@dataclass(frozen=True)
class TimeAxis:
    """The x axis of a run.

    end    its length: in seconds, or in cases if the rows have no times
    timed  whether the rows have times
    """

    end: float
    timed: bool

    @property
    def unit(self) -> tuple[float, str]:
        """Return the unit of the axis in seconds, and its name; (1, "") for cases."""
        return next((factor, name) for most, factor, name in _UNITS if self.end <= most) if self.timed else (1.0, "")

    @property
    def title(self) -> str:
        """Return the title of the axis."""
        return f"{self.unit[1]} since the start of the run" if self.timed else _ORDER

    def at(self, place: float) -> float:
        """Return the position of a time in seconds (or of the number of a case)."""
        return place / self.unit[0]

    def ticks(self) -> list[float]:
        """Return round positions for labels."""
        from matplotlib.ticker import MaxNLocator

        end = self.at(self.end) or 1
        return [float(tick) for tick in MaxNLocator(10, integer=not self.timed).tick_values(0, end) if 0 <= tick <= end]

    def text(self, place: float) -> str:
        """Return a time as text: "12.3 s", "case 5"."""
        return f"{self.at(place):.4g} {self.unit[1]}" if self.timed else f"case {round(place + 0.5)}"


def stacked(count: int, axis: TimeAxis) -> tuple[Figure, list[Axes]]:
    """Return a figure with this many drawings over the same axis, which has its labels below the last one."""
    height = count * (_TOP + _HEIGHT) + _BOTTOM
    figure, first = panel(_WIDTH, height, (_LEFT, _RIGHT, _TOP, height - _TOP - _HEIGHT))
    box = first.get_position()
    step = (_TOP + _HEIGHT) / height
    more = [figure.add_axes((box.x0, box.y0 - step * number, box.width, box.height)) for number in range(1, count)]
    ticks = axis.ticks()
    for axes in (every := [first, *more]):
        fixed_ticks(axes.xaxis, ticks, [f"{tick:g}" if axes is every[-1] else "" for tick in ticks])
        axes.set_xlim(0, axis.at(axis.end) or 1)
    every[-1].set_xlabel(axis.title)
    return figure, every


def number(value: Any, most: float = 1e12) -> float | None:
    """Return a stored value as a number if it is finite and at most `most`; else None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and abs(value) <= most
    return float(value) if known else None


def numbers(values: Any) -> list[float] | None:
    """Return a stored list as numbers; None if one of its values is not a number."""
    if not isinstance(values, list):
        return None
    known = [each for value in values if (each := number(value)) is not None]
    return known if len(known) == len(values) else None


def seconds_between(begin: Any, end: Any) -> float | None:
    """Return the seconds between two stored calendar times; None if one is not valid."""
    try:
        return (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(begin))).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None


# Labels among the lines of a drawing: next to their line, where they cover the least, and never over each other.

_LETTER, _HIGH, _SIZE = 5.9, 12.0, 10  # pixels of a letter and of a line of text, and the font size
_STEP = 6.0  # pixels between the points of a line
_COLLIDES = 10_000

Points = Sequence[tuple[float, float]]
_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class LineLabel:
    """The name of a line; its points are in data coordinates."""

    text: str
    color: str
    points: Points


def write_labels(axes: Axes, labels: Sequence[LineLabel], lines: Sequence[Points]) -> list[str]:
    """Write each label beside its line, and return those without room. Call it once the axes have their final limits.

    `lines` are all lines that should stay visible.
    """
    seen = [point for line in (*lines, *(label.points for label in labels)) for point in _along(_pixels(axes, line))]
    taken: list[_Box] = []
    left_over = []
    for label in labels:
        box = _best(axes, label, seen, taken)
        if box is None:
            left_over.append(label.text)
            continue
        taken.append(box)
        figure = axes.get_figure(root=True)
        assert figure is not None
        write(figure, (box[0], box[1] + 3), _fitting(axes, label.text), color=label.color, size=_SIZE)
    return left_over


def _fitting(axes: Axes, text: str) -> str:
    return cut(text, int(axes.bbox.width / _LETTER))


def _best(axes: Axes, label: LineLabel, seen: Points, taken: Sequence[_Box]) -> _Box | None:
    """Return the box that covers the least; None if all collide with other labels or leave the axes."""
    costs = [(_cost(axes, box, seen, taken), box) for box in _candidates(axes, label)]
    cost, box = min(costs, key=lambda each: each[0], default=(_COLLIDES, (0.0, 0.0, 0.0, 0.0)))
    return box if cost < _COLLIDES else None


def _candidates(axes: Axes, label: LineLabel) -> Iterator[_Box]:
    """Yield boxes above and below the line at several places along it, the outer ones first: left, bottom, right, top in pixels."""
    points, wide = _pixels(axes, label.points), _LETTER * len(_fitting(axes, label.text))
    left, right = axes.bbox.x0, axes.bbox.x1
    starts = [left + 4, right - wide - 4, *(left + share * (right - left - wide) for share in (0.25, 0.5, 0.75))]
    if len(points) == 1:
        starts = [points[0][0] + 5, points[0][0] - wide - 5]
    for start in starts:
        near = [y for x, y in _along(points) if start - _STEP <= x <= start + wide + _STEP] or [points[0][1]]
        for bottom in (max(near) + 2, min(near) - _HIGH - 2):
            yield start, bottom, start + wide, bottom + _HIGH


def _cost(axes: Axes, box: _Box, seen: Points, taken: Sequence[_Box]) -> int:
    left, bottom, right, top = box
    outside = bool(left < axes.bbox.x0 or right > axes.bbox.x1 + 8 or bottom < axes.bbox.y0 or top > axes.bbox.y1 + 6)
    collides = any(left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken)
    covered = sum(left <= x <= right and bottom <= y <= top for x, y in seen)
    return covered + _COLLIDES * (outside + collides)


def _pixels(axes: Axes, points: Points) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in axes.transData.transform(list(points))] if points else []


def _along(points: Points) -> Iterator[tuple[float, float]]:
    """Yield points of the line that are at most a few pixels apart."""
    yield from points[:1]
    for (x, y), (to_x, to_y) in pairwise(points):
        steps = min(200, max(1, int(hypot(to_x - x, to_y - y) / _STEP)))
        for step in range(1, steps + 1):
            yield x + (to_x - x) * step / steps, y + (to_y - y) * step / steps
