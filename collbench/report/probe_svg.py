"""SVG as text: elements, text that fits its box, and the one style sheet of the machine's picture (light and dark)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from collbench.report.probe_places import Box
from collbench.report.probe_words import safe

_WIDTH = 0.57  # of a letter of a sans-serif font, in font sizes, on the wide side
BOLD = 14.5  # what a bold letter of 13 pixels takes, as a size of an ordinary one
_STYLE = Path(__file__).with_name("probe.css")
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


@cache
def style() -> str:
    """Return the style sheet of all drawings: `document` carries it, and a page that embeds drawings has it in its own sheet."""
    return _STYLE.read_text(encoding="utf-8")


def document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """Return the whole SVG with its style sheet and the text for screen readers."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="probe" role="img" {size}'
    words = f"{_title(title)}<desc>{escape(safe(description, 2000))}</desc>"
    ground = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    label = f" aria-label={quoteattr(safe(title))}"
    return f"{head}{label}>{words}{_style_element()}{_HATCH}{ground}{''.join(body)}</svg>\n"


def embedded(svg: str, *, first: bool) -> str:
    """Return a `document` as an element of a page, without its style: the page has `style()` in its own sheet, the only one that it allows.

    The first drawing of a page brings the pattern that all of them use.
    """
    width = re.search(r' width="([\d.]+)" height="[\d.]+"', svg)
    sized = svg.replace(width[0], f' style="max-width:{width[1]}px"', 1) if width else svg
    return sized.replace(f"{_style_element()}{'' if first else _HATCH}", "", 1)


def _style_element() -> str:
    return f"<style>{_packed(style())}</style>"


@cache
def _packed(sheet: str) -> str:
    """Return the sheet without comments and line breaks."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)).strip().replace(": ", ":")


def _title(words: str) -> str:
    return f"<title>{escape(safe(words, 1000))}</title>"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
