"""SVG as text: elements, text that fits its box, and the one style sheet of the machine's picture (light and dark)."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from collbench.report.probe_places import Box
from collbench.report.probe_words import safe

_WIDTH = 0.57  # of a letter of a sans-serif font, in font sizes, on the wide side
BOLD = 14.5  # what a bold letter of 13 pixels takes, as a size of an ordinary one
_LIGHT = (
    "--page:#fff;--ink:#1a2330;--soft:#566273;--panel:#f6f8fb;--edge:#d3dbe6;--cpu:#e3e9f2;--switch:#e9e4f6;--switch-edge:#8b78bd;"
    "--gpu:#e4f3df;--gpu-edge:#4f8f3a;--nic:#e0effb;--nic-edge:#2f7bbf;--pcie:#8794a8;--bad:#b3400a;--limit:#c01560"
)
_DARK = (
    "--page:#10151d;--ink:#e8edf4;--soft:#a3afbf;--panel:#171e29;--edge:#303b4b;--cpu:#243043;--switch:#2b2544;--switch-edge:#9d8bd0;"
    "--gpu:#1b3320;--gpu-edge:#74b85e;--nic:#152f47;--nic-edge:#5aa5e6;--pcie:#71809a;--bad:#ff9a5c;--limit:#ff6fae"
)
_FONT = 'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif'
_SHAPES = """
.probe .page{fill:var(--page)}.probe text{fill:var(--ink);font-size:12px}.probe .h1{font-size:18px;font-weight:650}
.probe .name{font-weight:650;font-size:13px}.probe .soft{fill:var(--soft)}.probe .small{font-size:10.5px;fill:var(--soft)}
.probe .count{paint-order:stroke;stroke:var(--page);stroke-width:4px}
.probe .mid{text-anchor:middle}.probe .panel{fill:var(--panel);stroke:var(--edge)}.probe .cpu{fill:var(--cpu);stroke:var(--edge)}
.probe .switch{fill:var(--switch);stroke:var(--switch-edge)}.probe .gpu{fill:var(--gpu);stroke:var(--gpu-edge)}
.probe .nic{fill:var(--nic);stroke:var(--nic-edge)}.probe .wire{fill:none;stroke:var(--pcie)}
.probe .nv{fill:none;stroke:var(--gpu-edge);opacity:.75}.probe .dim{stroke-dasharray:2 3}
.probe .slow{stroke:var(--bad);stroke-dasharray:7 4;opacity:1}.probe .down{stroke:var(--bad);stroke-dasharray:5 3}
.probe .hatch{fill:url(#probe-hatch)}.probe text.bad{fill:var(--bad);font-weight:650}
.probe .halo{fill:none;stroke:var(--limit);opacity:.35;stroke-linecap:round}.probe rect.limit{stroke:var(--limit);stroke-width:3}
.probe .tag{fill:var(--limit)}.probe text.tagged{fill:var(--page);font-weight:650;font-size:10.5px;text-anchor:middle}
""".strip().replace("\n", "")
_STYLE = f".probe{{{_LIGHT};{_FONT}}}@media (prefers-color-scheme:dark){{.probe{{{_DARK}}}}}{_SHAPES}"
_PAIRS = [zip(*(each.split(":") for each in pair), strict=True) for pair in zip(_LIGHT.split(";"), _DARK.split(";"), strict=True)]
_BOTH = ";".join(f"{names[0]}:light-dark({colors[0]},{colors[1]})" for names, colors in _PAIRS)
_SUPPORTED = f"@supports (color:light-dark(#fff,#000)){{.probe{{{_BOTH};--page:var(--paper)}}}}"
_NO_HALO = "svg.probe.probe text:not(.count){stroke:none}"  # which the page gives the texts of its charts
_PAGE_STYLE = f".probe{{{_LIGHT};{_FONT}}}{_SUPPORTED}{_SHAPES}{_NO_HALO}"
_HATCH = (
    '<defs><pattern id="probe-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line y2="7" stroke="var(--bad)" stroke-width="1.6" opacity=".45"/></pattern></defs>'
)


def rect(box: Box, style: str, title: str = "", radius: int = 7) -> str:
    """A rounded box; `title` is what a pointer over it shows."""
    tag = f'<rect class="{style}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}"'
    return f"{tag}>{_title(title)}</rect>" if title else f"{tag}/>"


def text(x: float, y: float, words: str, style: str = "", *, room: float | None = None, size: float = 12) -> str:
    """A line of text at its base line; what does not fit `room` pixels ends in an ellipsis and is whole in its title."""
    shown = fitting(words, room, size) if room is not None else safe(words, 1000)
    whole = _title(words) if shown != safe(words, 1000) else ""
    return f'<text{_class(style)} x="{x:g}" y="{y:g}">{whole}{escape(shown)}</text>'


def curve(path: str, width: float, style: str, title: str = "") -> str:
    """A stroke along an SVG path."""
    tag = f'<path class="{style}" d="{path}" stroke-width="{width:.2g}"'
    return f"{tag}>{_title(title)}</path>" if title else f"{tag}/>"


def tag(x: float, y: float, words: str = "limits") -> str:
    """A small label on a coloured ground, centred on x."""
    width = 14 + text_width(words, 10.5)
    return rect(Box(x - width / 2, y - 8, width, 16), "tag", radius=8) + text(x, y + 4, words, "tagged")


def fitting(words: str, room: float, size: float = 12) -> str:
    """`words`, printable, cut with an ellipsis to about `room` pixels."""
    whole = safe(words, 1000)
    letters = max(1, int(room / (size * _WIDTH)))
    return whole if len(whole) <= letters else whole[: letters - 1].rstrip() + "…"


def text_width(words: str, size: float = 12) -> float:
    """Roughly how wide a text gets, in pixels."""
    return len(words) * size * _WIDTH


def document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """The whole SVG, with what a screen reader says of it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="probe" role="img" {size}'
    words = f"{_title(title)}<desc>{escape(safe(description, 2000))}</desc>"
    ground = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    label = f" aria-label={quoteattr(safe(title))}"
    return f"{head}{label}>{words}<style>{_STYLE}</style>{_HATCH}{ground}{''.join(body)}</svg>\n"


def embedded(svg: str, *, first: bool) -> str:
    """A `document` as an element of a page, at most as large as it is; the first one has the style of all.

    The page sets `color-scheme`, and `--paper`, the ground on which it is drawn.
    """
    width = re.search(r' width="([\d.]+)" height="[\d.]+"', svg)
    sized = svg.replace(width[0], f' style="max-width:{width[1]}px"', 1) if width else svg
    if first:
        return sized.replace(_STYLE, _PAGE_STYLE, 1)
    return sized.replace(f"<style>{_STYLE}</style>{_HATCH}", "", 1)


def _title(words: str) -> str:
    return f"<title>{escape(safe(words, 1000))}</title>"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
