"""A figure of matplotlib as an SVG element for the page: small, in the page's colours, with identifiers of its own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from collbench.report.html.frame import draw_frame
from collbench.report.html.inks import INK, NAMES, SOFT
from collbench.report.html.overlay import SIZE, overlaid, text_attributes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WITHOUT_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}  # the same figure is the same text


def svg_of(figure: Figure, key: str, title: str) -> str:
    """The figure as an SVG element. `key` makes its identifiers unique in the page, `title` is its accessible name."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    mpl.rcParams["svg.hashsalt"] = key
    for axes in figure.axes:
        draw_frame(axes)
    written = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text stays text: the browser's fonts have what matplotlib's lacks
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(written, metadata=_WITHOUT_DATE)
    return _in_page_colours(overlaid(figure, _compact(written.getvalue(), key, title)))


def _in_page_colours(text: str) -> str:
    return re.sub(r"#0[0-9a-f]{5}", lambda found: f"var(--{NAMES[found[0]]})" if found[0] in NAMES else found[0], text)


def _compact(svg: str, key: str, title: str) -> str:
    """Without the head, the style that would hold for the whole page, identifiers nobody uses, and what repeats itself."""
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
    """Equal marks, one element each, become the corners of one path that carries the mark: a third of the bytes."""
    shapes = dict(re.findall(r'<path id="([^"]*)" d="([^"]*)"/>', text))
    names: dict[tuple[str, str], str] = {}

    def path(found: re.Match[str]) -> str:
        """Marks that are alike and follow each other, as one path; with the first of their kind comes what they look like."""
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
    """Style as attributes, as far as it is not the drawing's."""
    size, anchor, fill = (re.search(pattern, found[2]) for pattern in (r"([\d.]+)px", r"text-anchor: (\w+)", r"fill: (#[0-9a-f]{6})"))
    color = fill[1] if fill else INK
    return found[1] + text_attributes(color, float(size[1]) if size else SIZE, anchor[1] if anchor else "start")


def _short_path(found: re.Match[str]) -> str:
    """Path data: points one after another are lines, and tenths of a pixel are enough."""
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), found[0])
    return re.sub(r" ?([MLzQC]) ?", r"\1", text).replace('d=" ', 'd="').replace(' "', '"')


def _short_numbers(found: re.Match[str]) -> str:
    """Tenths of a pixel, in attributes alone: what stands in a text is a figure."""
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
    """Identifiers that are referred to, numbered within this drawing; all others go."""
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', text))
    numbers = count()
    names = {name: f"{key}-{next(numbers)}" for name in sorted(used)}
    text = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{names[found[1]]}"' if found[1] in names else "", text)
    return re.sub(r"((?:href=\"#|url\(#))([\w.-]+)", lambda found: found[1] + names.get(found[2], found[2]), text)
